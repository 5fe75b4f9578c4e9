"""An encoded message as filters and actions access it.

What it is: the `View` of isthmus.rules over a message's parts; each section is decoded at its first access, once per
message however many rules read it. Actions' changes are written back by `changed`.
Spec: docs/explanation/protocol.md, Rules, Filter language.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

from isthmus.amqp import codec, section
from isthmus.amqp.codec import value_end
from isthmus.amqp.types import Described, Symbol, Timestamp
from isthmus.entities.record.amend import annotations_section, with_annotation, with_fields
from isthmus.entities.record.parse import normalised_header
from isthmus.entities.record.record import Parts, size_of
from isthmus.rules import MISSING, REMOVED, Changes, Missing, Value

__all__ = ["MessageView", "changed", "moment"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The one character beyond ASCII whose lower case is in ASCII: the Kelvin sign is a k.
_KELVIN = "\N{KELVIN SIGN}".encode()
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
    """One message for the evaluation of rules.

    Args:
        parts: the message.
        sequence: its sequence number in the topic.
        enqueued_ms: wall time of acceptance.
    """

    __slots__ = ("_annotations", "_fields", "_low", "_span", "_user", "enqueued_ms", "parts", "sequence")

    def __init__(self, parts: Parts, sequence: int, enqueued_ms: int) -> None:
        self.parts = parts
        self.sequence = sequence
        self.enqueued_ms = enqueued_ms
        self._span: tuple[int, int] | None = None
        self._low: bytes | None = None
        self._user: dict[str, tuple[int, int, int]] | None = None
        self._fields: dict[str, Any] | None = None
        self._annotations: dict[str, Any] | None = None

    @property
    def span(self) -> tuple[int, int]:
        """Start and end of the application properties in `parts.rest`; both are their future position if there are none."""
        if self._span is None:
            rest = self.parts.rest
            start = 0
            if rest[:3] == b"\0Ss":
                start = 5 + rest[4] if rest[3] == 0xC0 else value_end(rest, 3)
            end = start
            if rest[start : start + 3] == b"\0St":
                end = start + 5 + rest[start + 4] if rest[start + 3] == 0xC1 else value_end(rest, start + 3)
            self._span = start, end
        return self._span

    def locate(self, name: str) -> tuple[int, int, int] | None:
        """Start of the key, start of the value, and end of the application property of a lower-case name; None if it is unset."""
        if self._user is None:
            if self._low is None:
                start, end = self.span
                self._low = self.parts.rest[start:end].lower()
            # Most filters read a property that most messages do not have.
            if name.isascii() and name.encode() not in self._low and _KELVIN not in self._low:
                return None
            self._user = self._read_user()
        return self._user.get(name)

    def _read_user(self) -> dict[str, tuple[int, int, int]]:
        rest = self.parts.rest
        start, end = self.span
        found: dict[str, tuple[int, int, int]] = {}
        for key, value, after in section.map_items(rest, (start, end) if end > start else (0, 0)):
            try:
                name = rest[key + 2 : value].decode() if rest[key] == 0xA1 else str(codec.decode(rest, key)[0])
            except UnicodeDecodeError as error:
                raise codec.CodecError(f"an application property's name cannot be read: {error}") from None
            found.setdefault(name.lower(), (key, value, after))
        return found

    def user(self, name: str, /) -> Value | Missing:
        """The application property of that lower-case name."""
        found = self.locate(name)
        if found is None:
            return MISSING
        value: Value | Missing = _value(codec.decode(self.parts.rest, found[1])[0])
        return value

    def sys(self, name: str, /) -> Value | Missing:
        """The system property of that canonical name; MISSING if unset, or if a message in a topic never has it."""
        field = _FIELDS.get(name)
        if field is not None:
            if self._fields is None:
                start = self.span[0]
                self._fields = section.decode_properties(self.parts.rest, (0, start))
            return _text(self._fields.get(field))
        annotation = _ANNOTATIONS.get(name)
        if annotation is not None:
            value = self._annotation(annotation)
            return _point(value) if name == "ScheduledEnqueueTimeUtc" else _text(value)
        if name == "TimeToLive":
            return timedelta(milliseconds=self.parts.head.ttl_ms) if self.parts.head.ttl_ms else MISSING
        if name == "ExpiresAtUtc":
            return moment(self.enqueued_ms + self.parts.head.ttl_ms) if self.parts.head.ttl_ms else MISSING
        if name == "EnqueuedTimeUtc":
            return moment(self.enqueued_ms)
        if name in ("SequenceNumber", "EnqueuedSequenceNumber"):
            return self.sequence
        if name == "DeliveryCount":
            return 0
        if name == "Size":
            return size_of(self.parts)
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
    wanted: dict[str, tuple[str, Any]] = {"rulename": ("RuleName", rule_name)}
    wanted.update(changes.user)
    rest = _with_user(view, wanted)
    fields: dict[str, Any] = {}
    for name, value in changes.sys.items():
        plain = None if value is REMOVED else _amqp(value)
        if name in _FIELDS:
            fields[_FIELDS[name]] = plain
        elif name in _ANNOTATIONS:
            parts = with_annotation(parts, _ANNOTATIONS[name], plain)
        elif name == "TimeToLive":
            ttl_ms = max(0, value // timedelta(milliseconds=1)) if isinstance(value, timedelta) else None
            header = parts.head.header
            # Durable and priority are after the section's six bytes; priority is null or has two bytes.
            flags = header[6 : 8 if header[7] == 0x40 else 9]
            raw, effective = normalised_header(section.Header(ttl_ms=ttl_ms), 0, flags)
            parts = parts._replace(head=parts.head.replace(header=raw, ttl_ms=effective))
    if fields:
        rest = with_fields(rest, fields)
        if "message_id" in fields:
            parts = parts._replace(message_id=b"")  # of the message as it was; the copy's is read from its bytes
    return parts._replace(rest=rest)


def _with_user(view: MessageView, wanted: Mapping[str, tuple[str, Any]]) -> bytes:
    """The message from the properties on, with application properties set or removed.

    An existing property keeps its spelling and its position.
    """
    rest = view.parts.rest
    added = [_pair(name, value) for name, value in wanted.values() if value is not REMOVED]
    start, end = view.span
    if all(view.locate(name) is None for name in wanted):
        if end == start:
            return rest[:start] + _user_section(b"".join(added), 2 * len(added)) + rest[start:]
        if rest[start + 3] == 0xC1:
            kept, count = start + 6, rest[start + 5]
        else:
            kept, count = start + 12, int.from_bytes(rest[start + 8 : start + 12], "big")
        content = rest[kept:end] + b"".join(added)
        return rest[:start] + _user_section(content, count + 2 * len(added)) + rest[end:]
    pairs = []
    left = dict(wanted)
    for key, value, after in section.map_items(rest, (start, end)):
        name = str(codec.decode(rest, key)[0]).lower()
        if name not in wanted:
            pairs.append(rest[key:after])
        elif name in left:
            _, new = left.pop(name)
            if new is not REMOVED:
                pairs.append(rest[key:value] + codec.encode(_amqp(new)))
    pairs += [_pair(name, value) for name, value in left.values() if value is not REMOVED]
    return rest[:start] + _user_section(b"".join(pairs), 2 * len(pairs)) + rest[end:]


def _user_section(content: bytes, count: int) -> bytes:
    return b"\0St\xd1" + (len(content) + 4).to_bytes(4, "big") + count.to_bytes(4, "big") + content if count else b""


def _pair(name: str, value: Any) -> bytes:
    if isinstance(value, int) or (isinstance(value, str) and len(value) <= 64):
        return _short_pair(name, value, type(value).__name__)
    return _long_pair(name, value)


def _long_pair(name: str, value: Any) -> bytes:
    return codec.encode(name) + codec.encode(_amqp(value))


@lru_cache(1024)
def _short_pair(name: str, value: Any, _kind: str) -> bytes:
    """As `_long_pair`, remembered: actions mostly set constants. The type is part of the key: 1 is not True."""
    return _long_pair(name, value)


def _text(value: Any) -> Value | Missing:
    """Ids and keys of other types than string are compared as text, as clients show them."""
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
    return moment(value) if isinstance(value, Timestamp) else value


def moment(ms: int) -> datetime:
    """A time; one beyond the possible years is the first or the last possible one."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if ms > 0 else datetime.min.replace(tzinfo=UTC)


def _value(value: Any) -> Any:
    if isinstance(value, Timestamp):
        return moment(value)
    if isinstance(value, Described) and value.descriptor == _TIMESPAN and isinstance(value.value, int):
        return timedelta(microseconds=value.value // 10)
    return value


def _amqp(value: Any) -> Any:
    """A value of the rules language as an AMQP value; a timespan is sent like the .NET SDK does, in ticks of 100 ns."""
    if isinstance(value, datetime):
        return Timestamp((value - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, timedelta):
        return Described(_TIMESPAN, value // timedelta(microseconds=1) * 10)
    return value
