"""Copies that a route sends, and the duplicate key that each of them bears.

What it is: the type of a payload that came on a link with the capability of duplicate keys, and the reading of its key.
What it is not: the comparison of keys, which is `detection`'s.
Specification: `isthmus.message.duplicate_key`.

Invariants:
    I1. Only payloads of such a link have a key: an application that sends a message with a copy's properties sends a new
        message.
"""

from __future__ import annotations

from isthmus.amqp.codec import value_end
from isthmus.entities.blob import Large, Payload
from isthmus.entities.record import Parts
from isthmus.message.duplicate_key import duplicate_key

__all__ = ["Copy", "is_copy", "key_of", "with_key"]

_new = tuple.__new__  # what a named tuple's own constructor calls, at half its price


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
    end = start
    if rest[start : start + 3] == b"\0Ss":
        end = start = start + 5 + rest[start + 4] if rest[start + 3] == 0xC0 else value_end(rest, start + 3)
    if rest[start : start + 3] == b"\0St":
        if rest[start + 3] == 0xD1:  # as `isthmus.connectors.servicebus.message_rewriter` writes it
            end = start + 8 + int.from_bytes(rest[start + 4 : start + 8], "big")
        else:
            end = start + 5 + rest[start + 4] if rest[start + 3] == 0xC1 else value_end(rest, start + 3)
    return duplicate_key(rest, start, end)


def with_key(parts: Parts) -> Parts:
    """A copy with its duplicate key, if it bears one."""
    head, rest, message_id, blob, _ = parts
    return _new(Parts, (head, rest, message_id, blob, key_of(rest)))
