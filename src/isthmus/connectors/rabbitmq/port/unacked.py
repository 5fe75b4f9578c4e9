"""What a consumer was given, and the least that acknowledges it.

What it is: the delivery tags of one channel in their order, and which of them are done. `basic.ack` acknowledges one delivery, or all up
to one. What it is not: the positions of a route (`delivered`). Specification: AMQP 0-9-1, 1.8.3.13; tags ascend by one.

RabbitMQ closes the channel for an acknowledgement that names a tag which it does not know any more, also one that is meant with all up to
it; so each names a tag that is acknowledged by it for the first time.

Invariants:
    I1. Nothing is acknowledged that is not done.
    I2. No acknowledgement names a tag that was acknowledged or rejected before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["Unacked"]


class Unacked:
    """The tags of one channel."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._done: set[int] = set()  # settled, while one before it is not

    def __len__(self) -> int:
        return len(self._order) - len(self._done)

    def add(self, tag: int) -> None:
        """A message was delivered."""
        self._order.append(tag)

    def settle(self, tags: Sequence[int]) -> list[tuple[int, bool]]:
        """These are done: what to acknowledge, and whether with all up to it."""
        order, done = self._order, self._done
        fresh = set(tags) - done
        done |= fresh
        last = 0
        while order and order[0] in done:
            tag = order.popleft()
            done.discard(tag)
            if tag in fresh:
                fresh.discard(tag)
                last = tag
        acks = [(last, True)] if last else []
        return acks + [(tag, False) for tag in sorted(fresh)]

    def remove(self, tag: int) -> None:
        """It was rejected, or given back: the broker forgets it."""
        self._done.add(tag)
        order, done = self._order, self._done
        while order and order[0] in done:
            done.discard(order.popleft())

    def clear(self) -> None:
        """The channel is gone."""
        self._order.clear()
        self._done.clear()
