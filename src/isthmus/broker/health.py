"""Whether a namespace takes changes now, and what is wrong where it does not.

What it is: the answer of `/health`. What it is not: the judgement, which is the namespace's.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["HEALTHY", "Health", "without_paths"]

# In quotes, or to where what failed goes on.
_PATH = re.compile(r"'/[^']*'|(?<![\w.])/.*?(?=: |$)")


class Health(NamedTuple):
    """How a namespace does.

    Attributes:
        status: ``healthy``, ``unhealthy`` (the store refuses changes) or ``stopping``.
        reason: what is wrong; empty where nothing is.
        partition_stores_down: stores of partitioned entities that take nothing now, while everything else is served.
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
    """A reason as anybody may read it: where the namespace keeps its files concerns its operator, who has the log."""
    return _PATH.sub("…", reason)
