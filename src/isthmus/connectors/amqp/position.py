"""The numbers of a source's deliveries.

What it is: ascending positions, in the order of delivery, that no source of this process has used, nor in all likelihood an earlier process:
a broker has no number of a message that outlives the link. What it is not: a sequence number of the broker.

Invariants:
    I1. Positions of one process ascend over all its sources, independent of its clock.
    I2. A position has less than 48 bits until 2041: the bits above are those of partitions (`isthmus.bridge.port`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["Positions"]

_EPOCH_SECONDS = 1_704_067_200  # 2024-01-01
# More messages a second than a source delivers in the long run: the next process begins after the positions of this one.
_BITS_OF_A_SECOND = 19


class Positions:
    """Assigns positions.

    Args:
        wall_seconds: seconds since the epoch.
    """

    def __init__(self, wall_seconds: Callable[[], float] = time.time) -> None:
        self._wall_seconds = wall_seconds
        self._lock = threading.Lock()
        self._next = 1

    def take(self, count: int) -> range:
        """So many consecutive positions."""
        with self._lock:
            first = max(self._next, int(self._wall_seconds() - _EPOCH_SECONDS) << _BITS_OF_A_SECOND)
            self._next = first + count
        return range(first, first + count)
