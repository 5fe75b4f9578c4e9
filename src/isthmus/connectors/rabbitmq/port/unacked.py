"""The unacknowledged deliveries of a consumer, and the fewest acknowledgements for them.

What it is: the delivery tags of one channel in their order, and which of them are done. `basic.ack` acknowledges one delivery, or all up
to one. What it is not: the positions of a route (`delivered`). Specification: AMQP 0-9-1, 1.8.3.13; tags ascend by one.

RabbitMQ closes the channel for an acknowledgement with an unknown tag, also if it covers all up to
it; so each uses a tag that it acknowledges for the first time.

Invariants:
    I1. Only done deliveries are acknowledged.
    I2. No acknowledgement has a tag that was acknowledged or rejected before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

__all__ = ["Unacked"]


class Unacked:
    """The tags of one channel."""

    def __init__(self) -> None:
        self._order: deque[int] = deque()
        self._done: set[int] = set()  # settled, while an earlier one is not

    def __len__(self) -> int:
        return len(self._order) - len(self._done)

    def add(self, tag: int) -> None:
        """A message was delivered."""
        self._order.append(tag)

    def settle(self, tags: Sequence[int]) -> list[tuple[int, bool]]:
        """These are done: returns what to acknowledge, and whether with all up to it."""
        order, done = self._order, self._done
        count = len(tags)
        if count and not done and count <= len(order) and list(islice(order, count)) == tags:  # the frequent case
            for _ in range(count):
                order.popleft()
            return [(tags[-1], True)]
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
        """A delivery was rejected, or released: the broker forgets its tag."""
        self._done.add(tag)
        order, done = self._order, self._done
        while order and order[0] in done:
            done.discard(order.popleft())

    def clear(self) -> None:
        """The channel is closed."""
        self._order.clear()
        self._done.clear()
