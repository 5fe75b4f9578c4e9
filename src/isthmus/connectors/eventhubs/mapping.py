"""Events as the messages of a route, and back.

What it is: the conversion of an encoded event to a message of a route, and of a copy to an event, pure. Both are AMQP
messages, so that body, types and properties are kept byte for byte. What it is not: a client. docs/how-to/use-eventhubs.md.
Specification: OASIS AMQP 1.0 part 3; Microsoft Learn, "AMQP 1.0 in Azure Service Bus and Event Hubs protocol guide", Message annotations.

| event | message |
| --- | --- |
| sequence number | `x-opt-sequence-number`, with the partition in its upper bits |
| partition | `x-opt-kafka-partition`, the common annotation of logs |
| offset, enqueued time, publisher | their annotations, unchanged |
| partition key | `x-opt-partition-key`, and group-id (SessionId) where the event has none |

With `system_properties` they are application properties, too.

Invariants:
    I1. `to_event(read(event))` is the event, except for the annotations that the service writes, and a partition key that a producer wrote
        as binary: it becomes a string, as in Service Bus.
    I2. All other parts by the producer are kept byte for byte, except that a MessageId or a SessionId is added.
    I3. Unreadable parts by the producer keep no event from being delivered: nothing is added where they would have to be read, and the
        message is refused individually when it is copied.
"""

from __future__ import annotations

import contextlib
import struct
from typing import Any, NamedTuple

from isthmus.amqp import codec, section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Int, Symbol, Timestamp
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.mapping.message_id import message_id
from isthmus.connectors.kafka.mapping.record import KAFKA_PARTITION as LOG_PARTITION
from isthmus.message import name as names

__all__ = ["KEYED", "Event", "EventReader", "Outgoing", "to_event"]

KEYED = "x-opt-eventhubs-keyed"
"""Marks a message whose SessionId is not the producer's, but its partition key."""

# Azure Service Bus: the limit of a SessionId and of a PartitionKey.
KEY_CHARACTERS = 128

_OFFSET = "x-opt-offset"
_OWN = (names.SEQUENCE_NUMBER, LOG_PARTITION, KEYED)
_PUBLISHER = ("x-opt-publisher-name", "x-opt-publisher")
_SEQUENCE_NAME = b"\xa3\x15x-opt-sequence-number\x81"
_PARTITION_NAME = codec.encode(Symbol(LOG_PARTITION)) + b"\x71"
_KEYED_PAIR = codec.encode(Symbol(KEYED)) + b"\x41"
_KEY_NAME = codec.encode(Symbol(names.PARTITION_KEY))
_MALFORMED = (CodecError, IndexError, ValueError, struct.error)


class Event(NamedTuple):
    """An event as it was read."""

    sequence: int
    offset: str
    message: bytes


class Outgoing(NamedTuple):
    """An event to send.

    Attributes:
        payload: encoded.
        key: its partition key; empty: none.
        partition: the partition of the log from which it was read; None: it was not read from a log.
    """

    payload: bytes
    key: str
    partition: int | None


class EventReader:
    """Reads the events of one hub.

    Args:
        hub: its name.
        gives_ids: whether events without MessageId get one made of their position.
        names_partition: whether events without partition key get one that names their partition.
        tells_system: whether the service's annotations become application properties.
        shown: name prefixes of annotations that become application properties.

    Attributes:
        hub: its name.
    """

    def __init__(
        self,
        hub: str,
        *,
        gives_ids: bool = False,
        names_partition: bool = False,
        tells_system: bool = False,
        shown: tuple[str, ...] = (),
    ) -> None:
        self.hub = hub
        self._gives_ids, self._names_partition = gives_ids, names_partition
        self._tells_system, self._shown = tells_system, shown

    def read(self, partition: int, payload: bytes) -> Event:
        """The message of an event.

        Raises:
            CodecError: it is not an event.
        """
        try:
            return self._read(partition, payload)
        except CodecError:
            raise
        except _MALFORMED as error:
            raise CodecError(f"the event cannot be read: {error}") from None

    def _read(self, partition: int, payload: bytes) -> Event:
        found = section.locate(payload)
        pairs: list[bytes] = []
        annotations: dict[str, Any] = {}
        is_shown = self._tells_system or bool(self._shown)
        for start, middle, end in section.map_items(payload, found.message_annotations):
            name = codec.decode(payload, start)[0]
            if name in _OWN:
                if name == names.SEQUENCE_NUMBER:
                    annotations[name] = codec.decode(payload, middle)[0]
                continue
            if is_shown or name in (_OFFSET, names.PARTITION_KEY):
                with contextlib.suppress(*_MALFORMED):  # (I3)
                    annotations[str(name)] = codec.decode(payload, middle)[0]
            if name == names.PARTITION_KEY and isinstance(annotations.get(name), bytes):
                pairs.append(_KEY_NAME + codec.encode(_key_of(annotations[name])))
            else:
                pairs.append(payload[start:end])
        sequence = annotations.get(names.SEQUENCE_NUMBER)
        if not isinstance(sequence, int):
            raise CodecError("the service delivered an event without x-opt-sequence-number")
        position = partition << PARTITION_SHIFT | sequence
        key = _key_of(annotations.get(names.PARTITION_KEY))
        if key is None and self._names_partition:
            key = f"partition-{partition}"
            pairs.append(_KEY_NAME + codec.encode(key))
        properties, is_keyed = self._properties(payload, found, position, key)
        if is_keyed:
            pairs.append(_KEYED_PAIR)
        pairs.append(_PARTITION_NAME + partition.to_bytes(4, "big"))
        own = _SEQUENCE_NAME + position.to_bytes(8, "big")
        message = b"".join(
            (
                payload[slice(*found.header)],
                _map_section(section.MESSAGE_ANNOTATIONS, [own, *pairs]),
                properties,
                self._application_properties(payload, found.application_properties, partition, annotations),
                payload[slice(*found.body)],
                payload[slice(*found.footer)],
            )
        )
        return Event(sequence, str(annotations.get(_OFFSET) or ""), message)

    def _properties(
        self, payload: bytes, found: section.Sections, position: int, key: str | None
    ) -> tuple[bytes, bool]:
        """The properties of the message, and whether its SessionId is the event's key."""
        try:
            changes = self._changes(payload, found, position, key)
            if changes:
                return section.replace_properties(payload, found.properties, changes), "group_id" in changes
        except _MALFORMED:  # (I3)
            pass
        return payload[slice(*found.properties)], False

    def _changes(self, payload: bytes, found: section.Sections, position: int, key: str | None) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        if self._gives_ids and section.decode_property(payload, found.properties, "message_id") is None:
            changes["message_id"] = message_id(self.hub, position)
        if (
            key is not None
            and 0 < len(key) <= KEY_CHARACTERS
            and section.decode_property(payload, found.properties, "group_id") is None
        ):
            changes["group_id"] = key
        return changes

    def _application_properties(
        self, payload: bytes, span: tuple[int, int], partition: int, annotations: dict[str, Any]
    ) -> bytes:
        added: dict[str, Any] = {}
        if self._tells_system:
            added["eventhubs-partition"] = Int(partition)
            added["eventhubs-sequence-number"] = annotations[names.SEQUENCE_NUMBER]
            added["eventhubs-offset"] = str(annotations.get(_OFFSET) or "")
            if isinstance(annotations.get(names.ENQUEUED_TIME), Timestamp):
                added["eventhubs-enqueued-time"] = annotations[names.ENQUEUED_TIME]
            publisher = next((annotations[name] for name in _PUBLISHER if name in annotations), None)
            if publisher is not None:
                added["eventhubs-publisher"] = str(publisher)
        if self._shown:
            added |= {name: _plain(value) for name, value in annotations.items() if name.startswith(self._shown)}
        if not added:
            return payload[slice(*span)]
        try:
            own = [payload[start:end] for start, _, end in section.map_items(payload, span)]
            known = {codec.decode(payload, start)[0] for start, _, _ in section.map_items(payload, span)}
        except (*_MALFORMED, TypeError):  # (I3); a name may be a map, which cannot be in a set
            return payload[slice(*span)]
        own += [codec.encode(name) + codec.encode(value) for name, value in added.items() if name not in known]
        return _map_section(section.APPLICATION_PROPERTIES, own)


def to_event(message: bytes) -> Outgoing:
    """The event of a copy. It keeps its key, also if it is sent to a partition by number: the service preserves it.

    Raises:
        CodecError: it is not a message.
    """
    try:
        return _to_event(message)
    except CodecError:
        raise
    except _MALFORMED as error:
        raise CodecError(f"the message cannot be read: {error}") from None


def _to_event(message: bytes) -> Outgoing:
    found = section.locate(message)
    pairs: list[bytes] = []
    annotations: dict[str, Any] = {}
    for start, middle, end in section.map_items(message, found.message_annotations):
        name = codec.decode(message, start)[0]
        if name in (names.PARTITION_KEY, LOG_PARTITION, KEYED):
            annotations[name] = codec.decode(message, middle)[0]
        elif name not in names.BROKER_ANNOTATIONS:
            pairs.append(message[start:end])
    session_id = section.decode_property(message, found.properties, "group_id")
    partition = annotations.get(LOG_PARTITION)
    key = _key_of(annotations.get(names.PARTITION_KEY)) or (session_id if isinstance(session_id, str) else None) or ""
    key = key if len(key) <= KEY_CHARACTERS else key[:KEY_CHARACTERS]
    changes = {"group_id": None} if KEYED in annotations and session_id == key else {}
    if key:
        pairs.append(_KEY_NAME + codec.encode(key))
    properties = (
        section.replace_properties(message, found.properties, changes) if changes else message[slice(*found.properties)]
    )
    payload = b"".join(
        (
            message[slice(*found.header)],
            _map_section(section.MESSAGE_ANNOTATIONS, pairs) if pairs else b"",
            b"" if properties == b"\0Ss\x45" else properties,
            message[slice(*found.application_properties)],
            message[slice(*found.body)],
            message[slice(*found.footer)],
        )
    )
    return Outgoing(payload, key, int(partition) if isinstance(partition, int) and partition >= 0 else None)


def _key_of(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _plain(value: Any) -> Any:
    """Whether application properties can contain the value (OASIS AMQP 1.0, 3.2.5: no maps, lists or arrays)."""
    return str(value) if isinstance(value, dict | list) else value


def _map_section(code: int, pairs: list[bytes]) -> bytes:
    body = b"".join(pairs)
    return b"\0S%c\xd1%b%b%b" % (
        code,
        (len(body) + 4).to_bytes(4, "big"),
        (len(pairs) * 2).to_bytes(4, "big"),
        body,
    )
