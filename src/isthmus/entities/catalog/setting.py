"""Descriptions converted to the settings of entities.

What it is: descriptions in the terms of `Intake.configure` and `Queue.configure`. What it is not: the descriptions
(`description`), their checks (`isthmus.entities.administration`), or forwarding.
"""

from __future__ import annotations

from typing import Any

from isthmus.entities.catalog.description import (
    INFINITE_MS,
    EntityStatus,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)

__all__ = ["dead_letter_settings", "queue_settings", "receiving_settings", "topic_settings"]


def topic_settings(description: QueueDescription | TopicDescription) -> dict[str, Any]:
    """Of entities that take messages from senders."""
    size = description.max_message_size_in_kilobytes
    window_ms = description.duplicate_detection_history_time_window_ms
    return {
        "status": description.status,
        "default_ttl_ms": description.default_message_time_to_live_ms,
        "quota_megabytes": description.max_size_in_megabytes,
        "max_message_size_bytes": size << 10 if size else None,
        "duplicate_window_ms": window_ms if description.requires_duplicate_detection else 0,
    }


def receiving_settings(description: QueueDescription | SubscriptionDescription) -> dict[str, Any]:
    """Of entities that give messages to receivers."""
    return {
        "status": description.status,
        "default_ttl_ms": description.default_message_time_to_live_ms,
        "lock_duration_ms": description.lock_duration_ms,
        "max_delivery_count": description.max_delivery_count,
        "dead_letters_expired": description.dead_lettering_on_message_expiration,
        "requires_session": description.requires_session,
    }


def queue_settings(description: QueueDescription) -> dict[str, Any]:
    """Of a queue."""
    return topic_settings(description) | receiving_settings(description)


def dead_letter_settings(status: EntityStatus, lock_duration_ms: int, max_delivery_count: int) -> dict[str, Any]:
    """Of a dead-letter queue: messages never expire, and nothing is dead-lettered further.

    Args:
        status: of the entity that it belongs to; of these it takes only DISABLED.
        lock_duration_ms: of the entity.
        max_delivery_count: the largest possible one.
    """
    return {
        "status": status if status == EntityStatus.DISABLED else EntityStatus.ACTIVE,
        "default_ttl_ms": INFINITE_MS,
        "lock_duration_ms": lock_duration_ms,
        "max_delivery_count": max_delivery_count,
        "dead_letters_expired": False,
    }
