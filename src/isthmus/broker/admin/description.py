"""Queues, topics and subscriptions as XML.

What it is: the tables of elements, in the service's order, and the two directions over them. What it is not: the Atom
envelope (`atom`) or rules (`rule`).
Spec: docs/explanation/protocol.md, Administration.

Invariants:
    I1. A written description reads back equal.
    I2. Every element that the JavaScript and Go clients require is always written.
    I3. ``CountDetails`` declares its prefix itself, as its only attribute: the JavaScript client finds it in no other form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from isthmus.broker.admin import setting
from isthmus.broker.admin.atom import SERVICE_BUS, format_time
from isthmus.broker.admin.document import Node, element, text_element
from isthmus.broker.admin.setting import Setting
from isthmus.broker.security.rule import merge_rules
from isthmus.entities.catalog.description import (
    AuthorizationRule,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.runtime import Runtime
from isthmus.errors import InvalidArgumentError

__all__ = ["INSTANCE", "read_description", "read_rules", "write_description", "write_rules"]

INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"
_COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

AnyDescription = QueueDescription | TopicDescription | SubscriptionDescription
_D = TypeVar("_D", QueueDescription, TopicDescription, SubscriptionDescription)
# The elements with the namespace's values of an entity, besides those that the operator set.
_Fact = tuple[str, Callable[[Runtime], str]]


def _time(field: str) -> Callable[[Runtime], str]:
    return lambda runtime: format_time(getattr(runtime, field))


def _count(field: str) -> Callable[[Runtime], str]:
    return lambda runtime: str(getattr(runtime, field))


_SIZE: _Fact = ("SizeInBytes", _count("size_bytes"))
_MESSAGES: _Fact = ("MessageCount", _count("message_count"))
_CREATED: _Fact = ("CreatedAt", _time("created_at_ms"))
_UPDATED: _Fact = ("UpdatedAt", _time("updated_at_ms"))
_ACCESSED: _Fact = ("AccessedAt", _time("accessed_at_ms"))

_LOCK = Setting("LockDuration", "lock_duration_ms", setting.duration)
_SIZE_LIMIT = Setting("MaxSizeInMegabytes", "max_size_in_megabytes", setting.number)
_DETECTION = Setting("RequiresDuplicateDetection", "requires_duplicate_detection", setting.boolean)
_SESSION = Setting("RequiresSession", "requires_session", setting.boolean)
_TIME_TO_LIVE = Setting("DefaultMessageTimeToLive", "default_message_time_to_live_ms", setting.duration)
_EXPIRED = Setting("DeadLetteringOnMessageExpiration", "dead_lettering_on_message_expiration", setting.boolean)
_WINDOW = Setting("DuplicateDetectionHistoryTimeWindow", "duplicate_detection_history_time_window_ms", setting.duration)
_DELIVERIES = Setting("MaxDeliveryCount", "max_delivery_count", setting.number)
_BATCHED = Setting("EnableBatchedOperations", "enable_batched_operations", setting.boolean)
_ANONYMOUS = Setting("IsAnonymousAccessible", "is_anonymous_accessible", setting.boolean)
_STATUS = Setting("Status", "status", setting.status)
_ORDERING = Setting("SupportOrdering", "support_ordering", setting.boolean)
_IDLE = Setting("AutoDeleteOnIdle", "auto_delete_on_idle_ms", setting.duration)
_PARTITIONING = Setting("EnablePartitioning", "enable_partitioning", setting.boolean)
_EXPRESS = Setting("EnableExpress", "enable_express", setting.boolean)
_FORWARD = Setting("ForwardTo", "forward_to", setting.forward)
_FORWARD_DEAD = Setting("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_messages_to", setting.forward)
_METADATA = Setting("UserMetadata", "user_metadata", setting.text)
_MESSAGE_SIZE = Setting("MaxMessageSizeInKilobytes", "max_message_size_in_kilobytes", setting.number, since="2021-05")

# Elements with names in capitals are written by a function of their own.
_RULES, _DETAILS, _AVAILABILITY = "AuthorizationRules", "CountDetails", "EntityAvailabilityStatus"
_Row = Setting | _Fact | str

_QUEUE: Sequence[_Row] = (
    _LOCK, _SIZE_LIMIT, _DETECTION, _SESSION, _TIME_TO_LIVE, _EXPIRED, _WINDOW, _DELIVERIES, _BATCHED, _SIZE, _MESSAGES,
    _ANONYMOUS, _RULES, _STATUS, _CREATED, _UPDATED, _ACCESSED, _ORDERING, _DETAILS, _IDLE, _PARTITIONING, _AVAILABILITY,
    _EXPRESS, _FORWARD, _METADATA, _FORWARD_DEAD, _MESSAGE_SIZE,
)  # fmt: skip
_TOPIC: Sequence[_Row] = (
    _TIME_TO_LIVE, _SIZE_LIMIT, _DETECTION, _WINDOW, _BATCHED, _SIZE,
    Setting("FilteringMessagesBeforePublishing", "filtering_messages_before_publishing", setting.boolean),
    _ANONYMOUS, _RULES, _STATUS, _CREATED, _UPDATED, _ACCESSED, _ORDERING, _DETAILS,
    ("SubscriptionCount", _count("subscription_count")),
    ("SqlFilterCount", _count("sql_filter_count")),
    ("CorrelationFilterCount", _count("correlation_filter_count")),
    _IDLE, _PARTITIONING, _AVAILABILITY,
    Setting("EnableSubscriptionPartitioning", "enable_subscription_partitioning", setting.boolean),
    _EXPRESS, _METADATA, _MESSAGE_SIZE,
)  # fmt: skip
_SUBSCRIPTION: Sequence[_Row] = (
    _LOCK, _SESSION, _TIME_TO_LIVE, _EXPIRED,
    Setting("DeadLetteringOnFilterEvaluationExceptions", "dead_lettering_on_filter_evaluation_exceptions", setting.boolean),
    _MESSAGES, _DELIVERIES, _BATCHED, _STATUS, _FORWARD, _CREATED, _UPDATED, _ACCESSED, _DETAILS, _FORWARD_DEAD, _IDLE,
    _AVAILABILITY, _METADATA,
)  # fmt: skip
_TABLES: dict[type[AnyDescription], Sequence[_Row]] = {
    QueueDescription: _QUEUE,
    TopicDescription: _TOPIC,
    SubscriptionDescription: _SUBSCRIPTION,
}
_FILTER_COUNTS = ("SqlFilterCount", "CorrelationFilterCount")
_FILTER_COUNTS_SINCE = "2024-05"


def read_description(node: Node, kind: type[_D], *, current: _D | None = None, api_version: str, now_ms: int) -> _D:
    """The description in an element; settings that the element omits take their defaults.

    Args:
        node: the ``QueueDescription``, ``TopicDescription`` or ``SubscriptionDescription``.
        kind: which of them it is.
        current: on an update, what exists now; it gives the settings that `api_version` does not know yet, and the
            creation times of authorization rules.
        api_version: of the request.
        now_ms: wall time, for new authorization rules.

    Raises:
        InvalidArgumentError: a value is malformed, or its setting is newer than `api_version`.
    """
    values: dict[str, Any] = {}
    for row in _TABLES[kind]:
        if isinstance(row, Setting):
            value = node.find_text(row.name)
            if value is not None and api_version < row.since:
                raise InvalidArgumentError(
                    f"{row.name} is a setting of api-version {row.since} and later; the request has {api_version}."
                )
            if value is not None:
                values[row.field] = row.parse(value)
            elif current is not None and api_version < row.since:
                values[row.field] = getattr(current, row.field)
        elif row == _RULES and (rules := node.find(_RULES)) is not None:
            values["authorization_rules"] = read_rules(rules, getattr(current, "authorization_rules", []), now_ms)
    return kind(**values)


def write_description(
    description: AnyDescription,
    runtime: Runtime,
    *,
    host: str,
    api_version: str,
    message_size_limit_bytes: int,
) -> str:
    """The element of a description with the runtime values of the entity.

    Args:
        description: what the operator set.
        runtime: counts and times.
        host: the authority that clients know the namespace by, for forwarding targets.
        api_version: of the request; elements that it does not know are left out.
        message_size_limit_bytes: the namespace's limit, shown where the entity sets none of its own.
    """
    parts: list[str] = []
    for row in _TABLES[type(description)]:
        if isinstance(row, Setting):
            value = getattr(description, row.field)
            if row is _MESSAGE_SIZE and value is None:
                value = message_size_limit_bytes // 1024
            if value is not None and api_version >= row.since:
                parts.append(text_element(row.name, row.codec.write(value, host)))
        elif row == _DETAILS:
            parts.append(_count_details(runtime))
        elif row == _AVAILABILITY:
            parts.append(text_element(row, description.entity_availability_status))
        elif row == _RULES:
            parts.append(write_rules(getattr(description, "authorization_rules", [])))
        elif isinstance(row, tuple) and (row[0] not in _FILTER_COUNTS or api_version >= _FILTER_COUNTS_SINCE):
            parts.append(text_element(row[0], row[1](runtime)))
    return element(type(description).__name__, "".join(parts), {"xmlns": SERVICE_BUS, "xmlns:i": INSTANCE})


def _count_details(runtime: Runtime) -> str:
    counts = {
        "ActiveMessageCount": runtime.active_message_count,
        "DeadLetterMessageCount": runtime.dead_letter_message_count,
        "ScheduledMessageCount": runtime.scheduled_message_count,
        "TransferMessageCount": runtime.transfer_message_count,
        "TransferDeadLetterMessageCount": runtime.transfer_dead_letter_message_count,
    }
    inside = "".join(text_element(f"d2p1:{name}", str(count)) for name, count in counts.items())
    return element(_DETAILS, inside, {"xmlns:d2p1": _COUNTS})


def read_rules(node: Node, current: list[AuthorizationRule], now_ms: int) -> list[AuthorizationRule]:
    """The rules in an element, completed by those that exist."""
    rules = []
    for child in node.find_all("AuthorizationRule"):
        name = child.find_text("KeyName") or ""
        rights = child.find("Rights")
        rules.append(
            AuthorizationRule(
                key_name=name,
                primary_key=child.find_text("PrimaryKey") or "",
                secondary_key=child.find_text("SecondaryKey") or "",
                rights=[right.text.strip() for right in rights.children] if rights is not None else [],
            )
        )
    return merge_rules(rules, current, now_ms)


def write_rules(rules: list[AuthorizationRule]) -> str:
    """Rules as an element, keys included."""
    return element(
        _RULES,
        "".join(
            element(
                "AuthorizationRule",
                text_element("ClaimType", "SharedAccessKey")
                + text_element("ClaimValue", "None")
                + element("Rights", "".join(text_element("AccessRights", right) for right in rule.rights))
                + text_element("CreatedTime", format_time(rule.created_at_ms))
                + text_element("ModifiedTime", format_time(rule.modified_at_ms))
                + text_element("KeyName", rule.key_name)
                + text_element("PrimaryKey", rule.primary_key)
                + text_element("SecondaryKey", rule.secondary_key),
                {"i:type": "SharedAccessAuthorizationRule"},
            )
            for rule in rules
        ),
    )
