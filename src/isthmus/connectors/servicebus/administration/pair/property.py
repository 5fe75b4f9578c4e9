"""Descriptions of a pair's entities and the properties of azure-servicebus's administration client.

What it is: pure translation, in both directions. What it is not: any call of the client (`member`).

Invariants:
    I1. Every setting that the client can read and write is translated; values that only the service sets (times, counts,
        availability) are not.
    I2. A copy is made of the client's own object for the original, so that no filter, parameter or key is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    QueueProperties,
    RuleProperties,
    SubscriptionProperties,
    TopicProperties,
)

from isthmus.topology.file.duration import INFINITE_MS, format_ms
from isthmus.topology.pair.description import AccessRule, Description

__all__ = ["applied", "creation", "describe_queue", "describe_rule", "describe_subscription", "describe_topic"]

_ENDLESS = "P10675199DT2H48M5.4775807S"
_RECEIVING = (
    "lock_duration",
    "max_delivery_count",
    "requires_session",
    "dead_lettering_on_message_expiration",
    "forward_to",
    "forward_dead_lettered_messages_to",
)
_BOTH = (
    "auto_delete_on_idle",
    "default_message_time_to_live",
    "enable_batched_operations",
    "user_metadata",
    "status",
)
_STORING = (
    "requires_duplicate_detection",
    "duplicate_detection_history_time_window",
    "enable_partitioning",
    "enable_express",
    "max_size_in_megabytes",
    "max_message_size_in_kilobytes",
    "authorization_rules",
)
_QUEUE = (*_RECEIVING, *_BOTH, *_STORING)
_TOPIC = (*_BOTH, *_STORING, "support_ordering", "filtering_messages_before_publishing")
_SUBSCRIPTION = (*_RECEIVING, *_BOTH, "dead_lettering_on_filter_evaluation_exceptions")
_FORWARDING = ("forward_to", "forward_dead_lettered_messages_to")
_CORRELATION = (
    "correlation_id",
    "message_id",
    "to",
    "reply_to",
    "label",
    "session_id",
    "reply_to_session_id",
    "content_type",
)


# Spaces between words have no meaning; within a literal or a quoted name they do.
_QUOTED_OR_SPACES = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\[[^\]]*\]|\s+""")


def describe_queue(existing: QueueProperties) -> Description:
    """The description of an existing queue."""
    return Description(kind="queue", names=(existing.name,), settings=_settings(existing, _QUEUE), native=existing)


def describe_topic(existing: TopicProperties) -> Description:
    """The description of an existing topic."""
    return Description(kind="topic", names=(existing.name,), settings=_settings(existing, _TOPIC), native=existing)


def describe_subscription(topic: str, existing: SubscriptionProperties) -> Description:
    """The description of an existing subscription."""
    settings = _settings(existing, _SUBSCRIPTION)
    return Description(kind="subscription", names=(topic, existing.name), settings=settings, native=existing)


def describe_rule(topic: str, subscription: str, existing: RuleProperties) -> Description:
    """The description of an existing rule."""
    settings = {"filter": _filter(existing.filter), "action": _sql(existing.action)}
    return Description(kind="rule", names=(topic, subscription, existing.name), settings=settings, native=existing)


def creation(wanted: Description) -> dict[str, Any]:
    """Keyword arguments of the client's `create_…` for a copy. Without the status: the client has no argument for it."""
    names = {"queue": _QUEUE, "topic": _TOPIC, "subscription": _SUBSCRIPTION}[wanted.kind]
    values = {name: _value(name, wanted) for name in names if name != "status"}
    if not wanted.settings.get("requires_duplicate_detection"):
        values.pop("duplicate_detection_history_time_window", None)
    if wanted.settings.get("enable_partitioning"):
        values.pop(
            "max_size_in_megabytes", None
        )  # of a partitioned entity the service reports the total of all its partitions
    return {name: value for name, value in values.items() if value is not None}


def applied(existing: Any, wanted: Description, names: Iterable[str]) -> Any:
    """The properties of an entity, read at the standby member, with these settings of the wanted one."""
    for name in names:
        setattr(existing, name, _value(name, wanted))
    return existing


def _settings(existing: Any, names: Iterable[str]) -> dict[str, Any]:
    found = {name: _canonical(name, getattr(existing, name, None)) for name in names}
    if not found.get("requires_duplicate_detection"):
        found.pop("duplicate_detection_history_time_window", None)
    if found.get("enable_partitioning"):
        found.pop("max_size_in_megabytes", None)  # see `creation`
    return found


def _canonical(name: str, value: Any) -> Any:
    if name in _FORWARDING:
        return urlsplit(value).path.strip("/") if value else ""
    if name == "user_metadata":
        return value or ""
    if name == "status":
        return str(getattr(value, "value", value) or "Active")
    if name == "authorization_rules":
        return tuple(sorted(map(_access, value or ()), key=lambda rule: rule.name))
    if isinstance(value, timedelta):
        return _milliseconds(value)
    if isinstance(value, str) and value.startswith("P"):
        return INFINITE_MS
    return value


def _milliseconds(value: timedelta) -> int:
    length_ms = int(value / timedelta(milliseconds=1))
    # The client rounds the largest TimeSpan; all values written `infinite` are one value.
    return INFINITE_MS if format_ms(length_ms) == format_ms(INFINITE_MS) else length_ms


def _access(rule: AuthorizationRule) -> AccessRule:
    rights = [str(getattr(right, "value", right)) for right in rule.rights or ()]
    return AccessRule.of(str(rule.key_name), rights, rule.primary_key or "", rule.secondary_key or "")


def _value(name: str, wanted: Description) -> Any:
    """A setting with the client's type."""
    value = wanted.settings.get(name)
    if name == "authorization_rules":
        return getattr(wanted.native, name, None) or []
    if name in _FORWARDING:
        return value or None
    if name == "user_metadata":
        return value or ""
    if (
        isinstance(value, int)
        and not isinstance(value, bool)
        and isinstance(getattr(wanted.native, name, None), timedelta | str)
    ):
        return _ENDLESS if value >= INFINITE_MS else timedelta(milliseconds=value)
    return value


def _filter(existing: Any) -> tuple[Any, ...]:
    if isinstance(existing, CorrelationRuleFilter):
        parts = tuple((name, getattr(existing, name)) for name in _CORRELATION if getattr(existing, name))
        return ("correlation", parts, _parameters(existing.properties))
    return ("sql", *_sql(existing))


def _sql(existing: Any) -> tuple[Any, ...]:
    text = str(getattr(existing, "sql_expression", "") or "").strip()
    text = _QUOTED_OR_SPACES.sub(lambda found: " " if found[0].isspace() else found[0], text)
    return (text, _parameters(getattr(existing, "parameters", None)))


def _parameters(found: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, f"{type(value).__name__} {value}") for name, value in (found or {}).items()))
