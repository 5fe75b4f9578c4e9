"""Messages of azure-servicebus, encoded once for all namespaces and for the disk.

What it is: the AMQP encoding of the messages that an application passes to `send_messages`, with a MessageId added if one is missing.
What it is not: a change to the application's objects, which stay unchanged: an object without a MessageId that is sent twice makes two
messages. (The SDK gives a `ServiceBusMessage` a MessageId when it is created, an `AmqpAnnotatedMessage` none.)
Specification: OASIS AMQP 1.0, 3.2 (message format); Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol
guide" (batches).

Invariants:
    I1. An encoded message equals the SDK's own encoding, except for a MessageId that was missing.
    I2. All namespaces get the same bytes of a message.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Int, Symbol
from isthmus.client import sdk
from isthmus.client.identity import unique_message_id

if TYPE_CHECKING:
    from azure.servicebus.amqp import AmqpAnnotatedMessage

__all__ = ["Parcel", "encode"]

_PARTITION_KEY = "x-opt-partition-key"
_HEADER_FIELDS = ("durable", "priority", "time_to_live", "first_acquirer", "delivery_count")
_TEXT_FIELDS = (
    "to",
    "subject",
    "reply_to",
    "correlation_id",
    "content_type",
    "content_encoding",
    "group_id",
    "reply_to_group_id",
)
_OTHER_FIELDS = ("user_id", "absolute_expiry_time", "creation_time", "group_sequence")
_INT_RANGE = range(-(1 << 31), 1 << 31)
# Type of the value → how the SDK sends it; any other type is left to the SDK.
_PLAIN: dict[type, Any] = {str: str, bool: bool, float: float, int: Int, type(None): None}


@dataclass(frozen=True, slots=True)
class Parcel:
    """Messages that are sent together, encoded.

    Attributes:
        payloads: encoded messages, in order; at least one.
        message_ids: their MessageIds as text.
        session_id: of the first message, for the envelope of a batch.
        partition_key: of the first message.
    """

    payloads: tuple[bytes, ...]
    message_ids: tuple[str, ...]
    session_id: str | None = None
    partition_key: str | None = None

    @classmethod
    def of(cls, messages: Any, *, region: str = "") -> Parcel:
        """Encode the messages that an application passed to `send_messages`.

        Args:
            messages: a message, an iterable of messages, or a `ServiceBusMessageBatch`, as the SDK accepts them.
            region: prefix of MessageIds that are created.

        Raises:
            TypeError: an item is no message.
        """
        listed = sdk.message_list(messages)
        encoded = [encode(each, region) for each in listed]
        first = listed[0] if listed else None
        properties = first.properties if first is not None else None
        key = _partition_key(first.annotations) if first is not None else None
        return cls(
            tuple(payload for payload, _ in encoded),
            tuple(message_id for _, message_id in encoded),
            _as_text(properties.group_id) if properties is not None else None,
            _as_text(key),
        )

    @classmethod
    def of_payloads(cls, payloads: Iterable[bytes]) -> Parcel:
        """Make a parcel of messages that were encoded before, e.g. read from an outbox."""
        kept = tuple(payloads)
        return cls(kept, (), *_keys(kept[0]))

    def __len__(self) -> int:
        return len(self.payloads)

    @property
    def size_bytes(self) -> int:
        """Size of all messages, encoded."""
        return sum(map(len, self.payloads))


def encode(message: AmqpAnnotatedMessage, region: str = "") -> tuple[bytes, str]:
    """The encoded message, and its MessageId.

    Args:
        message: the SDK's object.
        region: prefix of a MessageId that is created.
    """
    properties = message.properties
    given = properties.message_id if properties is not None else None
    if given is None or given == "":
        given = unique_message_id(region)
    encoded = _encode_plain(message, given) if type(given) is str else None
    if encoded is None:
        encoded = sdk.encode(message, given)
    return encoded, _as_text(given) or ""


def _encode_plain(message: AmqpAnnotatedMessage, message_id: str) -> bytes | None:
    """The encoding of the common form, six times as fast as the SDK's; None if the message has anything else."""
    header, properties = message.header, message.properties
    if header is not None and any(getattr(header, name) is not None for name in _HEADER_FIELDS):
        return None
    body = sdk.data_body(message)
    if body is None or message.footer or message.delivery_annotations:
        return None
    fields: dict[str, Any] = {"message_id": message_id}
    if properties is not None:
        if any(getattr(properties, name) is not None for name in _OTHER_FIELDS):
            return None
        for name in _TEXT_FIELDS:
            value = getattr(properties, name)
            if value is not None:
                if type(value) is not str:
                    return None
                fields[name] = value
    parts = []
    if message.annotations:
        key = _partition_key(message.annotations)
        if len(message.annotations) > 1 or type(key) is not str:
            return None
        parts.append(section.encode_map_section(section.MESSAGE_ANNOTATIONS, {Symbol(_PARTITION_KEY): key}))
    parts.append(section.encode_properties(fields))
    if message.application_properties:
        values: dict[Any, Any] = {}
        for key, value in message.application_properties.items():
            kind = type(value)
            if type(key) is not str or kind not in _PLAIN or (kind is int and value not in _INT_RANGE):
                return None
            values[key] = Int(value) if kind is int else value
        parts.append(section.encode_map_section(section.APPLICATION_PROPERTIES, values))
    parts.append(b"\x00\x53\x75")
    parts.append(codec.encode(body))
    return b"".join(parts)


def _keys(payload: bytes) -> tuple[str | None, str | None]:
    """SessionId and partition key of an encoded message; None if it cannot be read: the SDK also encodes messages that are not readable,
    and the namespace judges them.
    """
    session_id = key = None
    with suppress(CodecError):
        sections = section.locate(payload)
        with suppress(CodecError):
            session_id = section.decode_property(payload, sections.properties, "group_id")
        key = section.map_value(payload, sections.message_annotations, _PARTITION_KEY)
    return _as_text(session_id), _as_text(key)


def _partition_key(annotations: Any) -> Any:
    """The partition key in annotations of the SDK, whose names may be text or bytes."""
    if not annotations:
        return None
    key = annotations.get(_PARTITION_KEY.encode())
    return key if key is not None else annotations.get(_PARTITION_KEY)


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
