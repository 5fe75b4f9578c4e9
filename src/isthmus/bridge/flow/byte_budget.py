"""How many bytes the routes of one process may have under way together.

What it is: a bound that many routes share. Each may use as much as the others leave free, so that one busy route among many idle
ones has half of the bound and n busy ones have 1 / (n + 1) of it each (the dynamic threshold of Choudhury and Hahne, "Dynamic
queue length thresholds for shared-memory packet switches", 1998). What it is not: a reservation; nothing is set apart for anybody.

Invariants:
    I1. A route has at least `least_bytes`, however much the others use, or it might never move.
"""

from __future__ import annotations

__all__ = ["PROCESS_BYTES", "ByteBudget"]

PROCESS_BYTES = 256 << 20
LEAST_BYTES = 256 << 10


class ByteBudget:
    """The bound of one process.

    Attributes:
        used: bytes that all routes have under way.
    """

    def __init__(self, nbytes: int = PROCESS_BYTES, least_bytes: int = LEAST_BYTES) -> None:
        self.nbytes = nbytes
        self.used = 0
        self._least_bytes = least_bytes

    @property
    def share(self) -> int:
        """What one route may have under way now."""
        return max(self._least_bytes, self.nbytes - self.used)
