"""Who a message is, wherever it stands.

What it is: reading, from an encoded message as it was received or peeked, the identity that no copy changes: the
namespace that it entered, the entity there and its sequence number there (docs/explanation/guarantees.md). What it is
not: the writing of provenance, which is the sink's.

Invariants:
    I1. A copy is known by the first hop of its provenance, or, for one task, by the first hop that is a member's entity of
        that task: what came from elsewhere entered the task where it entered its first member.
    I2. A message without provenance entered where it stands; its number is the topic's where it stands in a
        subscription (`x-opt-enqueue-sequence-number`), else its own.
    I3. The body is never decoded. Provenance that nobody can read counts as none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from isthmus.amqp import codec, section

__all__ = ["ORIGIN", "SEQUENCE", "Identity", "Members", "identify"]

ORIGIN = "repl-origin"
SEQUENCE = "repl-sequence"
DEAD_LETTER_REASON = "DeadLetterReason"
# Of 64 bits: a publisher may write anything there.
_NUMBER = re.compile(r"[0-9]{1,19}")


def _text_key(name: str, short: int) -> bytes:
    return bytes((short, len(name))) + name.encode()


_ORIGIN_KEY = _text_key(ORIGIN, 0xA1)
_SEQUENCE_KEY = _text_key(SEQUENCE, 0xA1)
_REASON_KEY = _text_key(DEAD_LETTER_REASON, 0xA1)
_OWN_SEQUENCE_KEY = _text_key("x-opt-sequence-number", 0xA3)
_ENQUEUE_SEQUENCE_KEY = _text_key("x-opt-enqueue-sequence-number", 0xA3)


class Identity(NamedTuple):
    """A message's place here and at its origin.

    Attributes:
        sequence: its sequence number in the entity that was read.
        origin: alias of the namespace that it entered; empty where it entered this one.
        entity: the entity there; empty where it entered this one.
        number: its sequence number there.
        reason: why it was dead-lettered; empty where it was not.
    """

    sequence: int
    origin: str
    entity: str
    number: int
    reason: str


class Members(NamedTuple):
    """The members of a task, by which it knows the hops that are its own.

    Attributes:
        aliases: by namespace identity, the alias in the task's file.
        entity: the task's queue or topic.
    """

    aliases: Mapping[str, str]
    entity: str


def identify(message: bytes, members: Members | None = None) -> Identity:
    """Read a received or peeked message's identity.

    Args:
        message: as received or peeked.
        members: of the task: other hops do not count; None: all hops count, by the aliases that they tell.

    Raises:
        CodecError: the bytes are no message.
    """
    sections = section.locate(message)
    annotations = _values(message, sections.message_annotations, (_OWN_SEQUENCE_KEY, _ENQUEUE_SEQUENCE_KEY))
    properties = _values(message, sections.application_properties, (_ORIGIN_KEY, _SEQUENCE_KEY, _REASON_KEY))
    sequence = int(annotations.get(_OWN_SEQUENCE_KEY) or 0)
    reason = str(properties.get(_REASON_KEY) or "")
    provenance = properties.get(_ORIGIN_KEY)
    if isinstance(provenance, str) and provenance:
        hops = provenance.split(";")
        at = 0 if members is None else next((i for i, hop in enumerate(hops) if _is_member(hop, members)), -1)
        if at >= 0:
            origin, _, entity = hops[at].partition("/")
            numbers = str(properties.get(_SEQUENCE_KEY, "")).split(";")
            number = int(numbers[at]) if at < len(numbers) and _NUMBER.fullmatch(numbers[at]) else -1
            return Identity(sequence, origin, entity, number, reason)
    enqueued = annotations.get(_ENQUEUE_SEQUENCE_KEY)
    return Identity(sequence, "", "", int(enqueued) if enqueued else sequence, reason)


def _is_member(hop: str, members: Members) -> bool:
    alias, _, entity = hop.partition("/")
    return alias in members.aliases and entity.lower() == members.entity.lower()


def _values(message: bytes, where: tuple[int, int], keys: tuple[bytes, ...]) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {}
    for key, value, _ in section.map_items(message, where):
        for wanted in keys:
            if message.startswith(wanted, key):
                with suppress(codec.CodecError):
                    found[wanted] = codec.decode(message, value)[0]
                break
    return found
