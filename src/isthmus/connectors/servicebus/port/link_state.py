"""A source's state of its present link, and of its owner's credit.

What it is: the values that are reset with each link. What it is not: the link.

Invariants:
    I1. Delivery ids ascend during a link's lifetime, although the protocol's wrap at 2^32.
    I2. Credit that is granted while withdrawn credit is not drained yet counts from `Drained` on.
"""

from __future__ import annotations

from collections import deque

from isthmus.connectors.servicebus.message.sequence import SequenceFinder
from isthmus.connectors.servicebus.port.peek.head_guard import Run

__all__ = ["MASK32", "DeliveryIds", "LinkState", "OwnerCredit"]

MASK32 = 0xFFFFFFFF


class DeliveryIds:
    """Delivery ids of one link that do not wrap at 2^32 (OASIS AMQP 1.0 2.8.8)."""

    def __init__(self) -> None:
        self._last: int | None = None

    def unwrapped(self, delivery_id: int) -> int:
        """The unwrapped id of a new delivery of this link."""
        last = self._last
        self._last = delivery_id if last is None else last + ((delivery_id - last) & MASK32)
        return self._last


class LinkState:
    """The state of the present link; `began`: when it was attached."""

    def __init__(self, began: float = 0.0) -> None:
        self.began = began
        self.has_learned = False
        self.has_reported_end = False
        self.is_retrying = False
        self.ready: deque[Run] = deque()
        self.sequences = SequenceFinder()
        self.ids = DeliveryIds()


class OwnerCredit:
    """The owner's credit; `left`: granted and not used yet, `draining`: withdrawn, and `Drained` is not reported yet."""

    def __init__(self) -> None:
        self.left = 0
        self.draining = False
        self._next = 0

    def grant(self, credit: int) -> None:
        """Grants so many messages more, once the withdrawn credit is drained."""
        if self.draining:
            self._next = credit
        else:
            self.left = credit

    def given(self, count: int) -> None:
        """Messages were delivered to the owner."""
        self.left = max(0, self.left - count)

    def drain(self) -> None:
        """The owner withdraws the credit."""
        self.draining = True
        self._next = 0

    def drained(self) -> None:
        """The link is drained."""
        self.draining, self.left, self._next = False, self._next, 0
