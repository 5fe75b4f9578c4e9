"""The due times of all entities of a namespace: scheduled messages and expiries.

What it is: two indexes on disk in order of time. A scheduled message has one entry; messages that expire within the same
second and have close numbers share one, so a default time to live costs one entry per second, not per message.
What it is not: the exact test of expiry; that is made on the record, at delivery and here when a second ends.
Spec: docs/explanation/protocol.md, Message.

Invariants:
    I1. Every message that may expire is covered by an entry of its second until that second is over.
    I2. A query reads only due entries.
    I3. Due entries of entities that are skipped for a while (`paused`) do not hide those of others, up to
        `_ENTRIES_PER_SCAN` entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from isthmus.entities.storage.key import DUE, EXPIRY, pack_timed, unpack_timed
from isthmus.entities.storage.staging import Staging

__all__ = ["BUCKET_MS", "Calendar"]

BUCKET_MS = 1000
# Expiring messages at most this far apart share an entry: the later scan skips the messages of others between them.
_NEIGHBOUR = 64
# Entries that one query skips or finds.
_ENTRIES_PER_SCAN = 50_000
_FOREVER = (1 << 64) - 2
_LAST_NUMBER = (1 << 32) - 1


class Calendar:
    """The two indexes, and the next due time of either."""

    __slots__ = ("_due_from", "_expiry_from", "_open_runs", "_staging", "next_due_ms", "next_expiry_ms")

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._open_runs: dict[tuple[int, int], tuple[int, int]] = {}
        self._due_from = self._expiry_from = 0
        self.next_due_ms: int | None = None
        self.next_expiry_ms: int | None = None
        self.reload()

    def reload(self) -> None:
        """Read the indexes from the store."""
        self._open_runs.clear()
        self._due_from = self._expiry_from = 0
        self._find_next()

    def _find_next(self, paused: Collection[int] = ()) -> None:
        self._due_from, self.next_due_ms = self._first(DUE, self._due_from, paused)
        self._expiry_from, bucket = self._first(EXPIRY, self._expiry_from, paused)
        self.next_expiry_ms = None if bucket is None else bucket * BUCKET_MS

    def _first(self, table: int, start: int, paused: Collection[int]) -> tuple[int, int | None]:
        """When the first entry from `start` on is due, and when the first one that is not paused is; None if there is none."""
        first = None
        for at, number, _, _ in self._scan(table, start, _FOREVER):
            first = at if first is None else first
            if number not in paused:
                return first, at
        return start if first is None else first, None

    def _scan(self, table: int, first: int, end: int) -> Iterator[tuple[int, int, int, bytes]]:
        pairs = self._staging.journal.scan(pack_timed(table, first, 0, 0), pack_timed(table, end, _LAST_NUMBER, 0))
        for key, value in islice(pairs, _ENTRIES_PER_SCAN):
            yield (*unpack_timed(key), value)

    def recheck(self) -> None:
        """Include entities that were skipped: their entries may be due now."""
        self._find_next()

    # ---- scheduled messages

    def schedule(self, due_ms: int, number: int, sequence: int) -> None:
        """Stage an entry for a scheduled message."""
        self._staging.batch.put(pack_timed(DUE, due_ms, number, sequence), b"")
        self._due_from = min(self._due_from, due_ms)
        if self.next_due_ms is None or due_ms < self.next_due_ms:
            self.next_due_ms = due_ms

    def unschedule(self, due_ms: int, number: int, sequence: int) -> None:
        """Stage the removal of a scheduled message's entry."""
        self._staging.batch.delete(pack_timed(DUE, due_ms, number, sequence))

    def due(self, now_ms: int, limit: int, paused: Collection[int] = ()) -> list[tuple[int, int, int]]:
        """(due ms, entity number, sequence number) of due scheduled messages, without entities `paused`."""
        if self.next_due_ms is None or self.next_due_ms > now_ms:
            return []
        self._staging.write()
        found = []
        for due_ms, number, sequence, _ in self._scan(DUE, self._due_from, now_ms):
            if number in paused:
                continue
            found.append((due_ms, number, sequence))
            if len(found) == limit:
                break
        if not found:
            self.advance(paused)
        return found

    # ---- expiries

    def expire(self, expires_ms: int, number: int, first: int, last: int) -> None:
        """Stage that messages first..last of an entity expire at a time (or earlier, within its second)."""
        bucket = expires_ms // BUCKET_MS + 1  # the second's end
        run = self._open_runs.get((bucket, number))
        if run is not None and -_NEIGHBOUR <= first - run[1] <= _NEIGHBOUR:
            first, last = min(run[0], first), max(run[1], last)
            if first != run[0]:
                self._staging.batch.delete(pack_timed(EXPIRY, bucket, number, run[0]))
        elif len(self._open_runs) > 10_000:
            self._open_runs.clear()
        self._open_runs[bucket, number] = (first, last)
        self._staging.batch.put(pack_timed(EXPIRY, bucket, number, first), last.to_bytes(8, "big"))
        self._expiry_from = min(self._expiry_from, bucket)
        if self.next_expiry_ms is None or bucket * BUCKET_MS < self.next_expiry_ms:
            self.next_expiry_ms = bucket * BUCKET_MS

    def expired(self, now_ms: int, limit: int, paused: Collection[int] = ()) -> list[tuple[int, int, int, int]]:
        """(bucket, entity number, first, last) of runs whose second is over, without entities `paused`."""
        if self.next_expiry_ms is None or self.next_expiry_ms > now_ms:
            return []
        self._staging.write()
        found = []
        for bucket, number, first, value in self._scan(EXPIRY, self._expiry_from, now_ms // BUCKET_MS):
            if number in paused:
                continue
            found.append((bucket, number, first, int.from_bytes(value, "big")))
            if len(found) == limit:
                break
        if not found:
            self.advance(paused)
        return found

    def settle(self, bucket: int, number: int, first: int, left: tuple[int, int] | None) -> None:
        """Stage that an expired run was processed, except for the messages `left`."""
        batch = self._staging.batch
        batch.delete(pack_timed(EXPIRY, bucket, number, first))
        self._open_runs.pop((bucket, number), None)
        if left is not None:
            batch.put(pack_timed(EXPIRY, bucket, number, left[0]), left[1].to_bytes(8, "big"))

    def advance(self, paused: Collection[int] = ()) -> None:
        """After `due` and `expired` were processed: find the next entries."""
        self._staging.write()
        self._find_next(paused)
