"""The fragment that a message belongs to, and the fragment in a sequence number or a lock token.

What it is: the keys of an encoded message, their hash, and the fragment in the top 16 bits of a sequence number. What it
is not: the choice for messages without a key, which depends on the stores (`entity`).
Spec: docs/explanation/protocol.md, Entities.

Invariants:
    I1. A key always means the same fragment, as long as the entity exists: the hash is that of event hubs' partition
        keys, which the service's SDKs share, and depends on nothing else.
    I2. Sequence numbers of fragment n begin behind n * 2**48; fragment 0's are as those of an ordinary entity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from isthmus.amqp import codec, section
from isthmus.entities.error import InvalidMessageError
from isthmus.entities.hub.placement import place
from isthmus.entities.record.amend import annotation_of
from isthmus.entities.record.copy import Copy
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload
from isthmus.message.duplicate_key import duplicate_key

__all__ = [
    "FRAGMENT_BITS",
    "Keys",
    "detection_id",
    "first_of",
    "fragment_of",
    "fragment_of_token",
    "keys_of",
    "keys_of_parts",
    "place",
    "runs",
    "runs_by",
    "via_key_of",
]

FRAGMENT_BITS = 48
_PARTITION_KEY = "x-opt-partition-key"
_VIA_PARTITION_KEY = "x-opt-via-partition-key"
_MALFORMED = (IndexError, codec.CodecError, ValueError)
# The keys that decide on the fragment are read before any limit of the entity is checked, and each character takes time.
_KEY_CHARACTERS = 1024


class Keys(NamedTuple):
    """The keys of a message that decide on its fragment.

    Attributes:
        group: its SessionId, or else its PartitionKey: messages of one group stay together; None if it has neither.
        message_id: as text; None if it has none.
        duplicate_key: of a route's copy, in hexadecimal digits; empty for all other messages.
    """

    group: str | None
    message_id: str | None
    duplicate_key: str = ""

    def compared(self, *, by_message_id: bool) -> str | None:
        """The key that decides on the fragment of a message without a group, so that its duplicates are compared; None if there is none."""
        return self.duplicate_key or (self.message_id if by_message_id else None)


def keys_of(payload: Payload) -> Keys:
    """The keys of a message, as its sender wrote it.

    Raises:
        InvalidMessageError: it is not a message, or its PartitionKey differs from its SessionId.
    """
    assert isinstance(payload, bytes), "links to partitioned entities read large messages like all others"
    try:
        found = section.locate(payload)
        properties = section.decode_properties(payload, found.properties) if found.properties[1] else {}
        annotations = section.decode_map(payload, found.message_annotations) if found.message_annotations[1] else {}
        copied = duplicate_key(payload, *found.application_properties) if isinstance(payload, Copy) else b""
    except _MALFORMED:
        raise InvalidMessageError("the payload is not an AMQP message") from None
    keys = _keys(properties, annotations.get(_PARTITION_KEY))
    return keys._replace(duplicate_key=copied.hex()) if copied else keys


def keys_of_parts(parts: Parts) -> Keys:
    """The keys of a message that another entity forwards; errors as `keys_of`."""
    try:
        found = section.locate(parts.rest).properties
        properties = section.decode_properties(parts.rest, found) if found[1] else {}
    except _MALFORMED:
        raise InvalidMessageError("the message's properties cannot be read") from None
    return _keys(properties, annotation_of(parts, _PARTITION_KEY))


def via_key_of(payload: Payload) -> str | None:
    """The key that decides on the fragment via which a message goes; None if there is none.

    Raises:
        InvalidMessageError: it is not a message.
    """
    assert isinstance(payload, bytes), "links to partitioned entities read large messages like all others"
    try:
        found = section.locate(payload).message_annotations
        key = section.decode_map(payload, found).get(_VIA_PARTITION_KEY) if found[1] else None
    except _MALFORMED:
        raise InvalidMessageError("the payload is not an AMQP message") from None
    return None if key is None else str(key)


def _keys(properties: Mapping[str, Any], key: Any) -> Keys:
    session_id = properties.get("group_id")
    if session_id is not None and key is not None and str(key) != str(session_id):
        raise InvalidMessageError(
            f"the PartitionKey '{str(key)[:64]}' differs from the SessionId '{str(session_id)[:64]}'; a partitioned "
            "entity takes a message only if they are equal, or one of them is not set"
        )
    group = session_id if session_id is not None else key
    message_id = properties.get("message_id")
    keys = Keys(None if group is None else str(group), None if message_id is None else str(message_id))
    longest = max(len(each) for each in keys if each is not None) if any(keys) else 0
    if longest > _KEY_CHARACTERS:
        raise InvalidMessageError(
            f"a SessionId, PartitionKey or MessageId has {longest} characters; partitioned entities take {_KEY_CHARACTERS}"
        )
    return keys


def first_of(fragment: int) -> int:
    """The number before a fragment's first sequence number."""
    return fragment << FRAGMENT_BITS


def fragment_of(sequence: int) -> int:
    """The fragment of a sequence number."""
    return sequence >> FRAGMENT_BITS


def fragment_of_token(token: bytes) -> int:
    """The fragment of a lock token, whose last eight bytes are the message's sequence number."""
    return int.from_bytes(token[8:10], "big")


def detection_id(parts: Parts) -> bytes:
    """The value that duplicate detection compares in a fragment: the MessageId together with the PartitionKey."""
    key = annotation_of(parts, _PARTITION_KEY)
    return parts.message_id if key is None else parts.message_id + b"\0" + str(key).encode()


def runs(payloads: Sequence[Payload], count: int, *, by_message_id: bool) -> list[int]:
    """The lengths of the runs of messages that may go together: of one key, or of one fragment, or without both."""

    def group_of(payload: Payload) -> object:
        keys = keys_of(payload)
        compared = keys.compared(by_message_id=by_message_id) if keys.group is None else None
        return keys.group if compared is None else place(compared, count)

    return runs_by(payloads, group_of)


def runs_by(payloads: Sequence[Payload], group_of: Callable[[Payload], object]) -> list[int]:
    """The lengths of the runs of messages of the same group; one that is not a message is a run of its own."""
    lengths: list[int] = []
    before: object = object()
    for payload in payloads:
        try:
            here = group_of(payload)
        except InvalidMessageError:
            here = object()
        if lengths and here == before:
            lengths[-1] += 1
        else:
            lengths.append(1)
            before = here
    return lengths
