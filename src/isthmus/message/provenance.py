"""Where a message has been: one hop for each time that a route copied it.

What it is: the reading of the properties of provenance, the encoded bytes that a route appends to a copy's application
properties, and the digest by which a copy is told from a new message that merely carries a copy's properties. What it is
not: the search for the properties in an encoded message, which the callers do.

Properties of a copy, strings; the first five have one value per hop, joined by ";":
    repl-origin         alias/entity that the message was copied from
    repl-namespace      identity of that namespace: as its open frame gives it, or its host name
    repl-sequence       the sequence number there (of the topic, for a subscription)
    repl-offset         the same with eight digits of the message's digest there, "7-1f3a…", since two messages that were
                        forwarded to one entity carry the numbers of the entities that they entered, which may be equal;
                        without these digits where the steps of a route have changed the contents; where a task empties an
                        application's entity, the digits of a message with a RuleName are made of that too
    repl-enqueued-time  when it was enqueued there, ISO 8601, UTC, milliseconds
    repl-digest         digest of MessageId and body of this copy
    repl-message-id     the sender's own MessageId, where the copy was given another

Invariants:
    I1. Provenance counts only with a digest that fits the message: an application that publishes another message with a
        copy's properties has made a new message, which has been nowhere.
    I2. Hops are told apart by the namespace's identity, not by an alias, which two files may give to two namespaces.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha1

from isthmus.message.name import DIGEST, HOP_PROPERTIES, NAMESPACE, OFFSET, ORIGIN, SEQUENCE, TIME

__all__ = ["HOP_BUDGET", "OFFSET_DIGITS", "Hop", "Provenance", "Tail", "digest", "encoded", "iso"]

HOP_BUDGET = 8
"""The default for how many times copies of a message are copied again."""

OFFSET_DIGITS = 8
"""Digits of a digest that are part of an offset."""

_DIGEST_CHARACTERS = 16
# Of 64 bits.
_SEQUENCE_CHARACTERS = 20
_REMEMBERED = 4096
_HOP_NAMES = frozenset(HOP_PROPERTIES)
_LENGTH = struct.Struct(">I").pack


def digest(message_id: bytes, body: bytes) -> str:
    """The digest that proves provenance: 64 bits of a hash over MessageId and body.

    It contains no secret: it distinguishes a copy from another message, and does not prevent forgery.

    Args:
        message_id: the MessageId's text in UTF-8; a MessageId of another type as clients show it.
        body: the contents of a single data section; any other body with its sections as encoded.
    """
    return sha1(b"%b\0%b" % (message_id, body), usedforsecurity=False).hexdigest()[:_DIGEST_CHARACTERS]


@dataclass(frozen=True, slots=True)
class Hop:
    """One namespace that a message was in.

    Attributes:
        alias: its alias in the file of the route that copied the message from it.
        entity: queue or topic there.
        namespace: the namespace's identity.
        sequence: the message's sequence number there; -1 where it cannot be read.
        enqueued: when it was enqueued there, as text.
    """

    alias: str
    entity: str
    namespace: str
    sequence: int
    enqueued: str

    def is_at(self, namespace: str, entity: str) -> bool:
        """Whether the hop is this entity of this namespace; Service Bus compares names without case."""
        return self.namespace == namespace and self.entity.lower() == entity.lower()


@dataclass(frozen=True, slots=True)
class Provenance:
    """The hops of a copy; the first is where it entered the federation.

    Attributes:
        hops: at least one.
        values: the properties as they are.
    """

    hops: tuple[Hop, ...]
    values: Mapping[str, str]

    @classmethod
    def read(cls, values: Mapping[str, object], message_id: bytes, body: bytes) -> Provenance | None:
        """The provenance of a message; None where it has none, or only parts of one, or carries that of another message (I1).

        Args:
            values: the message's application properties, at least those of provenance.
            message_id: as for `digest`.
            body: as for `digest`.
        """
        texts = {name: value for name, value in values.items() if isinstance(value, str)}
        if not texts.keys() >= _HOP_NAMES or texts.get(DIGEST) != digest(message_id, body):
            return None
        columns = [texts[name].split(";") for name in HOP_PROPERTIES]
        count = len(columns[0])
        if any(len(column) != count for column in columns):
            return None
        hops = []
        for origin, namespace, sequence, _, enqueued in zip(*columns, strict=True):
            alias, _, entity = origin.partition("/")
            is_number = sequence.isascii() and sequence.isdigit() and len(sequence) < _SEQUENCE_CHARACTERS
            hops.append(Hop(alias, entity, namespace, int(sequence) if is_number else -1, enqueued))
        return cls(tuple(hops), texts)

    def visited(self, namespace: str, entity: str) -> bool:
        """Whether the message has been in this entity."""
        return any(hop.is_at(namespace, entity) for hop in self.hops)


class Tail:
    """The encoded pairs of provenance that a route appends to the application properties of its copies.

    Args:
        origin: alias/entity that the route copies from.
        namespace: that namespace's identity.

    Attributes:
        first: keys and values up to the sequence number's value.
        offset: the offset's key.
        digest: the digest's key, and the head of its value.
    """

    __slots__ = ("_namespace", "_origin", "_times", "digest", "first", "offset")

    def __init__(self, origin: str, namespace: str) -> None:
        self._origin = origin
        self._namespace = namespace
        self.first = encoded(ORIGIN) + encoded(origin) + encoded(NAMESPACE) + encoded(namespace) + encoded(SEQUENCE)
        self.offset = encoded(OFFSET)
        self.digest = encoded(DIGEST) + b"\xa1%c" % _DIGEST_CHARACTERS
        self._times: dict[int, bytes] = {}

    def time(self, enqueued_ms: int) -> bytes:
        """The pair of the enqueued time; messages come in groups of the same millisecond."""
        pair = self._times.get(enqueued_ms)
        if pair is None:
            if len(self._times) >= _REMEMBERED:
                self._times.clear()
            pair = self._times[enqueued_ms] = encoded(TIME) + encoded(iso(enqueued_ms))
        return pair

    def joined(self, before: Provenance | None, sequence: int, enqueued_ms: int, proof: str = "") -> bytes:
        """All pairs with one value per hop: those before, and this one.

        Args:
            before: the hops before.
            sequence: the sequence number at this one.
            enqueued_ms: the wall time of enqueueing there.
            proof: `digest` of the message as it is there; empty where steps have changed it.
        """
        offset = f"{sequence}-{proof[:OFFSET_DIGITS]}" if proof else str(sequence)
        own = (self._origin, self._namespace, str(sequence), offset, iso(enqueued_ms))
        return b"".join(
            encoded(name) + encoded(value if before is None else f"{before.values[name]};{value}")
            for name, value in zip(HOP_PROPERTIES, own, strict=True)
        )


def encoded(text: str) -> bytes:
    """An AMQP string."""
    raw = text.encode()
    return b"\xa1%c%b" % (len(raw), raw) if len(raw) < 256 else b"\xb1" + _LENGTH(len(raw)) + raw


def iso(ms: int) -> str:
    """A wall time as provenance has it; a time that no calendar has is given as the number."""
    try:
        return _second(ms // 1000) + f"{ms % 1000:03d}Z"
    except (ValueError, OverflowError, OSError):
        return str(ms)


@lru_cache(16)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
