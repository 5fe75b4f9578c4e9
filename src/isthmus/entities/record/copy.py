"""Copies that a route sends, and the duplicate key that each of them bears.

What it is: the type of a payload that came on a link with the capability of duplicate keys, and the reading of its key.
What it is not: the comparison of keys, which is `key_detection`'s.
Specification: `isthmus.message.duplicate_key`.

A key in `Parts` has up to three parts: `KEY_BYTES` that tell it from all others; then `SOURCE_BYTES` of a digest of the
namespace and entity where the message entered; then `NUMBER_BYTES` of its sequence number there. A sequence number that
cannot be read leaves the last two out.

Invariants:
    I1. Only payloads of such a link have a key: an application that sends a message with a copy's properties sends a new
        message.
    I2. What a pair moved stands as it stood before: the property `MOVED` is not kept.
    I3. Source and number depend on nothing but what the first part is the digest of: equal keys are equal as a whole.
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

__all__ = ["NUMBER_BYTES", "SOURCE_BYTES", "Copy", "KeyReader", "is_copy", "key_of"]

SOURCE_BYTES = 8
NUMBER_BYTES = 8

_new = tuple.__new__  # what a named tuple's own constructor calls, at half its price
# With the code of a short string, as in `isthmus.message.duplicate_key`.
_ORIGIN = encoded(ORIGIN) + b"\xa1"
_NUMBER = encoded(SEQUENCE) + b"\xa1"
_DIGEST = encoded(DIGEST) + b"\xa1"
_OFFSET = encoded(OFFSET) + b"\xa1"
# Numbers of so many digits fit.
_MOST_DIGITS = 19
# What follows the front of a copy with one hop, as `isthmus.connectors.servicebus.message.message_rewriter` ends application
# properties. None of it can hold another hop, and it reaches to their end: no pair of the sender's own is taken for it.
_BEHIND = rb"([\x01-\x13]([1-9][0-9]{0,18})%b[^\xa0-\xff][0-9a-f-]*%b\xa1.[0-9T:.Z-]*)%b\x10.{16}\Z" % (
    re.escape(_OFFSET),
    re.escape(encoded(TIME)),
    re.escape(_DIGEST),
)


_NEVER = re.compile(rb"(?!)")
_Search = Callable[[bytes, int, int], "re.Match[bytes] | None"]


class Copy(bytes):
    """An encoded message that a route copied."""

    __slots__ = ()


def is_copy(payload: Payload) -> bool:
    """Whether a payload is a route's copy."""
    return payload.is_copy if isinstance(payload, Large) else isinstance(payload, Copy)


def key_of(rest: bytes, start: int = 0) -> bytes:
    """The duplicate key in a message's bytes; empty where it bears none.

    Args:
        rest: bytes that hold properties and application properties, in the standard's order.
        start: where the properties begin, or what follows them where there are none.
    """
    return _key(rest, *_application_properties(rest, start))


def _key(message: bytes, start: int, end: int) -> bytes:
    place = first_place(message, start, end)
    if not place:
        return b""
    return blake2b(place, digest_size=KEY_BYTES).digest() + _source_and_number(place)


def _application_properties(rest: bytes, start: int) -> tuple[int, int]:
    """Where they begin and end; arguments as for `key_of`."""
    end = start
    if rest[start : start + 3] == b"\0Ss":
        end = start = start + 5 + rest[start + 4] if rest[start + 3] == 0xC0 else value_end(rest, start + 3)
    if rest[start : start + 3] == b"\0St":
        if rest[start + 3] == 0xD1:  # as `isthmus.connectors.servicebus.message.message_rewriter` writes it
            end = start + 8 + int.from_bytes(rest[start + 4 : start + 8], "big")
        else:
            end = start + 5 + rest[start + 4] if rest[start + 3] == 0xC1 else value_end(rest, start + 3)
    return start, end


def _source_and_number(place: bytes) -> bytes:
    """Of the place where a message entered; empty where its number cannot be read."""
    at = place.find(_NUMBER)
    digits_at = at + len(_NUMBER) + 1
    digits = place[digits_at : place.find(_OFFSET, digits_at)]
    if at < 0 or not digits.isdigit() or len(digits) > _MOST_DIGITS:
        return b""
    return _source(place[:at]) + int(digits).to_bytes(NUMBER_BYTES, "big")


@lru_cache(1024)
def _source(place: bytes) -> bytes:
    return blake2b(place, digest_size=SOURCE_BYTES).digest()


class KeyReader:
    """Reads the keys of one entity's copies.

    Copies mostly come from one source: what stands in front of the sequence number is searched in one of them, and compared in
    those that follow.
    """

    __slots__ = ("_front", "_search", "_source")

    def __init__(self) -> None:
        self._search: _Search = _NEVER.search
        self._front = blake2b()
        self._source = b""

    def key(self, message: bytes, start: int, end: int) -> bytes:
        """The key of a copy; empty where it bears none. The same as `key_of`.

        Args:
            message: bytes that hold the application properties.
            start: where they begin.
            end: where they end.
        """
        found = self._search(message, start, end)
        if found is None:
            return self._other(message, start, end)
        varies, digits = found.groups()
        hashed = self._front.copy()
        hashed.update(varies)
        return hashed.digest() + self._source + int(digits).to_bytes(NUMBER_BYTES, "big")

    def _other(self, message: bytes, start: int, end: int) -> bytes:
        """The key of a copy that is not like the one before; those like it are known from now on."""
        key = _key(message, start, end)
        at = message.rfind(_ORIGIN, start, end)
        number_at = message.find(_NUMBER, at, end)
        if len(key) > KEY_BYTES and 0 <= at < number_at:
            slash = message.find(b"/", at + len(_ORIGIN) + 1, end)  # behind the length, which may have its byte
            self._search, self._front = _alike(message[at:slash], message[slash : number_at + len(_NUMBER)])
            self._source = key[KEY_BYTES:-NUMBER_BYTES]
        return key

    def with_keys(self, messages: Sequence[Parts]) -> list[Parts]:
        """Copies with their keys, where they carry such; what says where a message was moved from is taken off."""
        keyed = []
        for head, rest, message_id, blob, _ in messages:
            start, end = _application_properties(rest, 0)
            key = self.key(rest, start, end)
            kept = with_properties(rest, {}, [MOVED]) if len(key) == KEY_BYTES and is_moved(rest, start, end) else rest
            keyed.append(_new(Parts, (head, kept, message_id, blob, key)))
        return keyed


@lru_cache(256)
def _alike(alias: bytes, source: bytes) -> tuple[_Search, blake2b]:
    """What finds number, and all that differs, in copies of one source, and the hash of what is in front of that."""
    pattern = re.compile(re.escape(alias + source) + _BEHIND, re.DOTALL)
    return pattern.search, blake2b(source, digest_size=KEY_BYTES)
