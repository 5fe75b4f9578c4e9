"""Runs of duplicate keys: one row for copies of one source that arrived together in order, instead of a row for each.

What it is: rows of keys that were above the mark of their source (`source_mark`), and the search in them. A row is under
the position of its last copy (source and sequence number), and has the wall time and the keys. What it is not: the keys
of copies out of order, which have a row each (`detection`).

Invariants:
    I1. Rows of one generation and block (a source, and the upper 16 bits of the number) do not overlap: each begins above
        the mark that the one before it has raised. So a copy's key is in the first row whose position is not below the
        copy's, or in none.
    I2. Rows are written in the batch of their messages.
    I3. Staged rows that are not yet written are found as well (`Staging.pending_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isthmus.entities.detection.generation import Generations
from isthmus.entities.detection.source_mark import BLOCK_BYTES
from isthmus.entities.storage.key import KEY_RUN, after
from isthmus.entities.storage.staging import Staging
from isthmus.message.duplicate_key import KEY_BYTES

__all__ = ["KeyRuns"]

_TIME_BYTES = 8


class KeyRuns:
    """The runs of one entity.

    Args:
        number: the entity's.
        window_ms: for how long a key counts as seen.
        staging: takes new rows.
    """

    __slots__ = ("_generations", "_staging", "_window_ms")

    def __init__(self, number: int, window_ms: int, staging: Staging) -> None:
        self._window_ms = window_ms
        self._staging = staging
        self._generations = Generations(KEY_RUN, number, window_ms, staging)

    def remember(
        self, ids: Sequence[bytes], positions: Sequence[bytes], marks: Mapping[bytes, bytes], now_ms: int
    ) -> None:
        """Stage keys of copies that are above the marks of their sources.

        Args:
            ids: the keys.
            positions: source and number of each, in ascending order for each block.
            marks: the last position of each block.
            now_ms: wall time.
        """
        prefix = self._generations.enter(now_ms)
        seen_at = now_ms.to_bytes(_TIME_BYTES, "big")
        put, pending = self._staging.batch.put, self._staging.pending_runs
        for block, last in marks.items():
            if len(marks) > 1:
                members = [one for one, position in zip(ids, positions, strict=True) if position.startswith(block)]
            else:
                members = list(ids)
            key, row = prefix + last, b"".join((seen_at, *members))
            put(key, row)
            pending[key] = row

    def seen(self, ids: Sequence[bytes], positions: Sequence[bytes], now_ms: int) -> list[bool]:
        """Per key whether it is in a run; positions may be empty, and are in any order. Stages nothing."""
        flags = [False] * len(ids)
        oldest_ms = now_ms - self._window_ms
        order = sorted((position, at) for at, position in enumerate(positions) if position)
        for prefix in self._generations.asked(now_ms):
            last = row = b""
            for position, at in order:
                if position > last:
                    last, row = self._first_from(prefix, position)
                if _seen_ms(row) > oldest_ms and _holds(row, ids[at]):
                    flags[at] = True
        return flags

    def end_ms(self) -> int:
        """When the last generation that may have keys is over; 0 where there is none."""
        return self._generations.end_ms()

    def _first_from(self, prefix: bytes, position: bytes) -> tuple[bytes, bytes]:
        """The last position and the row of the first run that may contain a position; where there is none, the last of its block."""
        wanted, block = prefix + position, prefix + position[:BLOCK_BYTES]
        stored = next(iter(self._staging.journal.scan(wanted, after(block))), None)
        waiting = [
            pair for pair in self._staging.pending_runs.items() if pair[0] >= wanted and pair[0].startswith(block)
        ]
        if stored is not None:
            waiting.append(stored)
        if not waiting:
            return position[:BLOCK_BYTES].ljust(len(position), b"\xff"), b""
        key, row = min(waiting)
        return key[len(prefix) :], row


def _seen_ms(row: bytes) -> int:
    return int.from_bytes(row[:_TIME_BYTES], "big")


def _holds(row: bytes, one: bytes) -> bool:
    """Whether a row contains a key."""
    at = row.find(one, _TIME_BYTES)
    while at >= 0 and (at - _TIME_BYTES) % KEY_BYTES:
        at = row.find(one, at + 1)
    return at >= 0
