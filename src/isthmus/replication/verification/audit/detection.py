"""Which missing copies a target's duplicate detection dropped.

What it is: the proof that a copy is missing because its target contained an equal message: one with the same MessageId and
the same content is at the target, and the copy arrived within the window for which the target remembers
it. What it is not: a guess; without such a message a missing one counts as lost. A message with the same MessageId and other
content is not equal: detection then dropped a message whose content is nowhere else, which is a loss.

Publishers may share a MessageId, e.g. a publisher that sends each message to two namespaces to be safe, so that each drops the
other's copy: such a federation works as intended, and yet one of each two identities is missing.

Invariants:
    I1. A message is not compared with itself: another copy of the same identity proves nothing.
    I2. An equal message whose window had ended before the missing message entered anywhere proves nothing.
    I3. An equal message has the same body and properties.
    I4. Memory grows with the number of missing messages, not with what exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from isthmus.amqp import codec, section
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.replication.verification.audit.audited import Originals
from isthmus.replication.verification.content import content_digest
from isthmus.replication.verification.identity import Identity

__all__ = ["dropped_by_detection"]

Read = Callable[[], Iterator[tuple[bytes, Identity]]]
"""Browses a member's audited subscription from its beginning."""

Pair = tuple[str, str]
"""Aliases of an origin and of a member."""


class _Missing(NamedTuple):
    """A message that did not arrive; `entered_ms` is when it entered its origin, `digest` its content."""

    origin: str
    number: int
    entered_ms: int
    digest: int


def dropped_by_detection(
    missing: Mapping[Pair, AbstractSet[int]],
    reads: Mapping[str, Read],
    windows_ms: Mapping[str, int],
    originals: Mapping[str, Originals],
    marks: tuple[str, ...] = (),
) -> dict[Pair, set[int]]:
    """The missing messages whose absence an equal message at the target explains.

    Args:
        missing: by (origin, member), sequence numbers at the origin.
        reads: by alias, how to browse the member's audited subscription.
        windows_ms: by alias, the history window of the member's duplicate detection; absent or 0 where it is off.
        originals: by alias, the messages that publishers sent to the member.
        marks: see `content_digest`.

    Raises:
        IsthmusError: a namespace cannot be read.
    """
    sought = {pair: numbers for pair, numbers in missing.items() if numbers and windows_ms.get(pair[1])}
    found: dict[Pair, set[int]] = {}
    entered: dict[str, dict[int, tuple[str, int]]] = {}
    for origin in {pair[0] for pair in sought}:
        wanted = set().union(*(numbers for pair, numbers in sought.items() if pair[0] == origin))
        entered[origin] = _entered(reads[origin], wanted)
    for member in {pair[1] for pair in sought}:
        by_id: dict[str, list[_Missing]] = {}
        for (origin, at), numbers in sought.items():
            for number in numbers if at == member else ():
                message_id, entered_ms = entered[origin].get(number, ("", 0))
                if message_id:
                    by_id.setdefault(message_id, []).append(
                        _Missing(origin, number, entered_ms, originals[origin].digest(number))
                    )
        for each in _explained(reads[member], member, by_id, windows_ms[member], marks):
            found.setdefault((each.origin, member), set()).add(each.number)
    return found


def _entered(read: Read, wanted: AbstractSet[int]) -> dict[int, tuple[str, int]]:
    """MessageId and time of entry of the wanted messages that publishers sent to this member."""
    return {
        identity.number: (_message_id(message), peeked_message(message).enqueued_ms)
        for message, identity in read()
        if not identity.origin and identity.number in wanted
    }


def _explained(
    read: Read, member: str, by_id: Mapping[str, Sequence[_Missing]], window_ms: int, marks: tuple[str, ...]
) -> Iterator[_Missing]:
    if not by_id:
        return
    for message, identity in read():
        equals = by_id.get(_message_id(message))
        if not equals:
            continue
        here = (identity.origin or member, identity.number)
        until_ms = peeked_message(message).enqueued_ms + window_ms
        digest = content_digest(message, marks)
        for each in equals:
            if (each.origin, each.number) != here and each.entered_ms <= until_ms and each.digest == digest:
                yield each


def _message_id(message: bytes) -> str:
    """The MessageId as text, or its bytes where it cannot be decoded; empty where there is none."""
    at = section.message_id_at(message, section.locate(message).properties)
    if not at:
        return ""
    try:
        return str(codec.decode(message, at)[0])
    except codec.CodecError:
        return message[at : codec.value_end(message, at)].hex()
