"""What stands at the head of an entity.

What it is: looks by `$management` peek, which lock nothing: whether anything waits, and which sequence number is the
last, and whether one was passed over. What it is not: a count (AMQP has none).

Invariants:
    I1. Deferred, scheduled and expired messages do not count as waiting.
    I2. A look costs one request where the first message decides, which is the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from isthmus.amqp import section
from isthmus.amqp.section import locate

__all__ = ["Standing", "first_hole", "first_waiting", "last_sequence", "standing"]

PAGE = 32
_ENOUGH = 1 << 62

Peek = Callable[[int, int], Sequence[bytes]]


class Standing(NamedTuple):
    """A message as a look shows it; `expires_at_ms` is 0 where it never expires."""

    sequence: int
    state: int
    enqueued_ms: int
    expires_at_ms: int


def standing(message: bytes) -> Standing:
    """What a look tells about one encoded message."""
    sections = locate(message)
    annotations = {str(k): v for k, v in section.decode_map(message, sections.message_annotations).items()}
    enqueued_ms = int(annotations.get("x-opt-enqueued-time") or 0)
    ttl_ms = section.decode_header(message, sections.header).ttl_ms or 0
    expires = enqueued_ms + ttl_ms if 0 < ttl_ms < 0xFFFFFFFF else 0
    return Standing(
        int(annotations["x-opt-sequence-number"]),
        int(annotations.get("x-opt-message-state") or 0),
        enqueued_ms,
        expires,
    )


def _pages(peek: Peek, start: int, count: int) -> Iterator[Standing]:
    while True:
        page = [standing(message) for message in peek(start, count)]
        yield from page
        if len(page) < count:
            return
        start = page[-1].sequence + 1


def _waits(found: Standing, now_ms: int) -> bool:
    return found.state == 0 and not 0 < found.expires_at_ms <= now_ms


def first_waiting(peek: Peek, now_ms: int, through: int = _ENOUGH, *, start: int = 0) -> Standing | None:
    """The first message that may be received, from sequence number `start` up to `through`; it may be locked."""
    for found in _pages(peek, start, PAGE):
        if found.sequence > through:
            return None
        if _waits(found, now_ms):
            return found
    return None


def first_hole(peek: Peek, now_ms: int, before: int, sequences: Sequence[int]) -> Standing | None:
    """A message between those that came that somebody else holds: the locks of a reader that died live on.

    Args:
        peek: looks at the entity.
        now_ms: wall time.
        before: the highest sequence number that came before.
        sequences: what came now.
    """
    if isinstance(sequences, range) and sequences[0] == before + 1:
        return None
    for sequence in sequences:
        if sequence > before + 1:
            found = first_waiting(peek, now_ms, sequence - 1, start=before + 1)
            if found is not None:
                return found
        before = max(before, sequence)
    return None


def last_sequence(peek: Peek, start: int) -> int:
    """The last sequence number of the entity, found by doubling and halving from `start`; 0 if it is empty."""
    first = peek(0, 1)
    if not first:
        return 0
    low = max(start, standing(first[0]).sequence)
    if not peek(low, 1):
        low = standing(first[0]).sequence
    step = 1
    while peek(low + step, 1):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        if peek(middle, 1):
            low = middle
        else:
            high = middle
    return low
