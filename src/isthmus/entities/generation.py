"""Generations: periods as long as a window of detection, by which seen ids and keys lie in the store.

What it is: which generations are asked, what their rows begin with, and when they go. Two cover a window; a third one is
asked where the clock has gone back. An old one is dropped as one range. What it is not: the rows (`detection`, `key_run`).

Invariants:
    I1. Every generation in which something may lie that was seen less than a window ago is among those asked, also where
        the clock has gone back by up to a window since, restarts in between or not.
    I2. A generation is dropped only when a clock that goes back by a window does not ask for it.
"""

from __future__ import annotations

from isthmus.entities.key import after, detection_key
from isthmus.entities.staging import Staging

__all__ = ["Generations"]


class Generations:
    """The generations of one entity in one table of the store.

    Args:
        table: the table.
        number: the entity's.
        window_ms: how long one is.
        staging: where rows go.

    Attributes:
        latest: the latest that was entered since the object was made, or stood in the store when it was first asked; -1: none.
    """

    __slots__ = ("_current", "_number", "_staging", "_table", "latest", "window_ms")

    def __init__(self, table: int, number: int, window_ms: int, staging: Staging) -> None:
        self.window_ms = window_ms
        self.latest = -1
        self._table = table
        self._number = number
        self._staging = staging
        self._current = -1

    def prefix(self, generation: int) -> bytes:
        """What the keys of a generation begin with."""
        return detection_key(self._table, self._number, generation)

    def asked(self, now_ms: int) -> list[bytes]:
        """What the keys of all generations begin with in which an id may have been seen."""
        generation = now_ms // self.window_ms
        if self.latest < 0:  # asked of the store once, since a restart may come with a clock gone back
            ahead = self.prefix(generation + 1), self.prefix(generation + 2)
            self.latest = generation + any(True for _ in self._staging.journal.scan(*ahead))
        asked = [generation, generation - 1]
        if self.latest > generation:
            asked.append(generation + 1)
        return list(map(self.prefix, asked))

    def enter(self, now_ms: int) -> bytes:
        """What new keys begin with; stages the end of generations that are over."""
        generation = now_ms // self.window_ms
        if generation != self._current:
            self._current = generation
            self.latest = max(self.latest, generation)
            # One more than is asked now: a clock that goes back asks for it again.
            over = self.prefix(0), self.prefix(max(0, generation - 2))
            # As long as a memtable holds a deleted range, its filter is no use to reads of many keys.
            if any(True for _ in self._staging.journal.scan(*over)):
                self._staging.batch.delete_range(*over)
        return self.prefix(generation)

    def forget(self) -> None:
        """Stage the removal of all."""
        self._current = -1
        self._staging.batch.delete_range(self.prefix(0), after(self.prefix((1 << 64) - 2)))
