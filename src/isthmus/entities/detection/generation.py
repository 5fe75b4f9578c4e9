"""Generations: periods as long as the detection window, by which seen ids and keys are stored.

What it is: the generations that a lookup reads, the prefixes of their rows, and the time at which they are dropped. Two cover a
window; a third one is read where the clock was set back. An old one is dropped as one range. Where the window's length is changed, the rows of the
former length stay in an era of their own, until they are over by the new length. A row in a table of its own lists
the eras. What it is not: the rows (`detection`, `key_run`).

Invariants:
    I1. Every generation that may have something seen less than a window ago is among those read, also where
        the clock was set back by up to a window since, restarts and changes of the window in between or not.
    I2. A generation is dropped only when a clock that is set back by a window does not need it.
    I3. Generations of two eras have no row in common.
    I4. A read that the store refuses changes nothing here: the next call reads everything again.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from isthmus.entities.storage.key import after, detection_generation, detection_key, eras_key
from isthmus.entities.storage.staging import Staging

__all__ = ["Generations"]

# Above the number of a generation, which is large enough for windows of a millisecond.
_ERA_BITS = 48
_GENERATION_MASK = (1 << _ERA_BITS) - 1
_MOST_ERAS = 1 << 15
_ERA = struct.Struct(">HQ")  # (era, window in ms), the current one last


def _next(era: int) -> int:
    return (era + 1) % _MOST_ERAS


class _Former(NamedTuple):
    """An era that has ended, and those of its generations that may have rows."""

    era: int
    window_ms: int
    generations: list[int]

    @property
    def end_ms(self) -> int:
        return (max(self.generations, default=-1) + 1) * self.window_ms


class Generations:
    """The generations of one entity in one table of the store.

    Args:
        table: the table.
        number: the entity's.
        window_ms: the length of each.
        staging: takes the rows.
    """

    __slots__ = (
        "_current",
        "_entered",
        "_era",
        "_former",
        "_is_noted",
        "_latest",
        "_number",
        "_staging",
        "_table",
        "window_ms",
    )

    def __init__(self, table: int, number: int, window_ms: int, staging: Staging) -> None:
        self.window_ms = window_ms
        self._table = table
        self._number = number
        self._staging = staging
        self._current = self._latest = -1
        self._entered: set[int] = set()  # since the object was made: the store may not have them yet
        self._era: int | None = None  # not read from the store yet
        self._former: list[_Former] = []
        self._is_noted = False

    def asked(self, now_ms: int) -> list[bytes]:
        """The key prefixes of all generations in which an id may have been seen."""
        era = self._load()
        generation = now_ms // self.window_ms
        self._load_latest(era, generation)
        asked = [self._prefix(era, each) for each in (generation, generation - 1) if each >= 0]
        if self._latest > generation:
            asked.append(self._prefix(era, generation + 1))
        oldest_ms = now_ms - self.window_ms
        for former in self._former:
            asked += [
                self._prefix(former.era, each)
                for each in former.generations
                if (each + 1) * former.window_ms > oldest_ms
            ]
        return asked

    def enter(self, now_ms: int) -> bytes:
        """The prefix of new keys; stages the end of generations that are over."""
        era = self._load()
        generation = now_ms // self.window_ms
        if generation != self._current:
            self._load_latest(era, generation)
            # One more than is read now: a clock that is set back needs it.
            over = self._prefix(era, 0), self._prefix(era, max(0, generation - 2))
            has_over = any(True for _ in self._staging.journal.scan(*over))
            # All reads are done (I4).
            self._current = generation
            self._latest = max(self._latest, generation)
            # Older generations have been written, and dropped.
            self._entered = {each for each in self._entered if each >= generation - 3} | {generation}
            # As long as a memtable contains a deleted range, its filter does not help reads of many keys.
            if has_over:
                self._staging.batch.delete_range(*over)
            self._end_former(now_ms - 2 * self.window_ms)
            if not self._is_noted:
                self._note()
        return self._prefix(era, generation)

    def _load_latest(self, era: int, generation: int) -> None:
        """Read the latest generation from the store once: at a restart the clock may have been set back."""
        if self._latest < 0:
            ahead = self._prefix(era, generation + 1), self._prefix(era, generation + 2)
            self._latest = generation + any(True for _ in self._staging.journal.scan(*ahead))

    def change(self, window_ms: int) -> None:
        """Use another window from now on; stages what a restart needs to know of it."""
        self._begin_era(window_ms)
        self._note()

    def end_ms(self) -> int:
        """When the last generation of any era that may have rows is over; 0 where there is none."""
        current = max(self._stored(self._load()) | self._entered, default=-1)
        return max(((current + 1) * self.window_ms, *(former.end_ms for former in self._former)))

    # ---- eras

    def _load(self) -> int:
        """The current era; read from the store once. A store without the row has one era, of the current window."""
        if self._era is None:
            row = self._staging.journal.get(eras_key(self._number, self._table))
            eras = [(0, self.window_ms)] if row is None else list(_ERA.iter_unpack(row))
            is_changed = eras[-1][1] != self.window_ms
            current = _next(eras[-1][0]) if is_changed else eras.pop()[0]
            former = [_Former(era, window, sorted(self._stored(era))) for era, window in eras]
            # All reads are done (I4).
            self._era, self._former, self._is_noted = current, former, row is not None and not is_changed
        return self._era

    def _begin_era(self, window_ms: int) -> None:
        era = self._load()
        self._former.append(_Former(era, self.window_ms, sorted(self._stored(era) | self._entered)))
        self._era = _next(era)
        self.window_ms = window_ms
        self._current = self._latest = -1
        self._entered = set()
        self._is_noted = False

    def _end_former(self, before_ms: int) -> None:
        """Stage the end of eras whose last generation was over at the given time."""
        for former in [each for each in self._former if each.end_ms <= before_ms]:
            self._former.remove(former)
            self._staging.batch.delete_range(self._prefix(former.era, 0), self._prefix(former.era, _GENERATION_MASK))
            self._is_noted = False

    def _note(self) -> None:
        eras = [(former.era, former.window_ms) for former in self._former]
        rows = [_ERA.pack(*each) for each in (*eras, (self._load(), self.window_ms))]
        self._staging.batch.put(eras_key(self._number, self._table), b"".join(rows))
        self._is_noted = True

    def _stored(self, era: int) -> set[int]:
        """The generations of an era that have rows in the store."""
        found: set[int] = set()
        first, end = self._prefix(era, 0), self._prefix(era, _GENERATION_MASK)
        while (row := next(iter(self._staging.journal.scan(first, end)), None)) is not None:
            found.add(detection_generation(row[0]) & _GENERATION_MASK)
            first = after(row[0][: len(first)])
        return found

    def _prefix(self, era: int, generation: int) -> bytes:
        """The key prefix of a generation."""
        return detection_key(self._table, self._number, era << _ERA_BITS | generation)
