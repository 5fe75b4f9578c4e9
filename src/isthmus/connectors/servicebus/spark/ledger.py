"""The unsettled deliveries of a lease.

What it is: the account of one receiver link, kept as runs: sequence number → delivery id and lock token. The sink settles
by sequence number; the link and the management node settle by delivery id and lock token. What it is not: it sends
nothing; it keeps no message.

Invariants:
    I1. A delivery is outstanding from `add` until the first `settle` that covers its sequence number, or `clear`.
    I2. A sequence number that is delivered again while it is outstanding replaces its older delivery, whose lock is lost.
    I3. Memory grows with the number of runs; the numbers and the delivery ids of a run are consecutive.
    I4. The bytes of a delivery count until it is settled or cleared; deliveries that arrived together have equal shares.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Ledger", "Span", "runs_of"]


def runs_of(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Consecutive ascending runs of `numbers` as (index of the first, index after the last)."""
    count = len(numbers)
    if not count:
        return []
    if numbers[-1] - numbers[0] == count - 1 and (isinstance(numbers, range) or _ascending(numbers)):
        return [(0, count)]
    cuts = [0, *(i + 1 for i in range(count - 1) if numbers[i + 1] != numbers[i] + 1), count]
    return list(pairwise(cuts))


def _ascending(numbers: Sequence[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(numbers))


class Span(NamedTuple):
    """Deliveries that are consecutive in sequence number and delivery id; `tokens` are their lock tokens."""

    sequence: int
    delivery_id: int
    tokens: Sequence[bytes]

    @property
    def last_id(self) -> int:
        """The last delivery's id."""
        return self.delivery_id + len(self.tokens) - 1


class Ledger:
    """The account of one link.

    Attributes:
        outstanding: unsettled deliveries.
        outstanding_bytes: their size.
        added: all deliveries received.
        settled: all deliveries settled.
        unknown: sequence numbers to settle that were not outstanding.
    """

    def __init__(self) -> None:
        self.outstanding = 0
        self.outstanding_bytes = 0
        self.added = 0
        self.settled = 0
        self.unknown = 0
        self._starts: list[int] = []
        self._spans: list[Span] = []
        # Deliveries that arrived together: delivery id of the last, and the outstanding deliveries and bytes.
        self._last_ids: list[int] = []
        self._loads: list[list[int]] = []

    @property
    def first_sequence(self) -> int | None:
        """The lowest outstanding sequence number."""
        return self._starts[0] if self._starts else None

    def add(self, sequences: Sequence[int], first_id: int, tokens: Sequence[bytes], nbytes: int = 0) -> None:
        """Adds deliveries from `first_id` on, with their total size."""
        self.added += len(sequences)
        self._last_ids.append(first_id + len(sequences) - 1)
        self._loads.append([len(sequences), nbytes])
        self.outstanding_bytes += nbytes
        for low, high in runs_of(sequences):
            self._add_run(Span(sequences[low], first_id + low, tokens[low:high]))

    def _add_run(self, span: Span) -> None:
        count = len(span.tokens)
        if self._starts and span.sequence <= self._end(-1):
            self.outstanding -= sum(len(old.tokens) for old in self._cut(span.sequence, span.sequence + count - 1))
        at = bisect_right(self._starts, span.sequence)
        self._starts.insert(at, span.sequence)
        self._spans.insert(at, span)
        self.outstanding += count

    def _end(self, index: int) -> int:
        span = self._spans[index]
        return span.sequence + len(span.tokens) - 1

    def settle(self, first: int, last: int) -> list[Span]:
        """Removes sequence numbers first to last from the account; returns the deliveries to settle."""
        found = self._cut(first, last)
        count = sum(len(span.tokens) for span in found)
        self.outstanding -= count
        self.settled += count
        self.unknown += last - first + 1 - count
        return found

    def _cut(self, first: int, last: int) -> list[Span]:
        found: list[Span] = []
        at = max(0, bisect_right(self._starts, first) - 1)
        begin = at
        keep: list[Span] = []
        while at < len(self._spans) and self._starts[at] <= last:
            span = self._spans[at]
            low = max(0, first - span.sequence)
            high = min(len(span.tokens), last - span.sequence + 1)
            at += 1
            if low >= high:
                keep.append(span)
                continue
            found.append(Span(span.sequence + low, span.delivery_id + low, span.tokens[low:high]))
            if low:
                keep.append(Span(span.sequence, span.delivery_id, span.tokens[:low]))
            if high < len(span.tokens):
                keep.append(Span(span.sequence + high, span.delivery_id + high, span.tokens[high:]))
        self._spans[begin:at] = keep
        self._starts[begin:at] = [span.sequence for span in keep]
        for span in found:
            self._unload(span)
        return found

    def _unload(self, span: Span) -> None:
        first, last = span.delivery_id, span.last_id
        at = bisect_left(self._last_ids, first)
        while first <= last:
            load, end = self._loads[at], min(last, self._last_ids[at])
            count = end + 1 - first
            part = load[1] * count // load[0]
            load[0] -= count
            load[1] -= part
            self.outstanding_bytes -= part
            first = end + 1
            at += 1
        done = 0
        while done < len(self._loads) and not self._loads[done][0]:
            done += 1
        if done:
            del self._loads[:done], self._last_ids[:done]

    def spans(self) -> Iterator[Span]:
        """The outstanding deliveries, lowest sequence number first."""
        return iter(tuple(self._spans))

    def clear(self) -> list[Span]:
        """Removes everything from the account; returns the outstanding deliveries."""
        left, self._spans, self._starts = self._spans, [], []
        self._last_ids, self._loads = [], []
        self.outstanding = self.outstanding_bytes = 0
        return left
