"""How files spell the settings of entities.

What it is: one table of settings, and their names in isthmus's own layout and in the emulator's. What it is not: a
reader of files (`config`).
Spec: docs/explanation/protocol.md, Administration, Settlement, Message, Entities for meanings and limits.

Invariants:
    I1. Both layouts know the same settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from isthmus.entities.catalog.description import INFINITE_MS, EntityStatus
from isthmus.entities.catalog.limit import Limits
from isthmus.topology.file.setting import Kind, Setting, Spec

__all__ = ["CORRELATION_FIELDS", "SETTINGS", "Layout", "field_of"]

_MINUTE_MS = 60_000


def _duration(name: str, description: str, minimum: int, maximum: int = INFINITE_MS) -> Setting:
    return Setting(
        name=name, kind=Kind.DURATION, description=description, minimum=minimum, maximum=maximum, example="1m"
    )


def _flag(name: str, description: str) -> Setting:
    return Setting(name=name, kind=Kind.BOOLEAN, description=description, example="true")


def _number(name: str, description: str, minimum: int, maximum: int) -> Setting:
    return Setting(
        name=name, kind=Kind.INTEGER, description=description, minimum=minimum, maximum=maximum, example=str(minimum)
    )


_STATUS = tuple(str(status) for status in EntityStatus)
# Names are the own layout's; a description's field is the same with `_ms` after a duration, the emulator's name the
# same in capitals.
SETTINGS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _duration("lock_duration", "How long a received message stays locked.", 5000, 5 * _MINUTE_MS),
        _number("max_size_in_megabytes", "Size at which sends are refused.", 1, 81_920),
        _flag("requires_duplicate_detection", "Drop messages whose MessageId came before. Fixed at creation."),
        _flag("requires_session", "Take and give messages by session. Fixed at creation."),
        _duration("default_message_time_to_live", "When messages without a life of their own expire.", 1000),
        _flag("dead_lettering_on_message_expiration", "Keep expired messages in the dead-letter queue."),
        _flag("dead_lettering_on_filter_evaluation_exceptions", "Keep messages on which a filter failed."),
        _duration("duplicate_detection_history_time_window", "How long a MessageId is remembered.", 5000, 604_800_000),
        _number("max_delivery_count", "Deliveries before a message is dead-lettered.", 1, 2**31 - 1),
        _flag("enable_batched_operations", "Accepted for compatibility; batching is always on."),
        _flag("enable_partitioning", "Spread over several stores. Fixed at creation."),
        _flag("enable_express", "Accepted for compatibility; every message is durable."),
        _flag("support_ordering", "Whether order is kept."),
        _duration("auto_delete_on_idle", "Idle time after which the entity goes.", 5 * _MINUTE_MS),
        Setting(name="status", kind=Kind.CHOICE, choices=_STATUS, description="What passes.", example="Active"),
        Setting(
            name="forward_to", kind=Kind.ENTITY, description="Where messages are forwarded to.", example="all-orders"
        ),
        Setting(
            name="forward_dead_lettered_messages_to",
            kind=Kind.ENTITY,
            description="Where dead-lettered messages are forwarded to.",
            example="failed",
        ),
        _flag("requires_client_authorization", "Whether a requester of a hybrid connection has to show a token."),
        Setting(name="user_metadata", kind=Kind.TEXT, description="Free text.", example="owner: stock"),
        _number("max_message_size_in_kilobytes", "Greatest message.", 1, 102_400),
        _number("partition_count", "Partitions of an event hub; can be raised later, never lowered.", 1, 1024),
        _duration("message_retention", "Age at which events may be removed.", 1000),
        _number("partition_retention_in_megabytes", "Size at which a partition's oldest events may go.", 1, 1 << 30),
    )
}

CORRELATION_FIELDS = (
    "correlation_id", "message_id", "to", "reply_to", "label", "session_id", "reply_to_session_id", "content_type",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Layout:
    """How one of the two layouts spells what both say."""

    emulator: bool

    def word(self, name: str) -> str:
        """A setting's name, e.g. `lock_duration` or `LockDuration`."""
        return "".join(part.capitalize() for part in name.split("_")) if self.emulator else name

    def spec(self, kind: type[Any], what: str, limits: Limits) -> Spec:
        """The settings of a kind of entity, as far as a namespace's limits allow."""
        known = kind.__dataclass_fields__
        return Spec(
            what,
            f"Settings of a {what}.",
            tuple(
                Setting(**{**_attributes(setting), **_bounds(name, limits), "name": self.word(name)})
                for name, setting in SETTINGS.items()
                if field_of(setting) in known
            ),
        )


def _attributes(setting: Setting) -> dict[str, Any]:
    return {name: getattr(setting, name) for name in Setting.__dataclass_fields__}


def _bounds(name: str, limits: Limits) -> dict[str, Any]:
    """Least and greatest value of a setting, where the namespace's limits say so."""
    bounds = {
        "lock_duration": (limits.min_lock_duration_ms, limits.max_lock_duration_ms),
        "max_size_in_megabytes": (1, limits.max_entity_size_megabytes),
        "duplicate_detection_history_time_window": (limits.min_duplicate_window_ms, limits.max_duplicate_window_ms),
        "max_delivery_count": (1, limits.max_delivery_count),
        "partition_count": (1, limits.max_partitions_per_event_hub),
        "message_retention": (1000, limits.max_event_retention_ms),
        "auto_delete_on_idle": (limits.min_auto_delete_on_idle_ms, INFINITE_MS),
    }.get(name)
    return {} if bounds is None else {"minimum": bounds[0], "maximum": bounds[1]}


def field_of(setting: Setting) -> str:
    """The description's field that a setting fills."""
    return setting.name + ("_ms" if setting.kind is Kind.DURATION else "")
