"""MessageIds that are unique across regions, and new messages made from received ones.

What it is: the functions by which an application makes equal messages recognisable as equal, and different ones as different, across
namespaces. What it is not: the seen list, which compares them.
See docs/explanation/guarantees.md for the marks and the provenance of copies.

Invariants:
    I1. `republish` leaves no property by which a route or a rule would mistake the new message for the copy that it was made from.
    I2. It keeps everything else: body, MessageId, SessionId, PartitionKey, CorrelationId, times, application properties.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from isthmus.message.name import (
    BROKER_ANNOTATIONS,
    CANARY,
    MESSAGE_ID,
    OWN_PROPERTIES,
    RESENT,
    WHY_DESCRIPTION,
    WHY_REASON,
    WHY_ROUTE,
    WHY_SOURCE,
)

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

__all__ = ["mended", "origin_of", "republish", "unique_message_id"]

DEFAULT_MARKS = ("replication",)
"""The mark of Microsoft's guides, set on a task with `mark: replication`."""

_MARK_PREFIX = "isthmus-"  # isthmus-TASK-HASH, isthmus-TASK-spilled, isthmus-canary
_ADDED = OWN_PROPERTIES | {CANARY, RESENT, WHY_REASON, WHY_DESCRIPTION, WHY_SOURCE, WHY_ROUTE}


def unique_message_id(region: str = "") -> str:
    """A MessageId that no other sender, process or region creates.

    Args:
        region: a prefix of the random part, for readers of logs.
    """
    made = uuid.uuid4().hex
    return f"{region}-{made}" if region else made


def republish(
    message: ServiceBusReceivedMessage, *, message_id: str | None = None, marks: Iterable[str] = DEFAULT_MARKS
) -> ServiceBusMessage:
    """A new message made from a received one, without the marks and the provenance of a copy.

    azure-servicebus returns text and binary values of a received message alike as bytes. Bytes that are UTF-8 are sent as text, since the
    SDK sends no other text. The SDK returns an AMQP timestamp as a number, which stays a number.

    Args:
        message: the received message.
        message_id: its MessageId; None keeps the sender's own.
        marks: the mark names that tasks were given (`mark: NAME`); default marks (`isthmus-…`) are recognised without it.
    """
    from azure.servicebus.amqp import AmqpMessageBodyType

    received = message.raw_amqp_message
    marked = frozenset(marks)
    properties = _properties(message)
    own_id = properties.get(MESSAGE_ID)
    kept = {
        name: value
        for name, value in properties.items()
        if name not in _ADDED and name not in marked and not (isinstance(name, str) and name.startswith(_MARK_PREFIX))
    }
    body: dict[str, Any]
    if received.body_type is AmqpMessageBodyType.DATA:
        body = {"data_body": [bytes(part) for part in received.body]}
    elif received.body_type is AmqpMessageBodyType.SEQUENCE:
        body = {"sequence_body": [_text(part) for part in received.body]}
    else:
        body = {"value_body": _text(received.body)}
    if message_id is None and isinstance(own_id, str):
        message_id = own_id
    return _remade(message, body, kept, message_id)


def mended(message: ServiceBusReceivedMessage, body: bytes | str) -> ServiceBusMessage:
    """A replacement with a corrected body for a message that a step diverted; send it to the queue that the message was diverted to.

    It keeps the properties that record its origin, so that `isthmus redrive --diverted` sends it on as the original message. Its MessageId is
    new, since duplicate detection would drop a second message with the former one; the former is in `repl-message-id`, and is the MessageId
    of the redriven copy. Send the new message, then complete the received one.

    Args:
        message: the received message.
        body: the corrected body.
    """
    properties = _properties(message)
    given = None
    if message.message_id is not None:
        properties.setdefault(MESSAGE_ID, message.message_id)
        given = unique_message_id()
    return _remade(message, {"data_body": [body.encode() if isinstance(body, str) else body]}, properties, given)


def _properties(message: ServiceBusReceivedMessage) -> dict[Any, Any]:
    return {_text(name): _text(value) for name, value in _items(message.raw_amqp_message.application_properties)}


def _remade(
    message: ServiceBusReceivedMessage, body: dict[str, Any], properties: dict[Any, Any], message_id: str | None
) -> ServiceBusMessage:
    """The message as a sender builds it, with this body and these application properties; `message_id` None: the message's own."""
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

    received = message.raw_amqp_message
    made = AmqpAnnotatedMessage(**body)
    made.application_properties = properties or None
    made.annotations = {
        _text(name): _text(value)
        for name, value in _items(received.annotations)
        if _text(name) not in BROKER_ANNOTATIONS
    } or None
    made.footer = received.footer
    header = AmqpMessageHeader()
    if received.header is not None:
        header.time_to_live = received.header.time_to_live
        header.priority = received.header.priority
        header.durable = received.header.durable
    made.header = header
    fields = AmqpMessageProperties()
    if received.properties is not None:
        for name, value in _items(received.properties):
            setattr(fields, name, value if name == "user_id" else _text(value))
    if message_id is not None:
        fields.message_id = message_id
    made.properties = fields
    # The SDK's own way to make one from an annotated message (`message`, `raw_amqp_message`).
    return ServiceBusMessage(None, message=None, raw_amqp_message=made)


def origin_of(message: ServiceBusReceivedMessage) -> str:
    """The entry point of a copy into the federation, the same for all copies of one message; empty if it is no copy.

    It distinguishes two messages with one MessageId whose publishers are in different namespaces. A message that an application
    sent with a copy's properties has none: its digest does not match.
    """
    from azure.servicebus.amqp import AmqpMessageBodyType

    from isthmus.message.provenance import Provenance

    received = message.raw_amqp_message
    if received.body_type is not AmqpMessageBodyType.DATA:
        return ""
    values = {str(_text(name)): _text(value) for name, value in _items(received.application_properties)}
    read = Provenance.read(
        values, str(message.message_id or "").encode(), b"".join(bytes(part) for part in received.body)
    )
    if read is None:
        return ""
    first = read.hops[0]
    return f"{first.namespace}/{first.entity.lower()}/{first.sequence}/{first.enqueued}"


def _items(values: Any) -> list[tuple[Any, Any]]:
    return list(values.items()) if values else []


def _text(value: Any) -> Any:
    """Bytes that are UTF-8 as text; containers too."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {_text(key): _text(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_text(each) for each in value]
    return value
