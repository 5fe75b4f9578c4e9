"""An encoded message as filters and actions see it.

What it is: the `View` of isthmus.rules over a message's parts; each section is decoded when first asked for, once per
message however many rules look. Actions' changes are written back by `changed`.
Spec: SERVICE-BUS.md W14, W15.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from isthmus.amqp import section
from isthmus.amqp.types import Described, Symbol, Timestamp
from isthmus.entities.amend import annotations_section, with_annotation, with_fields, with_properties
from isthmus.entities.parse import normalised_header
from isthmus.entities.record import Parts
from isthmus.rules import MISSING, REMOVED, Changes, Missing, Value

__all__ = ["MessageView", "changed"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMESPAN = Symbol("com.microsoft:timespan")
_FIELDS = {
    "MessageId": "message_id",
    "CorrelationId": "correlation_id",
    "Label": "subject",
    "To": "to",
    "ReplyTo": "reply_to",
    "SessionId": "group_id",
    "ReplyToSessionId": "reply_to_group_id",
    "ContentType": "content_type",
}
_ANNOTATIONS = {
    "PartitionKey": "x-opt-partition-key",
    "ViaPartitionKey": "x-opt-via-partition-key",
    "ScheduledEnqueueTimeUtc": "x-opt-scheduled-enqueue-time",
    "DeadLetterSource": "x-opt-deadletter-source",
}


class MessageView:
    """One message under rules.

    Args:
        parts: the message.
        sequence: its sequence number in the topic.
        enqueued_ms: wall time of acceptance.
    """

    __slots__ = ("_annotations", "_fields", "_lower", "_properties", "_sections", "enqueued_ms", "parts", "sequence")

    def __init__(self, parts: Parts, sequence: int, enqueued_ms: int) -> None:
        self.parts = parts
        self.sequence = sequence
        self.enqueued_ms = enqueued_ms
        self._sections: section.Sections | None = None
        self._fields: dict[str, Any] | None = None
        self._properties: dict[str, Any] | None = None
        self._lower: dict[str, Any] = {}
        self._annotations: dict[str, Any] | None = None

    def _located(self) -> section.Sections:
        if self._sections is None:
            self._sections = section.locate(self.parts.rest)
        return self._sections

    @property
    def properties(self) -> dict[str, Any]:
        """The application properties, as spelt."""
        if self._properties is None:
            decoded = section.decode_map(self.parts.rest, self._located().application_properties)
            self._properties = {str(name): value for name, value in decoded.items()}
            for name, value in self._properties.items():
                self._lower.setdefault(name.lower(), _value(value))
        return self._properties

    def user(self, name: str, /) -> Value | Missing:
        """The application property of that lower-case name."""
        if self._properties is None:
            _ = self.properties
        value: Value | Missing = self._lower.get(name, MISSING)
        return value

    def sys(self, name: str, /) -> Value | Missing:
        """The system property of that canonical name; MISSING if unset, or if a message in a topic has none such."""
        field = _FIELDS.get(name)
        if field is not None:
            if self._fields is None:
                self._fields = section.decode_properties(self.parts.rest, self._located().properties)
            return _text(self._fields.get(field))
        annotation = _ANNOTATIONS.get(name)
        if annotation is not None:
            return _point(self._annotation(annotation))
        if name == "TimeToLive":
            return timedelta(milliseconds=self.parts.head.ttl_ms) if self.parts.head.ttl_ms else MISSING
        if name == "ExpiresAtUtc":
            return _at(self.enqueued_ms + self.parts.head.ttl_ms) if self.parts.head.ttl_ms else MISSING
        if name == "EnqueuedTimeUtc":
            return _at(self.enqueued_ms)
        if name in ("SequenceNumber", "EnqueuedSequenceNumber"):
            return self.sequence
        if name == "DeliveryCount":
            return 0
        if name == "Size":
            head = self.parts.head
            return len(head.header) + len(head.annotations) + len(self.parts.rest)
        return MISSING

    def _annotation(self, name: str) -> Any:
        if self._annotations is None:
            content = annotations_section(self.parts.head)
            self._annotations = {
                str(key): value for key, value in section.decode_map(content, (0, len(content))).items()
            }
        return self._annotations.get(name)


def changed(view: MessageView, changes: Changes, rule_name: str) -> Parts:
    """The copy of a message that a rule with an action makes: RuleName set, then the action's changes."""
    parts = view.parts
    spelt = {name.lower(): name for name in reversed(view.properties)}
    set_properties: dict[str, Any] = {"RuleName": rule_name}
    removed = []
    for key, (name, value) in changes.user.items():
        name = spelt.get(key, name)  # noqa: PLW2901 - an existing property keeps its spelling
        if value is REMOVED:
            removed.append(name)
            set_properties.pop(name, None)
        else:
            set_properties[name] = _amqp(value)
    fields: dict[str, Any] = {}
    for name, value in changes.sys.items():
        plain = None if value is REMOVED else _amqp(value)
        if name in _FIELDS:
            fields[_FIELDS[name]] = plain
        elif name in _ANNOTATIONS:
            parts = with_annotation(parts, _ANNOTATIONS[name], plain)
        elif name == "TimeToLive":
            ttl_ms = None if value is REMOVED else max(0, int(value / timedelta(milliseconds=1)))  # type: ignore[operator]
            header = parts.head.header
            # Durable and priority stand after the section's six bytes; priority is null or has two.
            flags = header[6 : 8 if header[7] == 0x40 else 9]
            raw, effective = normalised_header(section.Header(ttl_ms=ttl_ms), 0, flags)
            parts = parts._replace(head=parts.head.replace(header=raw, ttl_ms=effective))
    rest = with_properties(parts.rest, set_properties, removed)
    if fields:
        rest = with_fields(rest, fields)
    return parts._replace(rest=rest)


def _text(value: Any) -> Value | Missing:
    """Message ids and correlation ids of other types than string compare as text, as clients show them."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return str(value)
    if isinstance(value, UUID | int):
        return str(value)
    return value.hex() if isinstance(value, bytes) else MISSING


def _point(value: Any) -> Value | Missing:
    if value is None:
        return MISSING
    return _at(value) if isinstance(value, Timestamp) else value


def _at(ms: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=ms)


def _value(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return _at(value)
    if isinstance(value, Described) and value.descriptor == _TIMESPAN:
        return timedelta(microseconds=value.value // 10)
    return value


def _amqp(value: Any) -> Any:
    """A value of the rules language as AMQP carries it; a timespan goes as the .NET SDK sends it, in ticks of 100 ns."""
    if isinstance(value, datetime):
        return Timestamp((value - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, timedelta):
        return Described(_TIMESPAN, value // timedelta(microseconds=1) * 10)
    return value
