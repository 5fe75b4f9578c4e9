"""What a source knows of its present link, and of its owner's credit.

What it is: the values that start again with each link. What it is not: the link.

Invariants:
    I1. Delivery ids ascend over a link's life, though the protocol's begin again at 2^32.
    I2. Credit that is granted while what was taken back is still on its way counts from `Drained` on.
"""

from __future__ import annotations

from collections import deque

from isthmus.connectors.servicebus.message.sequence import SequenceFinder
from isthmus.connectors.servicebus.port.look.head_guard import Run

__all__ = ["MASK32", "DeliveryIds", "LinkState", "OwnerCredit"]

MASK32 = 0xFFFFFFFF


class DeliveryIds:
    """Delivery ids of one link that do not begin again at 2^32 (OASIS AMQP 1.0 2.8.8)."""

    def __init__(self) -> None:
        self._last: int | None = None

    def unwrapped(self, delivery_id: int) -> int:
        """The id of a delivery, whose like has not come before on this link."""
        last = self._last
        self._last = delivery_id if last is None else last + ((delivery_id - last) & MASK32)
        return self._last


class LinkState:
    """What is known of the present link; `began`: when it was attached."""

    def __init__(self, began: float = 0.0) -> None:
        self.began = began
        self.has_learned = False
        self.has_told_end = False
        self.is_retrying = False
        self.ready: deque[Run] = deque()
        self.sequences = SequenceFinder()
        self.ids = DeliveryIds()


class OwnerCredit:
    """The owner's credit; `left`: granted and not given yet, `draining`: taken back, and `Drained` has not been told."""

    def __init__(self) -> None:
        self.left = 0
        self.draining = False
        self._next = 0

    def grant(self, credit: int) -> None:
        """So many messages more, once what was taken back has been."""
        if self.draining:
            self._next = credit
        else:
            self.left = credit

    def given(self, count: int) -> None:
        """The owner was given messages."""
        self.left = max(0, self.left - count)

    def drain(self) -> None:
        """The owner takes it back."""
        self.draining = True
        self._next = 0

    def drained(self) -> None:
        """Nothing more is on its way."""
        self.draining, self.left, self._next = False, self._next, 0
