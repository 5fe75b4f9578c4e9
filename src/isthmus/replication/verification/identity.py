"""The identity of a message, wherever it is.

What it is: reading, from an encoded message as it was received or peeked, the identity that copying does not change: the
namespace that it entered, the entity there and its sequence number there (docs/explanation/guarantees.md). What it is
not: the forms of provenance (`isthmus.message`), and their writing, which is the sink's.

Invariants:
    I1. A copy is identified by the first hop of its provenance, or, for one task, by the first hop in an origin of that task:
        a message from elsewhere entered the task where it entered its first origin.
    I2. A message without provenance entered where it is; its number is the topic's where it is in a
        subscription (`x-opt-enqueue-sequence-number`), else its own.
    I3. Provenance that does not match the message, or that cannot be read, counts as none; but in an entity for diverted messages it need not
        match: an operator who corrects a message there changes its body.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from isthmus.amqp import codec, section
from isthmus.message import Provenance, digest
from isthmus.message.name import (
    DEAD_LETTER_REASON,
    DIGEST,
    ENQUEUE_SEQUENCE,
    OFFSET,
    ORIGIN,
    OWN_PROPERTIES,
    RESENT,
    SEQUENCE_NUMBER,
    WHY_ROUTE,
)
from isthmus.message.provenance import OFFSET_DIGITS, Hop

__all__ = ["Identity", "Members", "identify", "provenance_of"]


def _keys(names: frozenset[str], short: int) -> dict[bytes, str]:
    return {bytes((short, len(name))) + name.encode(): name for name in names}


_PROPERTIES = _keys(OWN_PROPERTIES | {DEAD_LETTER_REASON, RESENT, WHY_ROUTE}, 0xA1)
_ANNOTATIONS = _keys(frozenset((SEQUENCE_NUMBER, ENQUEUE_SEQUENCE)), 0xA3)

# Of 64 bits.
_LONGEST_NUMBER = 20


class Identity(NamedTuple):
    """The position of a message here and at its origin.

    Attributes:
        sequence: its sequence number in the entity that was read.
        origin: alias of the namespace that it entered, with the entity where the task has several there; empty where it
            entered the entity that was read.
        entity: the entity there; empty where it entered this one.
        number: its sequence number there.
        reason: why it was dead-lettered; empty where it was not.
        resent: the number under which it had entered here before, and was dead-lettered; 0 where it was not.
        entered_ms: when it entered there, according to its provenance; 0 where it entered this entity, or where that does not say.
        is_late: whether `isthmus redrive` has sent this copy: it is behind later ones, and an operator may have changed it.
        proof: the digits of the message's digest there, which differ between messages that rules made of one; 0 where the copy has none.
    """

    sequence: int
    origin: str
    entity: str
    number: int
    reason: str
    resent: int = 0
    entered_ms: int = 0
    is_late: bool = False
    proof: int = 0


class Members(NamedTuple):
    """The entities that messages enter for a task, by which the task recognizes its own hops.

    Attributes:
        labels: by identity of the namespace and by the entity's name in lower case, the audit's label.
    """

    labels: Mapping[tuple[str, str], str]

    def first(self, provenance: Provenance) -> tuple[str, Hop] | None:
        """The first hop in one of these entities, where the message entered as far as the task is concerned."""
        for hop in provenance.hops:
            label = self.labels.get((hop.namespace, hop.entity.lower()))
            if label is not None:
                return label, hop
        return None


def identify(message: bytes, members: Members | None = None, *, is_diverted: bool = False) -> Identity:
    """Read a received or peeked message's identity.

    Args:
        message: as received or peeked.
        members: those of the task: other hops do not count; None: all hops count, by the aliases that they contain.
        is_diverted: whether it was read from an entity that steps divert to.

    Raises:
        CodecError: the bytes are no message.
    """
    sections = section.locate(message)
    annotations = _values(message, sections.message_annotations, _ANNOTATIONS)
    properties = _values(message, sections.application_properties, _PROPERTIES)
    sequence = int(annotations.get(SEQUENCE_NUMBER) or 0)
    reason = str(properties.get(DEAD_LETTER_REASON) or "")
    if is_diverted and WHY_ROUTE in properties:
        provenance = Provenance.read({**properties, DIGEST: digest(b"", b"")}, b"", b"")
    else:
        provenance = _provenance(message, sections, properties)
    if provenance is not None:
        first = provenance.hops[0]
        entered = (first.alias, first) if members is None else members.first(provenance)
        if entered is not None:
            label, hop = entered
            again, place = properties.get(RESENT), provenance.hops.index(hop)
            is_late = again is not None and _is_of(str(again), provenance.hops[place:])
            proof = _proof(provenance.values[OFFSET].split(";")[place])
            return Identity(
                sequence, label, hop.entity, hop.sequence, reason,
                entered_ms=_ms(hop.enqueued), is_late=is_late, proof=proof,
            )  # fmt: skip
    enqueued = annotations.get(ENQUEUE_SEQUENCE)
    before = str(properties.get(RESENT) or "")
    resent = int(before) if before.isascii() and before.isdigit() and len(before) < _LONGEST_NUMBER else 0
    return Identity(sequence, "", "", int(enqueued) if enqueued else sequence, reason, resent)


def _is_of(position: str, hops: Sequence[Hop]) -> bool:
    """Whether the message that was sent again is the one of one of these hops: copies of the copy carry the property, too."""
    return any(position == f"{each.alias}/{each.entity}/{each.sequence}" for each in hops)


def _proof(offset: str) -> int:
    """The digits of the digest in an offset; 0 where it has none."""
    try:
        return int(offset.partition("-")[2][:OFFSET_DIGITS], 16)
    except ValueError:
        return 0


def _ms(text: str) -> int:
    """A time in provenance, in milliseconds; 0 where the text is no time."""
    try:
        return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def provenance_of(message: bytes) -> Provenance | None:
    """Where a message has been; None where its provenance does not prove that it has been elsewhere.

    Raises:
        CodecError: the bytes are no message.
    """
    sections = section.locate(message)
    return _provenance(message, sections, _values(message, sections.application_properties, _PROPERTIES))


def _provenance(message: bytes, sections: section.Sections, properties: Mapping[str, Any]) -> Provenance | None:
    if ORIGIN not in properties:
        return None
    start = sections.body[0] or sections.footer[0]
    contents = section.contents(message, start, max(sections.body[1], sections.footer[1])) if start else b""
    message_id = b""
    with suppress(codec.CodecError):
        at = section.message_id_at(message, sections.properties)
        message_id = section.message_id_text(message, at) or b""
    return Provenance.read(properties, message_id, contents)


def _values(message: bytes, where: tuple[int, int], keys: Mapping[bytes, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value, _ in section.map_items(message, where):
        name = keys.get(message[key:value])
        if name is not None:
            with suppress(codec.CodecError):
                found[name] = codec.decode(message, value)[0]
    return found
