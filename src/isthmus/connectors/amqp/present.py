"""What a source knows of its present link: the numbers of its deliveries, and whether it has given what exists."""

from __future__ import annotations

import math

from isthmus.connectors.servicebus.port.link_state import MASK32

__all__ = ["DeliveryIds", "Present"]

# How long nothing comes before a source with `only_present` asks whether there is anything.
IDLE_SECONDS = 0.25


class DeliveryIds:
    """Delivery ids of one link that do not begin again at 2^32 (OASIS AMQP 1.0, 2.8.8)."""

    def __init__(self) -> None:
        self._last: int | None = None

    def unwrapped(self, delivery_id: int) -> int:
        last = self._last
        self._last = delivery_id if last is None else last + ((delivery_id - last) & MASK32)
        return self._last


class Present:
    """Whether a source that is to give what exists has given it.

    Attributes:
        due: when to ask.
        is_asking: whether the link is being drained for that.
        received: deliveries before it.
        is_told: whether `Exhausted` was told.
    """

    def __init__(self) -> None:
        self.due = math.inf
        self.is_asking = self.is_told = False
        self.received = 0

    def moved(self, now: float) -> None:
        """Something came, or was looked for in vain: ask a little later."""
        self.due = now + IDLE_SECONDS
