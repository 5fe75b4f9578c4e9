"""The limit of bytes in flight for all routes of one process together.

What it is: a bound that many routes share. Each may use as much as is free, so that one busy route among many idle
ones gets half of the limit and n busy ones get 1 / (n + 1) of it each (the dynamic threshold of Choudhury and Hahne, "Dynamic
queue length thresholds for shared-memory packet switches", 1998). What it is not: a reservation.

Invariants:
    I1. A route gets at least `least_bytes`, however much the others use, or it might never move.
"""

from __future__ import annotations

__all__ = ["PROCESS_BYTES", "ByteBudget"]

PROCESS_BYTES = 256 << 20
LEAST_BYTES = 256 << 10


class ByteBudget:
    """The limit of one process.

    Attributes:
        used: bytes in flight of all routes.
    """

    def __init__(self, nbytes: int = PROCESS_BYTES, least_bytes: int = LEAST_BYTES) -> None:
        self.nbytes = nbytes
        self.used = 0
        self._least_bytes = least_bytes

    @property
    def share(self) -> int:
        """The bytes that one route may have in flight now."""
        return max(self._least_bytes, self.nbytes - self.used)
