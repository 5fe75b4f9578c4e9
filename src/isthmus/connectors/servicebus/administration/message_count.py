"""The number of messages in an entity, by kind, from azure-servicebus's runtime properties.

Spec: Microsoft Learn, "Message counters" (CountDetails).
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Counts"]


class Counts(NamedTuple):
    """Messages of an entity.

    Attributes:
        active: those that can be received, including locked ones.
        scheduled: scheduled for later.
        transfer: in transfer to another entity.
        dead: in its dead-letter queue and its transfer dead-letter queue.
        other: any other messages that the namespace counts, e.g. deferred ones.
    """

    active: int = 0
    scheduled: int = 0
    transfer: int = 0
    dead: int = 0
    other: int = 0

    @property
    def waiting(self) -> int:
        """The messages that a planned fail-over drains."""
        return self.active + self.scheduled + self.transfer

    @property
    def total(self) -> int:
        """All messages."""
        return sum(self)

    @classmethod
    def of(cls, found: Any) -> Counts:
        """The counts of the client's runtime properties."""

        def number(name: str) -> int:
            return int(getattr(found, name, 0) or 0)

        active, scheduled = number("active_message_count"), number("scheduled_message_count")
        transfer = number("transfer_message_count")
        dead = number("dead_letter_message_count") + number("transfer_dead_letter_message_count")
        # Whether Azure's total includes messages in transfer is not documented; ours does. Where it does not, the deferred count is too low.
        other = number("total_message_count") - active - scheduled - transfer - dead
        return cls(active, scheduled, transfer, dead, max(0, other))
