"""Entities' states and the properties of azure-servicebus's administration client, and the conversion between them.

What it is: translation, and a count that needs two of the client's calls. What it is not: any other call of the client
(`isthmus.connectors.servicebus.administration.administration`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from azure.servicebus.management import CorrelationRuleFilter, QueueProperties, SubscriptionProperties, TopicProperties

from isthmus.connectors.servicebus.administration.listing import listed
from isthmus.topology import QueueState, RuleState, SubscriptionState, TopicState
from isthmus.topology.file.duration import INFINITE_MS

__all__ = ["detection_ms", "queue_state", "received", "rule_state", "settings_of", "topic_state", "waiting_in_topic"]


def settings_of(entity: QueueState | SubscriptionState, *, creates: bool = False) -> dict[str, Any]:
    """The client's names and values of the state's settings."""
    ttl_ms = entity.default_ttl_ms
    if creates and ttl_ms is None:
        ttl_ms = entity.initial_ttl_ms
    settings: dict[str, Any] = {
        "max_delivery_count": entity.max_delivery_count,
        "requires_session": entity.requires_session,
        "dead_lettering_on_message_expiration": entity.dead_letters_expired,
        "status": None if creates else entity.status,  # the client's `create` methods do not accept it
    }
    if entity.lock_duration_ms is not None:
        settings["lock_duration"] = timedelta(milliseconds=entity.lock_duration_ms)
    for name, length_ms in (
        ("auto_delete_on_idle", entity.auto_delete_on_idle_ms),
        ("default_message_time_to_live", ttl_ms),
    ):
        if length_ms is not None:
            endless = length_ms >= INFINITE_MS
            settings[name] = "P10675199DT2H48M5.4775807S" if endless else timedelta(milliseconds=length_ms)
    settings = {name: value for name, value in settings.items() if value is not None}
    for name, target in (
        ("forward_to", entity.forward_to),
        ("forward_dead_lettered_messages_to", entity.forward_dead_letters_to),
    ):
        if target is not None:
            settings[name] = target or None
    return settings


def queue_state(name: str, existing: QueueProperties) -> QueueState:
    """The state of an existing queue."""
    return QueueState(
        name=name,
        duplicate_detection_ms=detection_ms(existing),
        partitioned=bool(existing.enable_partitioning),
        **received(existing),
    )


def topic_state(name: str, existing: TopicProperties) -> TopicState:
    """The state of an existing topic, without its subscriptions."""
    return TopicState(
        name=name, duplicate_detection_ms=detection_ms(existing), partitioned=bool(existing.enable_partitioning)
    )


def received(existing: QueueProperties | SubscriptionProperties) -> dict[str, Any]:
    """The common settings of a queue and a subscription, by the names of `QueueState` and `SubscriptionState`."""
    return {
        "lock_duration_ms": _milliseconds(existing.lock_duration),
        "max_delivery_count": existing.max_delivery_count,
        "auto_delete_on_idle_ms": _milliseconds(existing.auto_delete_on_idle),
        "requires_session": bool(existing.requires_session),
        "forward_to": _path(existing.forward_to),
        "forward_dead_letters_to": _path(existing.forward_dead_lettered_messages_to),
        "default_ttl_ms": _milliseconds(existing.default_message_time_to_live),
        "dead_letters_expired": bool(existing.dead_lettering_on_message_expiration),
        "status": str(getattr(existing.status, "value", existing.status) or "Active"),
    }


def _path(target: str | None) -> str:
    """The entity's path in a forwarding target, which the service returns as a URL; empty where there is none."""
    return urlsplit(target).path.strip("/") if target else ""


def detection_ms(existing: QueueProperties | TopicProperties) -> int:
    """The window of duplicate detection, 0 where it is off."""
    if not existing.requires_duplicate_detection:
        return 0
    return _milliseconds(existing.duplicate_detection_history_time_window)


def rule_state(existing: Any) -> RuleState:
    """The state of an existing rule; a correlation filter in a notation of our own."""
    action = getattr(existing.action, "sql_expression", "") or ""
    return RuleState(existing.name, _filter_text(existing.filter), action)


def _filter_text(existing: Any) -> str:
    if isinstance(existing, CorrelationRuleFilter):
        parts = {name: value for name, value in vars(existing).items() if value}
        return f"correlation {parts}"
    return str(getattr(existing, "sql_expression", "") or "")


def _milliseconds(duration: Any) -> int:
    if isinstance(duration, timedelta):
        return min(int(duration / timedelta(milliseconds=1)), INFINITE_MS)
    return INFINITE_MS


def waiting_in_topic(client: Any, topic: str) -> int:
    """The number of messages that deleting a topic would delete: its scheduled messages and those of all its subscriptions."""
    scheduled = int(client.get_topic_runtime_properties(topic).scheduled_message_count or 0)
    each_of = listed(client.list_subscriptions_runtime_properties, topic)
    return scheduled + sum(int(each.total_message_count or 0) for each in each_of)
