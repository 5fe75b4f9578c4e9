"""Whether a namespace accepts changes now, and the reason where it does not.

What it is: the answer of `/health`. What it is not: the check itself, which is the namespace's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["HEALTHY", "Health", "without_paths"]

# In quotes, or up to where the text continues after the path.
_PATH = re.compile(r"'/[^']*'|(?<![\w.])/.*?(?=: |$)")


class Health(NamedTuple):
    """The health of a namespace.

    Attributes:
        status: ``healthy``, ``unhealthy`` (the store refuses changes) or ``stopping``.
        reason: the fault; empty where there is none.
        partition_stores_down: stores of partitioned entities that refuse changes now, while everything else is served.
        zones_down: zones whose copy of the store does not count now; clients are served by the others.
        without_listener: how many hybrid connections have no listener now.
    """

    status: str
    reason: str = ""
    partition_stores_down: tuple[int, ...] = ()
    zones_down: tuple[int, ...] = ()
    without_listener: int = 0

    @property
    def is_ready(self) -> bool:
        """Whether clients are served in full."""
        return self.status == "healthy"


HEALTHY = Health("healthy")


def without_paths(reason: str) -> str:
    """A reason without file paths, for the public answer: the operator finds them in the log."""
    return _PATH.sub("…", reason)
