"""The unfinished messages of a sink.

What it is: payloads and source positions by index, and the flush rows between them. Messages are numbered from 0 in the order
in which they are handed over; an index never changes. A message is finished when the target accepted it or it got another
disposition. What it is not: whether a message is in flight (`in_flight`), or what to do with it (`delivery`).

Invariants:
    I1. A flush row is returned exactly once: when every message that was handed over before it is finished.
    I2. `unfinished` counts the messages that were added and are not finished.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain

from isthmus.bridge.index_set import IndexSet
from isthmus.bridge.lease.content_name import content_name
from isthmus.bridge.refusal_memory import MessageKey

__all__ = ["Outbox", "Run"]


class Run:
    """Messages handed over together; `positions` is None where nothing is settled at a source."""

    __slots__ = ("flushes", "payloads", "positions", "start", "stop")

    def __init__(self, start: int, payloads: Sequence[bytes], positions: Sequence[int] | None) -> None:
        self.start = start
        self.stop = start + len(payloads)
        self.payloads = payloads
        self.positions = positions
        self.flushes: list[int] = []


def _start_of(run: Run) -> int:
    return run.start


class Outbox:
    """The messages that were handed over and are not finished.

    Attributes:
        front: the lowest index that is not finished; `end` where there is none.
        end: the index of the next message that is handed over.
    """

    def __init__(self) -> None:
        self.front = 0
        self.end = 0
        self._runs: deque[Run] = deque()
        self._finished = IndexSet()  # above `front`

    @property
    def unfinished(self) -> int:
        """Messages handed over and not finished."""
        return self.end - self.front - self._finished.count

    def add(self, payloads: Sequence[bytes], positions: Sequence[int] | None) -> None:
        """Takes messages."""
        if payloads:
            self._runs.append(Run(self.end, payloads, positions))
            self.end += len(payloads)

    def add_flush(self, number: int) -> list[int]:
        """Takes a flush row; the flush rows that are due."""
        if self.front == self.end:
            return [number]
        self._runs[-1].flushes.append(number)
        return []

    def parts(self, start: int, stop: int) -> list[tuple[Run, int, int]]:
        """The runs that hold start up to stop: (run, offset of the first, offset behind the last)."""
        runs = self._runs
        if not runs:
            return []
        for run in (runs[0], runs[-1]):
            if run.start <= start and stop <= run.stop:
                return [(run, start - run.start, stop - run.start)]
        found = []
        at = 0 if start < runs[0].stop else bisect_right(runs, start, key=_start_of) - 1
        while start < stop:
            run = runs[at]
            behind = min(stop, run.stop)
            found.append((run, start - run.start, behind - run.start))
            start = behind
            at += 1
        return found

    def joined(self, start: int, stop: int) -> list[tuple[Run, int, int]]:
        """As `parts`, with one run for all, since an envelope may hold messages that were handed over at different times."""
        parts = self.parts(start, stop)
        if len(parts) < 2:
            return parts
        payloads = list(chain.from_iterable(run.payloads[low:high] for run, low, high in parts))
        return [(Run(start, payloads, None), 0, len(payloads))]

    def position(self, index: int) -> int | None:
        """The source position of a message; None where it has none."""
        run, offset, _ = self.parts(index, index + 1)[0]
        return None if run.positions is None else run.positions[offset]

    def payload(self, index: int) -> bytes:
        """A message that is not finished."""
        run, offset, _ = self.parts(index, index + 1)[0]
        return run.payloads[offset]

    def key(self, index: int) -> MessageKey | None:
        """The key by which other openings identify an unfinished message; None where it has no position."""
        position = self.position(index)
        return None if position is None else (position, content_name(self.payload(index)))

    def unfinished_below(self, stop: int) -> Iterator[tuple[int, int]]:
        """The unfinished messages below `stop`, as ranges."""
        start = self.front
        for low, high in self._finished:
            if start < min(low, stop):
                yield start, min(low, stop)
            start = high
        if start < stop:
            yield start, stop

    def finish(self, start: int, stop: int) -> list[int]:
        """Finishes the messages from start up to stop, which were unfinished; returns the flush rows that are due."""
        if start != self.front:
            self._finished.add(start, stop)
            return []
        self.front = stop
        if self._finished and self._finished.first()[0] == stop:
            low, self.front = self._finished.first()
            self._finished.remove(low, self.front)
        due: list[int] = []
        runs = self._runs
        while runs and runs[0].stop <= self.front:
            due += runs.popleft().flushes
        return due
