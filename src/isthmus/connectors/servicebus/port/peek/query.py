"""Non-blocking peeks at an entity.

What it is: the queries of `isthmus.connectors.servicebus.head` as steps: each requests a page and continues when it is available. What
it is not: the requests (`node`).

Invariants:
    I1. A query requests one page at a time, and none where the received messages decide.
    I2. A search for gaps requests no page twice, however many gaps there are.
    I3. Deferred, scheduled and expired messages do not count as waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from isthmus.connectors.servicebus.head import FRAGMENT_BITS, PeekedMessage, peeked_message

__all__ = ["PeekQuery", "Page", "first_hole", "first_waiting", "last_sequences"]

PAGE = 32
_ACTIVE = 0
_EVERYTHING = 1 << 64


class Page(NamedTuple):
    """A page that a query requests: messages from a sequence number on, at most so many."""

    start: int
    size: int


T = TypeVar("T")
Steps = Generator[Page, Sequence[bytes], T]


class PeekQuery(Generic[T]):
    """A query in progress.

    Attributes:
        wanted: the page to request; None once there is a result.
        result: the result.
    """

    def __init__(self, steps: Steps[T]) -> None:
        self.wanted: Page | None = None
        self.result: T | None = None
        self._steps = steps
        try:
            self.wanted = next(steps)
        except StopIteration as end:
            self.result = end.value

    def answer(self, messages: Sequence[bytes]) -> None:
        """Passes the requested page; no messages where there are none."""
        try:
            self.wanted = self._steps.send(messages)
        except StopIteration as end:
            self.wanted, self.result = None, end.value


def first_waiting(
    now_ms: int, start: int, through: int, is_ours: Callable[[int], bool] = lambda sequence: False
) -> Steps[PeekedMessage | None]:
    """The first message that waits, or is locked by another receiver, from `start` up to `through`."""
    while True:
        page = [peeked_message(message) for message in (yield Page(start, PAGE))]
        for found in page:
            if found.sequence > through:
                return None
            if _waits(found, now_ms) and not is_ours(found.sequence):
                return found
        if not page:  # a shorter one than requested may have been cut by its size
            return None
        start = page[-1].sequence + 1


def first_hole(now_ms: int, before: Mapping[int, int], sequences: Sequence[int]) -> Steps[PeekedMessage | None]:
    """A message before or between the received ones, in the same fragment, that another receiver has locked.

    Args:
        now_ms: wall time.
        before: the highest sequence number received before, by fragment.
        sequences: the numbers received now; a range is of one fragment.
    """
    passed = dict(before)
    known: dict[
        int, tuple[int, int, list[PeekedMessage]]
    ] = {}  # by fragment, all existing numbers from one sequence number up to another
    for sequence in sequences[:1] if isinstance(sequences, range) else sequences:
        fragment = sequence >> FRAGMENT_BITS
        last = passed.get(fragment, fragment << FRAGMENT_BITS)
        start = last + 1
        while start < sequence:
            low, high, page = known.get(fragment, (0, -1, []))
            if not low <= start <= high:
                page = [peeked_message(message) for message in (yield Page(start, PAGE))]
                high = page[-1].sequence if page else _EVERYTHING
                known[fragment] = start, high, page
            for found in page:
                if start <= found.sequence < sequence and _waits(found, now_ms):
                    return found
            start = high + 1
        passed[fragment] = max(last, sequence)
    return None


def last_sequences() -> Steps[dict[int, int]]:
    """The last sequence number of each fragment; an ordinary entity has one, fragment 0."""
    lasts: dict[int, int] = {}
    start = 0
    while True:
        page = yield Page(start, 1)
        if not page:
            return lasts
        first = peeked_message(page[0]).sequence
        fragment = first >> FRAGMENT_BITS
        end = (fragment + 1) << FRAGMENT_BITS
        lasts[fragment] = yield from _last(first, end)
        start = end


def _last(first: int, end: int) -> Steps[int]:
    """The last sequence number below `end`, by doubling and halving from `first`, which exists."""
    low, step = first, 1
    while True:
        found = yield from _next(low + step, end)
        if not found:
            break
        low, step = found, 2 * step
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        found = yield from _next(middle, end)
        if found:
            low = found
        else:
            high = middle
    return low


def _next(start: int, end: int) -> Steps[int]:
    """The first sequence number from `start` on that is below `end`; 0 if there is none."""
    if start >= end:
        return 0
    page = yield Page(start, 1)
    found = peeked_message(page[0]).sequence if page else 0
    return found if found < end else 0


def _waits(found: PeekedMessage, now_ms: int) -> bool:
    return found.state == _ACTIVE and not 0 < found.expires_at_ms <= now_ms
