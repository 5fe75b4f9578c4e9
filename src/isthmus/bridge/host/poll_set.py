"""The descriptors that a loop polls.

What it is: a poll object to which only changes are passed, because most descriptors stay from one iteration to the next. What it is not: the
loop.

Invariants:
    I1. A descriptor that was closed and opened again under the same number is polled: its owner drops it here before closing it,
        or does not request it for at least one iteration.
"""

from __future__ import annotations

import contextlib
import math
import select
from collections.abc import Iterable

__all__ = ["PollSet"]


class PollSet:
    """The polled descriptors."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._events: dict[int, int] = {}

    def wait(self, wanted: Iterable[tuple[int, int]], seconds: float) -> dict[int, int]:
        """The descriptors that are ready within some time, with their events.

        Args:
            wanted: descriptors and events; all others are forgotten.
            seconds: how long to wait at most; may be infinite.
        """
        events = dict(wanted)
        if events != self._events:
            for fd in self._events.keys() - events.keys():
                with contextlib.suppress(KeyError):
                    self._poll.unregister(fd)
            for fd, mask in events.items():
                if self._events.get(fd) != mask:
                    self._poll.register(fd, mask)
            self._events = events
        return dict(self._poll.poll(None if seconds == math.inf else max(0.0, seconds) * 1000))
