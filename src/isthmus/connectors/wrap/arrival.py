"""The annotations that a source adds to a message of a system without annotations.

What it is: the annotations of a broker, a MessageId where there is none, and a number made of the name of a message without number. What it
is not: the opening of an envelope (`envelope`, `cloud_event`).

Invariants:
    I1. A message that is delivered again has the same number, time and MessageId.
    I2. An existing MessageId is kept.
    I3. Different names of messages give different MessageIds, however long they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from isthmus.amqp import section
from isthmus.amqp.types import Timestamp
from isthmus.message.name import BROKER_ANNOTATIONS, ENQUEUED_TIME, SEQUENCE_NUMBER

__all__ = ["annotated", "message_id_of", "number_of", "with_properties"]

# Azure Service Bus: the limit of a MessageId.
_ID_CHARACTERS = 128
_DIGEST_BYTES = 16


def message_id_of(name: str) -> str:
    """A MessageId for the name of a message: the name, or its beginning and a digest where it exceeds the limit of a MessageId."""
    if len(name) <= _ID_CHARACTERS:
        return name
    digest = blake2b(name.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{name[: _ID_CHARACTERS - len(digest) - 1]}-{digest}"


def number_of(name: str) -> int:
    """A number of 63 bits for the name of a message; above 0, since 0 means that a message has none."""
    return (int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1) or 1


def annotated(message: bytes, *, name: str, enqueued_ms: int, message_id: str, ttl_ms: int = 0) -> bytes:
    """The message with the annotations of its arrival.

    Args:
        message: encoded.
        name: its name, unique in its system.
        enqueued_ms: when it was enqueued in its system, wall time; 0 where unknown.
        message_id: used where the message has none.
        ttl_ms: its time to live from then on; 0: unlimited.

    Raises:
        CodecError: it is not a message.
    """
    found = section.locate(message)
    kept = {
        key: value
        for key, value in section.decode_map(message, found.message_annotations).items()
        if key not in BROKER_ANNOTATIONS
    }
    kept |= {SEQUENCE_NUMBER: number_of(name), ENQUEUED_TIME: Timestamp(enqueued_ms)}
    header = section.decode_header(message, found.header)
    properties = message[slice(*found.properties)]
    if section.decode_property(message, found.properties, "message_id") is None:
        fields = section.decode_properties(message, found.properties)
        properties = section.encode_properties({**fields, "message_id": message_id})
    return b"".join(
        (
            section.encode_header(header._replace(ttl_ms=ttl_ms or None, delivery_count=0)),
            section.encode_map_section(section.MESSAGE_ANNOTATIONS, kept),
            properties,
            message[slice(*found.application_properties)],
            message[slice(*found.body)],
            message[slice(*found.footer)],
        )
    )


def with_properties(message: bytes, properties: Mapping[str, str]) -> bytes:
    """The message with additional application properties.

    Raises:
        CodecError: it is not a message.
    """
    found = section.locate(message)
    own = {**section.decode_map(message, found.application_properties), **properties}
    start, end = found.application_properties
    if not end:
        start = end = found.body[0] if found.body[1] else found.footer[0] if found.footer[1] else len(message)
    return message[:start] + section.encode_map_section(section.APPLICATION_PROPERTIES, own) + message[end:]
