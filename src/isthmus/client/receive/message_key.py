"""The keys by which two deliveries are recognised as one message.

What it is: the keys of a received message for the list of seen messages. A copy that a route made has one: the entry point of its message
into the federation, proved by the digest (`isthmus.message.provenance`). Any other message has two: its location, which its copies
record, and its MessageId with a digest of MessageId and body. What it is not: the list (`isthmus.client.seen`).

Invariants:
    I1. A message and its copies share a key, independent of the order in which they are received.
    I2. Messages that were sent to two namespaces under one MessageId with one body share a key (active replication).
    I3. Equal MessageIds with different bodies share none; nor do a copy and a message that entered elsewhere, whatever their MessageIds.
    I4. The entity that is read is part of each key: one list may serve several queues, subscriptions and dead-letter queues.
    I5. A message without MessageId and without provenance is recognised by its location alone.
    I6. The messages that rules with actions made of one message are messages of their own, in their subscription and in a queue that it
        forwards to: the rule's name is part of their keys, as it is of a copy by a route that empties an application's entity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from isthmus.client.seen.store import Keys
from isthmus.message.name import OFFSET, RULE_NAME
from isthmus.message.provenance import OFFSET_DIGITS, Provenance, digest, iso

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

__all__ = ["Arrived", "arrived", "enqueued_ms", "is_proven_copy", "keys_of", "was_enqueued_ms"]

_KEY_BYTES = 16
_SUBSCRIPTIONS = "/subscriptions/"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrived:
    """The parts of a received message that identify it.

    Attributes:
        message_id: its MessageId, or the application's substitute for it; empty if there is none.
        body: its contents.
        is_data: whether `body` is the contents of one data section; only those can have a proved provenance.
        properties: its application properties, texts as `str`.
        sequence: its sequence number in the entity that it was sent to.
        enqueued_ms: wall time at which it was enqueued there.
    """

    message_id: str
    body: bytes
    is_data: bool
    properties: Mapping[str, object]
    sequence: int
    enqueued_ms: int


def keys_of(message: Arrived, namespace: str, entity: str, scope: str = "") -> Keys:
    """The keys of a message.

    Args:
        message: the received message.
        namespace: identity of the namespace that it was received from: the identity that the namespace reports, or its host's name.
        entity: its queue or topic.
        scope: the entity that is read: queue, subscription or dead-letter queue. A message handled in one scope is not handled in another.
    """
    proof = digest(message.message_id.encode(), message.body)
    own_scope, proofs, copied_as = scope, [proof], scope
    rule = message.properties.get(RULE_NAME)
    if rule is not None:
        own_scope, by_rule = f"{scope}/rules/{rule}", digest(_encoded(rule), proof.encode())
        if _SUBSCRIPTIONS in scope.lower():
            copied_as, proofs = own_scope, [proof, by_rule]  # the rule at the other namespace has the same name
        else:
            proofs = [by_rule]  # the route that empties a queue removes the name
    provenance = _provenance(message)
    if provenance is not None:
        first = provenance.hops[0]
        digits = provenance.values[OFFSET].split(";")[0].partition("-")[2]
        return (_location_key(own_scope, first.namespace, first.entity, first.sequence, digits, first.enqueued),)
    enqueued = iso(message.enqueued_ms)
    locations = tuple(
        _location_key(copied_as, namespace, entity, message.sequence, each[:OFFSET_DIGITS], enqueued) for each in proofs
    )
    if not message.message_id:
        return locations
    return (*locations, _key("id", own_scope.lower(), message.message_id, proof))


def is_proven_copy(message: Arrived) -> bool:
    """Whether a route made the message: it carries provenance that fits it."""
    return _provenance(message) is not None


def was_enqueued_ms(message: Arrived, namespace: str, entity: str) -> int | None:
    """The enqueued time of a copy's original in an entity, from its provenance; None if it was not there, or the provenance is not proved.

    Args:
        message: the copy.
        namespace: identity of the namespace; empty if unknown: then the namespace that the copy was made from.
        entity: the queue or topic there.
    """
    provenance = _provenance(message)
    if provenance is None:
        return None
    hops = [each for each in provenance.hops if each.namespace.lower() == namespace.lower()]
    last = (hops if namespace else provenance.hops)[-1:]
    if not last or last[0].entity.lower() != entity.lower():
        return None
    try:
        return (datetime.fromisoformat(last[0].enqueued) - _EPOCH) // _MILLISECOND
    except (ValueError, TypeError):
        return None


def _provenance(message: Arrived) -> Provenance | None:
    if not message.is_data:
        return None
    return Provenance.read(message.properties, message.message_id.encode(), message.body)


def arrived(message: ServiceBusReceivedMessage) -> Arrived:
    """The identifying parts of a message of azure-servicebus."""
    from azure.servicebus.amqp import AmqpMessageBodyType

    received = message.raw_amqp_message
    is_data = received.body_type is AmqpMessageBodyType.DATA
    is_value = received.body_type is AmqpMessageBodyType.VALUE
    parts = (
        [bytes(part) for part in received.body]
        if is_data
        else [repr(received.body if is_value else list(received.body)).encode()]
    )
    properties = received.application_properties or {}
    return Arrived(
        message_id=str(message.message_id or ""),
        body=b"".join(parts),
        is_data=is_data and len(parts) == 1,
        properties={_text(name): _text(value) for name, value in properties.items()},
        sequence=message.enqueued_sequence_number or message.sequence_number or 0,
        enqueued_ms=enqueued_ms(message),
    )


def enqueued_ms(message: ServiceBusReceivedMessage) -> int:
    """The enqueued time of the message in its entity, in milliseconds since the epoch; 0 if the message has none."""
    at = message.enqueued_time_utc
    return 0 if at is None else round(at.timestamp() * 1000)


def _location_key(scope: str, namespace: str, entity: str, sequence: int, digits: str, enqueued: str) -> bytes:
    return _key("place", scope.lower(), namespace.lower(), entity.lower(), str(sequence), digits, enqueued)


def _encoded(rule: object) -> bytes:
    from isthmus.amqp import codec

    return codec.encode(rule) if isinstance(rule, str) else b""


def _key(*parts: str) -> bytes:
    return blake2b("\0".join(parts).encode(), digest_size=_KEY_BYTES).digest()


def _text(value: Any) -> Any:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value
