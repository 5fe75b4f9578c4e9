"""Waiting for descriptors that change little from one time to the next.

What it is: `select.poll` that is told only what changed. What it is not: a loop.
"""

from __future__ import annotations

import math
import select
from collections.abc import Iterable

__all__ = ["Poller"]


class Poller:
    """What is polled by one loop."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._registered: dict[int, int] = {}

    def wait(self, descriptors: Iterable[tuple[int, int]], seconds: float) -> dict[int, int]:
        """What is ready, by descriptor; empty when the time is over, which may be infinite."""
        wanted = dict(descriptors)
        if wanted != self._registered:
            for descriptor in self._registered.keys() - wanted.keys():
                self._poll.unregister(descriptor)
            for descriptor, events in wanted.items():
                if self._registered.get(descriptor) != events:
                    self._poll.register(descriptor, events)
            self._registered = wanted
        return dict(self._poll.poll(None if seconds == math.inf else max(0.0, seconds) * 1000))
