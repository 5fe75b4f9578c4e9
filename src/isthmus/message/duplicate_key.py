"""The duplicate key: what a copy is compared by, instead of its MessageId.

What it is: the key of a copy, made of the place where its message entered the federation: the namespace's identity, the
entity, the sequence number there, the enqueued time there, and some digits of the digest of MessageId and body (in the
offset). The time is part of it because an entity that was deleted and created again, and one that was restored from a
back-up, give the same numbers again to other messages. The digest is, because a message that was forwarded carries the number
of the entity that it entered first: two messages that were forwarded from two entities may have the same number and the same time.

A route's link asks for the capability `DUPLICATE_KEYS`. A namespace that offers it drops a copy whose key it took within
its window, and compares copies with keys by nothing else. Messages of links without the capability have no key, whatever
properties they carry. A message that a pair moved has a key made of its former position (`moved_from`): its provenance, if it has one,
stays the same each time that it is moved. At a namespace without the capability the MessageId is made of the key
(`made_message_id`).

Invariants:
    I1. The key of a copy is the same however many routes it took, and whichever file names the namespaces.
    I2. Two messages have different keys, whatever their MessageIds and properties are. Only two that were forwarded to one
        entity from two with equal numbers, within one millisecond, and are equal in MessageId and body, have the same. Those that
        rules with actions made of one in a subscription have different ones where a task empties it (by the offset).
"""

from __future__ import annotations

from hashlib import blake2b

from isthmus.message.name import DIGEST, HOP_PROPERTIES, MOVED, ORIGIN, SEQUENCE
from isthmus.message.provenance import encoded

__all__ = ["DUPLICATE_KEYS", "KEY_BYTES", "duplicate_key", "first_place", "is_moved", "made_message_id", "moved_from"]

DUPLICATE_KEYS = "isthmus:duplicate-keys"
"""The capability of a link: the sender's copies carry provenance as their last application properties; the receiver keeps
their keys."""

KEY_BYTES = 16
# With the code of a short string: no text contains it, because in UTF-8 that byte never follows a letter.
_ORIGIN = encoded(ORIGIN) + b"\xa1"
_LONG_ORIGIN = encoded(ORIGIN) + b"\xb1"
_DIGEST = encoded(DIGEST) + b"\xa1"
_KEYS = tuple(encoded(name) for name in HOP_PROPERTIES)
_JOINED = b";"
_MOVED_CHARACTERS = 2 * KEY_BYTES
_MOVED = encoded(MOVED) + b"\xa1%c" % _MOVED_CHARACTERS
_MOVED_BYTES = len(_MOVED) + _MOVED_CHARACTERS
# The value for a message that entered without a sequence number: it cannot be identified.
_NO_NUMBER = encoded(SEQUENCE) + encoded("0")


def duplicate_key(message: bytes, start: int, end: int) -> bytes:
    """The key of a copy; empty where there is none. Arguments as for `first_place`."""
    place = first_place(message, start, end)
    return blake2b(place, digest_size=KEY_BYTES).digest() if place else b""


def first_place(message: bytes, start: int, end: int) -> bytes:
    """Where a copy's message entered the federation, as the key is made of it; empty where there is no key.

    Args:
        message: bytes that hold the application properties.
        start: where they begin; the provenance is the last in them, as `Tail` writes it, or `MOVED`.
        end: where they end.
    """
    if is_moved(message, start, end):
        return message[end - _MOVED_BYTES : end]
    length_bytes = 1
    at = message.rfind(_ORIGIN, start, end)
    if at < 0:
        length_bytes = 4
        at = message.rfind(_LONG_ORIGIN, start, end)
        if at < 0:
            return b""
    # From the slash on: the alias is no part of the key. The length in front of it may have the byte of a slash.
    slash = message.find(b"/", at + len(_ORIGIN) + length_bytes, end)
    stop = message.find(_DIGEST, slash, end)
    if slash < 0 or stop < 0:
        return b""
    entry = message[slash:stop]
    if _JOINED in entry:
        entry = _first_hop(message, at, stop)
    return b"" if _NO_NUMBER in entry else entry


def is_moved(message: bytes, start: int, end: int) -> bool:
    """Whether a message was moved by a pair: `MOVED` is the last of its application properties. Arguments as for `first_place`."""
    return message.startswith(_MOVED, max(start, end - _MOVED_BYTES), end)


def _first_hop(message: bytes, at: int, stop: int) -> bytes:
    """The bytes from the slash to the digest in a copy of one hop, for a copy of several."""
    values = []
    for key in _KEYS:
        if not message.startswith(key, at):
            return b""
        at += len(key)
        wide = message[at] == 0xB1
        size = int.from_bytes(message[at + 1 : at + 5], "big") if wide else message[at + 1]
        at += 5 if wide else 2
        try:
            values.append(message[at : at + size].partition(_JOINED)[0].decode())
        except UnicodeDecodeError:
            return b""
        at += size
    if at != stop:
        return b""
    entity = values[0].partition("/")[2]
    rest = b"".join(key + encoded(value) for key, value in zip(_KEYS[1:], values[1:], strict=True))
    return b"/" + entity.encode() + rest


def moved_from(namespace: str, path: str, sequence: int, enqueued_ms: int) -> str:
    """The value of `MOVED` for a message.

    Args:
        namespace: identity of the namespace that it is moved from.
        path: queue, or dead-letter queue, there.
        sequence: its number there.
        enqueued_ms: when it was enqueued there, wall time.
    """
    place = f"{namespace}\0{path.lower()}\0{sequence}\0{enqueued_ms}"
    return blake2b(place.encode(), digest_size=KEY_BYTES).hexdigest()


def made_message_id(key: bytes) -> str:
    """A MessageId made of the key, for targets that do not keep keys; 40 characters."""
    return f"isthmus-{key.hex()}"
