"""The settings of an entity, as an operator writes them: queues, topics, subscriptions, rules.

What it is: plain records with every setting of the service's management API, its defaults, and their form in the
store. What it is not: the Atom XML (the broker's admin part) or the entities themselves (`queue`, `topic`).
Spec: docs/explanation/protocol.md, Administration, Rules, Entities.

Invariants:
    I1. ``load(dump(description)) == description`` for every description.
    I2. A stored description of an older release loads: missing fields take their default, unknown ones are ignored.
"""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar

__all__ = [
    "DEFAULT_RULE_NAME",
    "INFINITE_MS",
    "AuthorizationRule",
    "CorrelationFilter",
    "DateTime",
    "Description",
    "Duration",
    "EntityStatus",
    "FalseFilter",
    "Filter",
    "Parameter",
    "QueueDescription",
    "RuleDescription",
    "SqlAction",
    "SqlFilter",
    "SubscriptionDescription",
    "TopicDescription",
    "TrueFilter",
    "dump",
    "load",
]

# .NET's TimeSpan.MaxValue, P10675199DT2H48M5.4775807S, in whole milliseconds: the service's value for infinite.
INFINITE_MS = 922_337_203_685_477
DEFAULT_RULE_NAME = "$Default"


class EntityStatus(StrEnum):
    """Whether an entity accepts and gives messages (docs/explanation/protocol.md, Entities)."""

    ACTIVE = "Active"
    DISABLED = "Disabled"
    SEND_DISABLED = "SendDisabled"
    RECEIVE_DISABLED = "ReceiveDisabled"


@dataclass(frozen=True, slots=True)
class DateTime:
    """A point in time as a rule's parameter.

    Attributes:
        ms: milliseconds since 1970-01-01T00:00:00Z.
        zoned: whether it was written with a time zone; without one it counts as UTC and is shown without one.
    """

    ms: int
    zoned: bool = True


@dataclass(frozen=True, slots=True)
class Duration:
    """A span of time as a rule's parameter.

    Attributes:
        ms: its length in milliseconds; may be negative.
    """

    ms: int


# Values of SQL parameters and of correlation filters' application properties.
Parameter = str | bool | int | float | bytes | uuid.UUID | DateTime | Duration | None


@dataclass(slots=True)
class AuthorizationRule:
    """A shared access key of one entity.

    Attributes:
        rights: of ``Send``, ``Listen``, ``Manage``.
    """

    key_name: str
    primary_key: str = field(repr=False)
    secondary_key: str = field(repr=False)
    rights: list[str] = field(default_factory=list)
    created_at_ms: int = 0
    modified_at_ms: int = 0


@dataclass(slots=True)
class TrueFilter:
    """Selects every message."""


@dataclass(slots=True)
class FalseFilter:
    """Selects no message."""


@dataclass(slots=True)
class SqlFilter:
    """Selects the messages for which a SQL expression is true."""

    expression: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    compatibility_level: int = 20
    requires_preprocessing: bool = False


@dataclass(slots=True)
class CorrelationFilter:
    """Selects the messages whose fields equal all of the given ones; None is a wildcard."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: dict[str, Parameter] = field(default_factory=dict)


@dataclass(slots=True)
class SqlAction:
    """Changes a message's copy that its rule's filter selected."""

    expression: str
    parameters: dict[str, Parameter] = field(default_factory=dict)
    compatibility_level: int = 20
    requires_preprocessing: bool = False


Filter = TrueFilter | FalseFilter | SqlFilter | CorrelationFilter


@dataclass(slots=True)
class RuleDescription:
    """A filter and, if any, an action, under a name in a subscription."""

    name: str
    filter: Filter = field(default_factory=TrueFilter)
    action: SqlAction | None = None
    created_at_ms: int = 0


@dataclass(slots=True)
class QueueDescription:
    """A queue's settings. Durations are milliseconds; `INFINITE_MS` means without end.

    Attributes:
        forward_to: path of the entity to which messages are forwarded; None keeps them here.
        max_message_size_in_kilobytes: None takes the namespace's limit (`Limits.max_message_size_bytes`).
    """

    lock_duration_ms: int = 60_000
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live_ms: int = INFINITE_MS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window_ms: int = 600_000
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    is_anonymous_accessible: bool = False
    authorization_rules: list[AuthorizationRule] = field(default_factory=list)
    status: EntityStatus = EntityStatus.ACTIVE
    support_ordering: bool = True
    auto_delete_on_idle_ms: int = INFINITE_MS
    enable_partitioning: bool = False
    entity_availability_status: str = "Available"
    enable_express: bool = False
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None


@dataclass(slots=True)
class TopicDescription:
    """A topic's settings. Durations are milliseconds; `INFINITE_MS` means without end."""

    default_message_time_to_live_ms: int = INFINITE_MS
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_ms: int = 600_000
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    is_anonymous_accessible: bool = False
    authorization_rules: list[AuthorizationRule] = field(default_factory=list)
    status: EntityStatus = EntityStatus.ACTIVE
    support_ordering: bool = True
    auto_delete_on_idle_ms: int = INFINITE_MS
    enable_partitioning: bool = False
    entity_availability_status: str = "Available"
    enable_subscription_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str | None = None
    max_message_size_in_kilobytes: int | None = None


@dataclass(slots=True)
class SubscriptionDescription:
    """A subscription's settings. Durations are milliseconds; `INFINITE_MS` means without end."""

    lock_duration_ms: int = 60_000
    requires_session: bool = False
    default_message_time_to_live_ms: int = INFINITE_MS
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    status: EntityStatus = EntityStatus.ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle_ms: int = INFINITE_MS
    entity_availability_status: str = "Available"
    user_metadata: str | None = None


Description = QueueDescription | TopicDescription | SubscriptionDescription | RuleDescription
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        AuthorizationRule,
        CorrelationFilter,
        DateTime,
        Duration,
        FalseFilter,
        QueueDescription,
        RuleDescription,
        SqlAction,
        SqlFilter,
        SubscriptionDescription,
        TopicDescription,
        TrueFilter,
    )
}
_T = TypeVar("_T")


def dump(value: Any) -> bytes:
    """A description in its stored form: JSON, with a ``$`` key naming each record's kind."""
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def load(data: bytes, kind: type[_T]) -> _T:
    """The description that `dump` wrote.

    Raises:
        TypeError: the record is of another kind.
    """
    value = _record(json.loads(data))
    if not isinstance(value, kind):
        raise TypeError(f"stored {type(value).__name__}, expected {kind.__name__}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return str(value)
    if isinstance(value, bytes):
        return {"$": "bytes", "value": base64.b64encode(value).decode()}
    if isinstance(value, uuid.UUID):
        return {"$": "uuid", "value": str(value)}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {"$": "map", "value": [[key, _plain(item)] for key, item in value.items()]}
    if type(value).__name__ in _KINDS:
        return {"$": type(value).__name__, **{f.name: _plain(getattr(value, f.name)) for f in fields(value)}}
    return value


def _record(value: Any) -> Any:
    if isinstance(value, list):
        return [_record(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = value["$"]
    if name == "bytes":
        return base64.b64decode(value["value"])
    if name == "uuid":
        return uuid.UUID(value["value"])
    if name == "map":
        return {key: _record(item) for key, item in value["value"]}
    kind = _KINDS[name]
    known = {f.name for f in fields(kind)}
    record = kind(**{key: _record(item) for key, item in value.items() if key in known})
    if hasattr(record, "status"):
        record.status = EntityStatus(record.status)
    return record
