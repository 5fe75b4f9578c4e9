"""A message as an operator sees, selects and sends it.

What it is: the fields of a peeked or delivered message, a SQL filter over it, and its bytes without its broker's
annotations. What it is not: a decoder of bodies.

Invariants:
    I1. Body, properties, application properties, footer and the sender's own annotations are sent unchanged, unless an
        action changes them.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

from isthmus.amqp import codec, section
from isthmus.entities.record.amend import annotations_section, with_annotation, with_properties
from isthmus.entities.record.parse import HeadCache, split
from isthmus.entities.record.record import Parts
from isthmus.entities.record.view import MessageView, changed
from isthmus.message.lifetime import TTL_LIMIT_MS
from isthmus.message.name import DEAD_LETTER_SOURCE, ENQUEUE_SEQUENCE, ENQUEUED_TIME, PARTITION_KEY, SCHEDULED_TIME
from isthmus.operations.time_filter import parse_operator_filter
from isthmus.rules import MISSING, FilterError, Missing, Value, parse_action

__all__ = [
    "STATES",
    "Seen",
    "body_of",
    "entered_as",
    "make_choice",
    "make_change",
    "read",
    "sent_again",
    "sequence_of",
    "session_of",
    "state_of",
]

STATES = ("active", "deferred", "scheduled")

_SEQUENCE = b"\xa3\x15x-opt-sequence-number\x81"
# The bytes before the first pair of a section that is a map: descriptor, code, size and count.
_SMALL_MAP = 3 + 3
_WIDE_MAP = 3 + 9
_BROKER_ANNOTATIONS = ("x-opt-deadletter-source", "x-opt-partition-id", "x-opt-offset")
_DEAD_LETTER_PROPERTIES = ("DeadLetterReason", "DeadLetterErrorDescription")
_PREVIEW_BYTES = 200

_T = TypeVar("_T")


class Seen(NamedTuple):
    """The fields of one message.

    Attributes:
        state: one of `STATES`.
        enqueued_ms: wall time.
        body: its first bytes, as text if it is text.
        unreadable: the parts that cannot be read: a namespace accepts any contents.
        time_to_live_ms: 0 if it has none.
        scheduled_ms: wall time; 0 if it was not scheduled.
        dead_letter_source: the entity in which it was dead-lettered, if it was forwarded since.
    """

    sequence: int
    state: str
    enqueued_ms: int
    delivery_count: int
    size_bytes: int
    message_id: str
    session_id: str
    subject: str
    reason: str
    description: str
    properties: dict[str, Any]
    body: str
    unreadable: tuple[str, ...] = ()
    correlation_id: str = ""
    to: str = ""
    reply_to: str = ""
    reply_to_session_id: str = ""
    content_type: str = ""
    partition_key: str = ""
    time_to_live_ms: int = 0
    scheduled_ms: int = 0
    dead_letter_source: str = ""

    @property
    def others(self) -> dict[str, str]:
        """The fields without a column in a table that are set, by their names in the service's SDKs."""
        found = {
            "CorrelationId": self.correlation_id,
            "To": self.to,
            "ReplyTo": self.reply_to,
            "ReplyToSessionId": self.reply_to_session_id,
            "ContentType": self.content_type,
            "PartitionKey": self.partition_key,
            "TimeToLive": f"{self.time_to_live_ms / 1000:g} s" if self.time_to_live_ms else "",
            "ScheduledEnqueueTime": _moment(self.scheduled_ms) if self.scheduled_ms else "",
            "DeadLetterSource": self.dead_letter_source,
        }
        return {name: value for name, value in found.items() if value}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; values without a JSON type become text."""
        fields: dict[str, Any] = {
            "sequence_number": self.sequence,
            "state": self.state,
            "enqueued_at": _moment(self.enqueued_ms),
            "delivery_count": self.delivery_count,
            "size_bytes": self.size_bytes,
            "message_id": self.message_id,
            "session_id": self.session_id,
            "subject": self.subject,
            "correlation_id": self.correlation_id,
            "to": self.to,
            "reply_to": self.reply_to,
            "reply_to_session_id": self.reply_to_session_id,
            "content_type": self.content_type,
            "partition_key": self.partition_key,
            "time_to_live_ms": self.time_to_live_ms or None,
            "scheduled_at": _moment(self.scheduled_ms) if self.scheduled_ms else "",
            "dead_letter_source": self.dead_letter_source,
            "dead_letter_reason": self.reason,
            "dead_letter_description": self.description,
            "application_properties": {name: _plain(value) for name, value in self.properties.items()},
            "body": self.body,
        }
        return fields | ({"unreadable": list(self.unreadable)} if self.unreadable else {})


def sequence_of(payload: bytes) -> int:
    """The sequence number of a message as delivered or peeked."""
    # Only where the broker writes it: a sender's own annotations may contain the same bytes.
    start, end = section.locate(payload).message_annotations
    at = start + (_WIDE_MAP if payload[start + 3 : start + 4] == b"\xd1" else _SMALL_MAP)
    if end and payload.startswith(_SEQUENCE, at, end):
        return int.from_bytes(payload[at + len(_SEQUENCE) : at + len(_SEQUENCE) + 8], "big", signed=True)
    return int(_annotation(payload, "x-opt-sequence-number") or 0)


def entered_as(payload: bytes) -> int:
    """The sequence number under which a message first entered: the topic's, for one in a subscription."""
    return int(_annotation(payload, ENQUEUE_SEQUENCE) or sequence_of(payload))


def state_of(payload: bytes) -> int:
    """The index in `STATES` of a message as peeked."""
    start, end = section.locate(payload).message_annotations
    if payload.find(b"x-opt-message-state", start, end) < 0:
        return 0
    state = _annotation(payload, "x-opt-message-state")
    return state if state in (0, 1, 2) else 0


def session_of(payload: bytes) -> str:
    """The SessionId; "" if there is none, which may be a session's id too."""
    group_id = section.decode_property(payload, section.locate(payload).properties, "group_id")
    return group_id if isinstance(group_id, str) else ""


def read(payload: bytes) -> Seen:
    """All fields of one message. Unreadable parts are named, and hide no others."""
    sections = section.locate(payload)
    unreadable: list[str] = []

    def part(name: str, bounds: tuple[int, int], decode: Callable[[bytes, tuple[int, int]], _T], otherwise: _T) -> _T:
        try:
            return decode(payload, bounds)
        except codec.CodecError:
            unreadable.append(name)
            return otherwise

    nothing: dict[Any, Any] = {}
    properties = part("properties", sections.properties, section.decode_properties, nothing)
    pairs = part("application_properties", sections.application_properties, section.decode_map, nothing)
    own = {str(name): value for name, value in pairs.items()}
    header = part("header", sections.header, section.decode_header, section.Header())
    part("body", sections.body, _body_values, [])
    scheduled = _annotation(payload, SCHEDULED_TIME)
    return Seen(
        sequence=sequence_of(payload),
        state=STATES[state_of(payload)],
        enqueued_ms=int(_annotation(payload, ENQUEUED_TIME) or 0),
        delivery_count=header.delivery_count,
        size_bytes=len(payload),
        message_id=_shown(properties.get("message_id")),
        session_id=_shown(properties.get("group_id")),
        subject=_shown(properties.get("subject")),
        reason=_shown(own.get("DeadLetterReason")),
        description=_shown(own.get("DeadLetterErrorDescription")),
        properties=own,
        body=_body_text(payload, sections.body, _PREVIEW_BYTES),
        unreadable=tuple(unreadable),
        correlation_id=_shown(properties.get("correlation_id")),
        to=_shown(properties.get("to")),
        reply_to=_shown(properties.get("reply_to")),
        reply_to_session_id=_shown(properties.get("reply_to_group_id")),
        content_type=_shown(properties.get("content_type")),
        partition_key=_shown(_annotation(payload, PARTITION_KEY)),
        time_to_live_ms=header.ttl_ms if header.ttl_ms and header.ttl_ms <= TTL_LIMIT_MS else 0,
        scheduled_ms=scheduled if isinstance(scheduled, int) else 0,
        dead_letter_source=_shown(_annotation(payload, DEAD_LETTER_SOURCE)),
    )


def body_of(payload: bytes) -> str:
    """The whole body as text; bytes that are not text, and a body that cannot be read, in hexadecimal."""
    return _body_text(payload, section.locate(payload).body, None)


class _Delivered(MessageView):
    """A message with its broker's annotations."""

    __slots__ = ("_delivery_count",)

    def __init__(self, payload: bytes) -> None:
        enqueued_ms = int(_annotation(payload, ENQUEUED_TIME) or 0)
        super().__init__(split(payload, HeadCache(0)), sequence_of(payload), enqueued_ms)
        self._delivery_count = section.decode_header(payload, section.locate(payload).header).delivery_count

    def sys(self, name: str, /) -> Value | Missing:
        return self._delivery_count if name == "DeliveryCount" else super().sys(name)


def make_choice(expression: str) -> Callable[[bytes], bool]:
    """A function that selects messages by a SQL filter (`parse_operator_filter`); an empty one selects all.

    A filter that fails on a message, or that uses an unreadable part of it, does not select it.

    Raises:
        RuleSyntaxError: with every fault of the expression.
        InvalidArgumentError: a time is compared with a text that is not a time.
    """
    if not expression:
        return lambda payload: True
    matches = parse_operator_filter(expression).matches

    def chosen(payload: bytes) -> bool:
        try:
            return matches(_Delivered(payload)) is True
        except (FilterError, codec.CodecError):
            return False

    return chosen


def make_change(expression: str) -> Callable[[bytes], Parts]:
    """A function that applies a SQL action to a message; an empty one changes nothing.

    Raises:
        RuleSyntaxError: with every fault of the expression.
    """
    action = parse_action(expression) if expression else None

    def change(payload: bytes) -> Parts:
        view = _Delivered(payload)
        if action is None:
            return view.parts
        before = view.user("rulename")
        parts = changed(view, action.apply(view), "")
        # `changed` is made for rules, which add their name.
        if before is MISSING:
            return parts._replace(rest=with_properties(parts.rest, {}, ["RuleName"]))
        return parts._replace(rest=with_properties(parts.rest, {"RuleName": before}))

    return change


def sent_again(parts: Parts, *, alive: bool = False, is_dead: bool = False) -> bytes:
    """The message as a sender would send it.

    Args:
        parts: the message.
        alive: whether it leaves the dead-letter queue: then reason and description are removed.
        is_dead: whether it goes to another dead-letter queue: then it keeps the position where it was dead-lettered.
    """
    for name in _BROKER_ANNOTATIONS[is_dead:]:
        if name.encode() in parts.head.annotations:
            parts = with_annotation(parts, name, None)
    rest = with_properties(parts.rest, {}, _DEAD_LETTER_PROPERTIES) if alive else parts.rest
    head = parts.head
    delivery = b"" if b"x-opt-lock-token" in head.delivery_annotations else head.delivery_annotations
    annotations = annotations_section(head) if head.annotation_count else b""
    return b"".join((head.header, delivery, annotations, rest))


def _annotation(payload: bytes, name: str) -> Any:
    """An annotation of the broker's: the sender's beside it may be unreadable."""
    return section.map_value(payload, section.locate(payload).message_annotations, name)


def _body_values(payload: bytes, bounds: tuple[int, int]) -> list[Any]:
    """The values of all body sections, which follow each other."""
    values: list[Any] = []
    at = bounds[0]
    while at < bounds[1]:
        value, at = codec.decode(payload, at + 3)
        values.append(value)
    return values


def _body_text(payload: bytes, bounds: tuple[int, int], limit: int | None) -> str:
    try:
        values = _body_values(payload, bounds)
    except codec.CodecError:
        return payload[bounds[0] : bounds[1]][:limit].hex(" ")
    if not all(isinstance(value, bytes) for value in values):
        return "\n".join(str(value) for value in values)[:limit]
    whole = b"".join(values)
    start = whole[:limit]
    try:
        # Cut inside a character is still text; anything else that does not decode is shown as bytes.
        text = codecs.getincrementaldecoder("utf-8")().decode(start, final=len(start) == len(whole))
    except UnicodeDecodeError:
        return start.hex(" ")
    # A whole body may have line breaks.
    is_text = text.isprintable() or (limit is None and all(each.isprintable() or each in "\t\r\n" for each in text))
    return text if is_text else start.hex(" ")


def _moment(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):  # a sender may name any number
        return f"{wall_ms} ms"


def _shown(value: Any) -> str:
    return "" if value is None else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, bool | str | float) or value is None:
        return str(value) if isinstance(value, str) else value
    if isinstance(value, int):
        return int(value)
    return value.hex() if isinstance(value, bytes) else str(value)
