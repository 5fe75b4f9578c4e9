"""The messages at the head of an entity.

What it is: queries by `$management` peek, which lock no message: whether any message waits, which sequence number is the
last, and whether one was skipped. What it is not: a count (AMQP has none).

Invariants:
    I3. A read of all existing messages ends, however fast messages arrive meanwhile (`pages`).
    I1. Deferred, scheduled and expired messages do not count as waiting.
    I2. A query costs one request where the first message decides, which is the normal case, and the answer is that message alone: messages may be large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from isthmus.amqp import section
from isthmus.amqp.section import locate
from isthmus.connectors.servicebus.message.sequence import annotations_of, sequences_of

__all__ = [
    "FRAGMENT_BITS",
    "KnowsLast",
    "PeekedMessage",
    "first_hole",
    "first_waiting",
    "last_sequence",
    "pages",
    "spans",
    "peeked_message",
    "waiting_at_most",
]

PAGE = 32
# Sequence numbers of a partitioned entity have the fragment in their upper bits: at the service, and so in `isthmus.entities`,
# which a Spark worker need not import for it.
FRAGMENT_BITS = 48
_ENOUGH = 1 << 62

Peek = Callable[[int, int], Sequence[bytes]]


@runtime_checkable
class KnowsLast(Protocol):
    """A peek of an entity whose server reports its end, as a log's does."""

    def last_sequence(self, below: int) -> int:
        """The last sequence number below a limit; 0 if there is none. No message is between it and the limit, possibly none at the number itself."""
        ...


class PeekedMessage(NamedTuple):
    """A peeked message; `expires_at_ms` is 0 where it never expires."""

    sequence: int
    state: int
    enqueued_ms: int
    expires_at_ms: int


def peeked_message(message: bytes) -> PeekedMessage:
    """The peeked message of an encoded message."""
    annotations = annotations_of(message, "x-opt-sequence-number", "x-opt-message-state", "x-opt-enqueued-time")
    enqueued_ms = int(annotations.get("x-opt-enqueued-time") or 0)
    ttl_ms = section.decode_header(message, locate(message).header).ttl_ms or 0
    expires = enqueued_ms + ttl_ms if 0 < ttl_ms < 0xFFFFFFFF else 0
    return PeekedMessage(
        int(annotations["x-opt-sequence-number"]),
        int(annotations.get("x-opt-message-state") or 0),
        enqueued_ms,
        expires,
    )


def _one_by_one(peek: Peek, start: int) -> Iterator[PeekedMessage]:
    """The first message (I2), then the others in pages."""
    count = 1
    while True:
        page = [peeked_message(message) for message in peek(start, count)]
        yield from page
        if not page:  # a shorter one than requested may have been cut by its size
            return
        start, count = page[-1].sequence + 1, PAGE


def _waits(found: PeekedMessage, now_ms: int) -> bool:
    return found.state == 0 and not 0 < found.expires_at_ms <= now_ms


def first_waiting(
    peek: Peek, now_ms: int, through: int = _ENOUGH, *, start: int = 0, until_ms: int = _ENOUGH
) -> PeekedMessage | None:
    """The first message that may be received, from sequence number `start` up to `through`, of those that were enqueued until
    `until_ms`; it may be locked.
    """
    for found in _one_by_one(peek, start):
        if found.sequence > through:
            return None
        if found.enqueued_ms <= until_ms and _waits(found, now_ms):
            return found
    return None


def first_hole(peek: Peek, now_ms: int, before: int, sequences: Sequence[int]) -> PeekedMessage | None:
    """A message between the received ones that another receiver has locked: the locks of a reader that died outlive it. Between
    the fragments of a partitioned entity there is no order, and no gap.

    Args:
        peek: peeks at the entity.
        now_ms: wall time.
        before: the highest sequence number received before.
        sequences: the numbers received now.
    """
    if isinstance(sequences, range) and sequences[0] == before + 1:
        return None
    for sequence in sequences:
        if sequence > before + 1 and sequence >> FRAGMENT_BITS == before >> FRAGMENT_BITS:
            found = first_waiting(peek, now_ms, sequence - 1, start=before + 1)
            if found is not None:
                return found
        before = max(before, sequence)
    return None


def last_sequence(peek: Peek, start: int, below: int = _ENOUGH) -> int:
    """The last sequence number of the entity, or the last below a limit, found by doubling and halving from `start`; 0 if
    there is none. A peek that knows it is queried instead.
    """
    asked: object = peek
    if isinstance(asked, KnowsLast):
        return asked.last_sequence(below)

    def exists(number: int) -> bool:
        return (
            number < below
            and bool(page := peek(number, 1))
            and (below == _ENOUGH or peeked_message(page[0]).sequence < below)
        )

    first = peek(0, 1)
    if not first:
        return 0
    low = max(start, peeked_message(first[0]).sequence)
    if not exists(low):
        low = peeked_message(first[0]).sequence
    step = 1
    while exists(low + step):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if exists(middle):
            low = middle
        else:
            high = middle
    return low


def spans(peek: Peek, head: int, tail: int) -> Iterator[tuple[int, int]]:
    """First and last sequence number between two that exist, of each fragment; an ordinary entity has one."""
    while head >> FRAGMENT_BITS < tail >> FRAGMENT_BITS:
        end = ((head >> FRAGMENT_BITS) + 1) << FRAGMENT_BITS
        yield head, last_sequence(peek, head, end)
        after = peek(end, 1)
        if not after:
            return
        head = peeked_message(after[0]).sequence
    if head <= tail:
        yield head, tail


def pages(peek: Peek, count: int, start: int = 0) -> Iterator[list[bytes]]:
    """All messages from a sequence number on that exist when the second page is read, up to `count` per page. Later messages are
    omitted: publishers may be faster than the reader.
    """
    page = list(peek(start, count))
    if not page:
        return
    yield page
    at = peeked_message(page[-1]).sequence + 1
    page = list(peek(at, count))
    ends = spans(peek, at, last_sequence(peek, at)) if page else ()
    lasts = {last >> FRAGMENT_BITS: last for _, last in ends}
    while page:
        sequences = list(sequences_of(page))
        numbered = zip(sequences, page, strict=True)
        if kept := [message for sequence, message in numbered if sequence <= lasts.get(sequence >> FRAGMENT_BITS, -1)]:
            yield kept
        at = sequences[-1] + 1
        if sequences[-1] >= lasts.get(fragment := sequences[-1] >> FRAGMENT_BITS, -1):
            following = min((each for each in lasts if each > fragment), default=None)
            if following is None:
                return
            at = max(at, following << FRAGMENT_BITS)
        page = list(peek(at, count))


def waiting_at_most(peek: Peek, head: int, tail: int) -> int:
    """How many messages there may be between two existing sequence numbers; AMQP has no count."""
    return sum(last - first + 1 for first, last in spans(peek, head, tail))
