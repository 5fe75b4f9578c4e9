"""Copies that a route sends, and the duplicate key that each of them has.

What it is: the type of a payload that arrived on a link with the capability of duplicate keys, and the reading of its key.
What it is not: the comparison of keys (`key_detection`).
Specification: `isthmus.message.duplicate_key`.

A key in `Parts` has up to three parts: `KEY_BYTES` that distinguish it from all others; then `SOURCE_BYTES` of a digest of the
namespace and entity where the message entered; then `NUMBER_BYTES` of its sequence number there. A sequence number that
cannot be read leaves out the last two.

Invariants:
    I1. Only payloads of such a link have a key: an application that sends a message with a copy's properties sends a new
        message.
    I2. A message that a pair moved is stored as it was before the move: the property `MOVED` is removed.
    I3. Source and number depend only on the input of the first part's digest: keys with equal first parts are equal as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import blake2b

from isthmus.amqp.codec import value_end
from isthmus.entities.record.amend import with_properties
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Large, Payload
from isthmus.message.duplicate_key import KEY_BYTES, first_place, is_moved
from isthmus.message.name import DIGEST, MOVED, OFFSET, ORIGIN, SEQUENCE, TIME
from isthmus.message.provenance import encoded

__all__ = ["NUMBER_BYTES", "OF_OFFSET", "OF_TIME", "SOURCE_BYTES", "Copy", "KeyReader", "is_copy", "key_of"]

SOURCE_BYTES = 8
NUMBER_BYTES = 8

_new = tuple.__new__  # as a named tuple's own constructor calls, in half the time
# With the code of a short string, as in `isthmus.message.duplicate_key`.
_ORIGIN = encoded(ORIGIN) + b"\xa1"
_NUMBER = encoded(SEQUENCE) + b"\xa1"
_DIGEST = encoded(DIGEST) + b"\xa1"
_OFFSET = encoded(OFFSET) + b"\xa1"
# Numbers of so many digits fit.
_MOST_DIGITS = 19
# The bytes after the front of a copy with one hop, as `isthmus.connectors.servicebus.message.message_rewriter` ends application
# properties. They contain no other hop, and reach to the end: no pair of the sender's own is mistaken for it.
_BEHIND = rb"([\x01-\x13]([1-9][0-9]{0,18})%b[^\xa0-\xff]([0-9a-f-]*)%b\xa1.([0-9T:.Z-]*))%b\x10([^\xa1]{16})\Z" % (
    re.escape(_OFFSET),
    re.escape(encoded(TIME)),
    re.escape(_DIGEST),
)
# The characters of its third and fourth group.
OF_OFFSET, OF_TIME = b"0123456789abcdef-", b"0123456789T:.Z-"

_NEVER = re.compile(rb"(?!)")
_Search = Callable[[bytes, int, int], "re.Match[bytes] | None"]


class Copy(bytes):
    """An encoded message that a route copied."""

    __slots__ = ()


def is_copy(payload: Payload) -> bool:
    """Whether a payload is a route's copy."""
    return payload.is_copy if isinstance(payload, Large) else isinstance(payload, Copy)


def key_of(rest: bytes, start: int = 0) -> bytes:
    """The duplicate key in a message's bytes; empty where it has none.

    Args:
        rest: bytes that contain properties and application properties, in the standard's order.
        start: where the properties begin, or the section after them where there are none.
    """
    return _key(rest, *_application_properties(rest, start))


def _key(message: bytes, start: int, end: int) -> bytes:
    position = first_place(message, start, end)
    if not position:
        return b""
    return blake2b(position, digest_size=KEY_BYTES).digest() + _source_and_number(position)


def _application_properties(rest: bytes, start: int) -> tuple[int, int]:
    """The start and the end of the application properties; arguments as for `key_of`."""
    end = start
    if rest[start : start + 3] == b"\0Ss":
        end = start = start + 5 + rest[start + 4] if rest[start + 3] == 0xC0 else value_end(rest, start + 3)
    if rest[start : start + 3] == b"\0St":
        if rest[start + 3] == 0xD1:  # as `isthmus.connectors.servicebus.message.message_rewriter` writes it
            end = start + 8 + int.from_bytes(rest[start + 4 : start + 8], "big")
        else:
            end = start + 5 + rest[start + 4] if rest[start + 3] == 0xC1 else value_end(rest, start + 3)
    return start, end


def _source_and_number(position: bytes) -> bytes:
    """Source and number of the position at which a message entered; empty where its number cannot be read."""
    at = position.find(_NUMBER)
    digits_at = at + len(_NUMBER) + 1
    digits = position[digits_at : position.find(_OFFSET, digits_at)]
    if at < 0 or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return b""
    return _source(position[:at]) + int(digits).to_bytes(NUMBER_BYTES, "big")


@lru_cache(1024)
def _source(position: bytes) -> bytes:
    return blake2b(position, digest_size=SOURCE_BYTES).digest()


class KeyReader:
    """Reads the keys of one entity's copies.

    Copies mostly have one source: the bytes before the sequence number are searched for in one of them, and compared in
    the following ones.

    Attributes:
        front: the hash of the bytes before the number, in copies like the one before.
        source: their source.
    """

    __slots__ = ("_search", "front", "source")

    def __init__(self) -> None:
        self._search: _Search = _NEVER.search
        self.front = blake2b()
        self.source = b""

    def key(self, message: bytes, start: int, end: int) -> bytes:
        """The key of a copy; empty where it has none. The same as `key_of`.

        Args:
            message: bytes that contain the application properties.
            start: where they begin.
            end: where they end.
        """
        found = self._search(message, start, end)
        if found is None:
            return self._other(message, start, end)
        varies, digits = found.group(1, 2)
        hashed = self.front.copy()
        hashed.update(varies)
        return hashed.digest() + self.source + int(digits).to_bytes(NUMBER_BYTES, "big")

    def found(self, message: bytes, start: int, end: int) -> re.Match[bytes] | None:
        """Where the parts of a key are, if the copy is like the one before: in the groups, all that is hashed after `front`,
        the number, the offset, the time, and the digest, which is not hashed. Arguments as for `key`.
        """
        return self._search(message, start, end)

    def _other(self, message: bytes, start: int, end: int) -> bytes:
        """The key of a copy that differs from the one before; copies like it are recognised from now on."""
        key = _key(message, start, end)
        at = message.rfind(_ORIGIN, start, end)
        number_at = message.find(_NUMBER, at, end)
        if len(key) > KEY_BYTES and 0 <= at < number_at:
            slash = message.find(b"/", at + len(_ORIGIN) + 1, end)  # not in the length's byte
            self._search, self.front = _alike(message[at:slash], message[slash : number_at + len(_NUMBER)])
            self.source = key[KEY_BYTES:-NUMBER_BYTES]
        return key

    def with_keys(self, messages: Sequence[Parts]) -> list[Parts]:
        """Copies with their keys, where they have any; the property `MOVED` is removed (I2)."""
        keyed = []
        for head, rest, message_id, blob, _ in messages:
            start, end = _application_properties(rest, 0)
            key = self.key(rest, start, end)
            kept = with_properties(rest, {}, [MOVED]) if len(key) == KEY_BYTES and is_moved(rest, start, end) else rest
            keyed.append(_new(Parts, (head, kept, message_id, blob, key)))
        return keyed


@lru_cache(256)
def _alike(alias: bytes, source: bytes) -> tuple[_Search, blake2b]:
    """The search for number and varying bytes in copies of one source, and the hash of the bytes before the number."""
    pattern = re.compile(re.escape(alias + source) + _BEHIND, re.DOTALL)
    return pattern.search, blake2b(source, digest_size=KEY_BYTES)
