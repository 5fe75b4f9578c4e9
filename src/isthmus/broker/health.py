"""Whether a namespace takes changes now, and what is wrong where it does not.

What it is: the answer of `/health`. What it is not: the judgement, which is the namespace's.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HEALTHY", "Health"]


class Health(NamedTuple):
    """How a namespace does.

    Attributes:
        status: ``healthy``, ``unhealthy`` (the store refuses changes) or ``stopping``.
        reason: what is wrong; empty where nothing is.
    """

    status: str
    reason: str = ""

    @property
    def is_ready(self) -> bool:
        """Whether clients are served in full."""
        return self.status == "healthy"


HEALTHY = Health("healthy")
