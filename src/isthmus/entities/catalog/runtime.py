"""What an entity holds right now, as the management API reports it.

What it is: one record per look. Spec: docs/explanation/protocol.md, Administration (CountDetails), 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Runtime"]


@dataclass(slots=True)
class Runtime:
    """Counts, size and times of a queue, topic or subscription; exact, restart or not.

    Attributes:
        active_message_count: messages that a receiver can get or has locked.
        transfer_message_count: messages that wait to be forwarded.
        transfer_dead_letter_message_count: messages that could not be, since the target was gone or took none.
        deferred_message_count: part of `message_count`, in none of the service's own details.
        message_count: all of these together.
        size_bytes: of all of them, as their senders wrote them; what MaxSizeInMegabytes limits.
        accessed_at_ms: last send or receive; 0 is never.
        subscription_count: of a topic, else 0.
    """

    active_message_count: int = 0
    dead_letter_message_count: int = 0
    scheduled_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    deferred_message_count: int = 0
    locked_message_count: int = 0
    message_count: int = 0
    size_bytes: int = 0
    created_at_ms: int = 0
    updated_at_ms: int = 0
    accessed_at_ms: int = 0
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0
