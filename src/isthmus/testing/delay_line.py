"""One direction of a slow connection, without sockets.

What it is: bytes go in with the current time, and come out when they are due: after the delay, a random part of the jitter, and
the transmission time at the bandwidth. What it is not: the sockets (`proxy`).

Invariants:
    I1. Bytes come out in the order in which they went in, whatever the jitter.
    I2. The delay alone limits no throughput: what went in together comes out together.
    I3. `has_room` is false while `buffer_bytes` are inside; at most that, and one piece more, is kept.
"""

from __future__ import annotations

import math
import random
from collections import deque
from dataclasses import dataclass

__all__ = ["DelayLine", "Weather"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """The behaviour of a connection in one direction.

    Attributes:
        delay_seconds: how long bytes are in transit.
        jitter_seconds: the greatest additional delay.
        bytes_per_second: bandwidth; infinite for none.
        buffer_bytes: the most bytes in transit; at least the product of the delay and the intended rate.
        is_stalled: whether nothing comes out while the connection is open.
    """

    delay_seconds: float = 0.0
    jitter_seconds: float = 0.0
    bytes_per_second: float = math.inf
    buffer_bytes: int = 64 << 20
    is_stalled: bool = False


class DelayLine:
    """Bytes in transit in one direction.

    Args:
        weather: the behaviour at first; it may be changed at any time, and applies to bytes that go in from then on.
        seed: of the jitter.
    """

    def __init__(self, weather: Weather, seed: int = 0) -> None:
        self.weather = weather
        self._random = random.Random(seed)
        self._pieces: deque[tuple[float, bytes]] = deque()
        self._last_due = self._free_at = -math.inf
        self._size = 0

    @property
    def has_room(self) -> bool:
        """Whether more bytes may go in."""
        return self._size < self.weather.buffer_bytes

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, data: bytes, now: float) -> None:
        """Takes bytes in."""
        weather = self.weather
        begin = max(now, self._free_at)
        self._free_at = begin + len(data) / weather.bytes_per_second
        jitter = weather.jitter_seconds * self._random.random() if weather.jitter_seconds else 0.0
        self._last_due = max(self._last_due, self._free_at + weather.delay_seconds + jitter)
        self._pieces.append((self._last_due, data))
        self._size += len(data)

    def due(self) -> float:
        """When the next bytes are due; infinite where there are none."""
        return self._pieces[0][0] if self._pieces and not self.weather.is_stalled else math.inf

    def take(self, now: float) -> list[bytes]:
        """The bytes that are due."""
        found: list[bytes] = []
        while self.due() <= now:
            piece = self._pieces.popleft()[1]
            self._size -= len(piece)
            found.append(piece)
        return found
