"""The delivery machine's view of its target's connection.

What it is: whether it is open, its credit, its limit for one message, what is in flight on it, and how much may be. What it is
not: the connection itself.

Invariants:
    I1. No more deliveries are in flight than `limit`, which is 1 after a refusal and grows with accepted deliveries.
    I2. No more messages are in flight than the window.
"""

from __future__ import annotations

from isthmus.bridge.delivery.in_flight import InFlight

__all__ = ["TargetLink"]


class TargetLink:
    """The connection of one target.

    Args:
        window: messages in flight at most.
        limit: deliveries in flight at first; it grows as after a refusal.
        most: the greatest value of the limit.

    Attributes:
        is_open: whether it is open.
        credit: deliveries that the target takes now.
        message_bytes: the largest message that it takes; 0 for no limit.
        limit: deliveries in flight at most for now.
        flight: the deliveries in flight.
    """

    def __init__(self, window: int, limit: int, most: int) -> None:
        self.is_open = False
        self.credit = 0
        self.message_bytes = 0
        self.limit = limit
        self.flight = InFlight()
        self._window = window
        self._most = most

    @property
    def room(self) -> int:
        """How many deliveries may be sent now."""
        flight = self.flight
        return min(self.credit, self.limit - flight.outstanding, self._window - flight.messages) if self.is_open else 0

    @property
    def message_room(self) -> int:
        """How many messages may be sent now, if they are few enough deliveries."""
        return self._window - self.flight.messages

    @property
    def waits_for_credit(self) -> bool:
        """Whether credit alone limits the deliveries that may be sent."""
        return self.limit - self.flight.outstanding >= self.credit

    def opened(self, message_bytes: int) -> None:
        """The target is connected; credit follows."""
        self.is_open, self.credit, self.message_bytes = True, 0, message_bytes
        self.flight.clear()

    def sent(self, first: int, count: int, size: int = 1) -> None:
        """Deliveries of `size` messages each are sent."""
        self.credit -= count
        self.flight.sent(first, count, size)

    def grow(self, count: int) -> None:
        """The target accepted deliveries."""
        if self.limit < self._most:
            self.limit = min(self._most, self.limit + count)

    def lost(self) -> None:
        """The connection is lost."""
        self.is_open, self.credit = False, 0
        self.flight.clear()
