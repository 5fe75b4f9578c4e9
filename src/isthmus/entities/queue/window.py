"""Reading a queue in order: from memory where the reader keeps up with the writers, from the store where it does not.

What it is: a cursor over one queue's messages. Recently accepted records are kept (the tail) while the reader is at
the end, within a budget that all queues share; a reader that falls behind reads the store with a long-lived scan.
What it is not: the messages that are returned to earlier positions (`Queue`).

Invariants:
    I1. Records are returned in sequence order, each once, none above `through`.
    I2. Every sequence number skipped without a record is reported as a gap, once.
    I3. Memory is bounded by the budget, whatever the backlog.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter

from isthmus.entities.storage.journal import Journal
from isthmus.entities.storage.key import MESSAGE, message_key, message_span, unpack_message

__all__ = ["Budget", "Pair", "Window"]

Pair = tuple[bytes, bytes]
# The cost of an entry of the tail beyond the record: key, tuple, list slot.
_ENTRY_BYTES = 120
_LAST = (1 << 64) - 2
# At most so many records of a tail are searched for removed ones; a longer tail is dropped.
_SEARCHED = 1024


class Budget:
    """The limit of bytes that all tails of a namespace share."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0


class Window:
    """One queue's reading cursor.

    Attributes:
        next: the lowest sequence number that has not been read.
        is_sparse: whether other entities share the sequence numbers, so that gaps mean nothing and none is reported.
    """

    __slots__ = (
        "_at",
        "_budget",
        "_journal",
        "_number",
        "_open",
        "_stream",
        "_tail",
        "_tail_bytes",
        "is_sparse",
        "next",
    )

    def __init__(self, journal: Journal, number: int, budget: Budget, start: int, *, caught_up: bool) -> None:
        self._journal = journal
        self._number = number
        self._budget = budget
        self._tail: list[Pair] = []
        self._at = 0
        self._tail_bytes = 0
        self._open = caught_up
        self._stream: Iterator[Pair] | None = None
        self.is_sparse = False
        self.next = start

    def append(self, pairs: Sequence[Pair], size_bytes: int) -> None:
        """Add records just accepted, behind all earlier ones; they are kept if the reader is at the end."""
        if not self._open:
            return
        size_bytes += _ENTRY_BYTES * len(pairs)
        budget = self._budget
        if budget.used_bytes + size_bytes > budget.limit_bytes:
            self._open = False
            return
        budget.used_bytes += size_bytes
        self._tail_bytes += size_bytes
        self._tail.extend(pairs)

    def decline(self) -> None:
        """Skip records just accepted that no receiver waits for: they are read from the store, later."""
        self._open = False

    def take(self, limit: int, through: int) -> tuple[list[Pair], list[tuple[int, int]]]:
        """Up to `limit` records with sequence numbers up to `through`, and the gaps before them."""
        limit = min(limit, through - self.next + 1)
        if limit <= 0:
            return [], []
        if self._at < len(self._tail):
            pairs = self._take_tail(limit, through)
        else:
            pairs = self._take_stored(limit, through)
        first = self.next
        if not pairs:
            # Nothing stored up to `through`: all of it is a gap.
            self.next = through + 1
            return [], [] if self.is_sparse else [(first, through)]
        last = unpack_message(pairs[-1][0])
        self.next = last + 1
        if self.is_sparse or last - first == len(pairs) - 1:
            return pairs, []
        gaps = []
        for key, _ in pairs:
            sequence = int.from_bytes(key[5:], "big")
            if sequence != first:
                gaps.append((first, sequence - 1))
            first = sequence + 1
        return pairs, gaps

    def _take_tail(self, limit: int, through: int) -> list[Pair]:
        tail, at = self._tail, self._at
        stop = min(at + limit, len(tail))
        if unpack_message(tail[stop - 1][0]) > through:
            stop = bisect_right(tail, message_key(MESSAGE, self._number, through), at, stop, key=itemgetter(0))
        pairs = tail[at:stop]
        self._at = stop
        if stop == len(tail):
            self._drop_tail()
        elif stop > 4096 and stop * 2 > len(tail):
            del tail[:stop]
            self._at = 0
        return pairs

    def _take_stored(self, limit: int, through: int) -> list[Pair]:
        for _ in range(2):  # a scan sees the store as it was: records may have been added since
            stream, fresh = self._stream, self._stream is None
            if stream is None:
                first, end = message_span(MESSAGE, self._number, self.next, _LAST)
                stream = self._journal.scan(first, end, read_ahead=True)
            self._stream = None  # the records before an error are read again, by another scan
            pairs = list(islice(stream, limit))
            self._stream = stream
            if pairs and unpack_message(pairs[-1][0]) > through:
                end = message_key(MESSAGE, self._number, through)
                pairs = pairs[: bisect_right(pairs, end, key=itemgetter(0))]
                self._stream = None
            elif len(pairs) < limit:
                self._stream = None
            if pairs or fresh:
                return pairs
        return []

    def reached(self, last: int) -> None:
        """Set the highest number assigned: if all is read, the next accepted records are kept."""
        if not self._open and self.next > last:
            self._open = True
            self._drop_tail()
            self._stream = None

    def refresh(self, sequences: Sequence[int]) -> None:
        """Unread records were removed from the store: drop those that were read ahead."""
        self._stream = None
        if len(self._tail) - self._at > _SEARCHED:
            # Records are removed one by one, as their settlements arrive: a search of a long tail for each would take long. The
            # others are in the store.
            self._open = False
            self._drop_tail()
        elif self._tail:
            removed = set(sequences)
            self._tail = [pair for pair in self._tail[self._at :] if unpack_message(pair[0]) not in removed]
            self._at = 0

    def skip(self, sequence: int) -> None:
        """Continue behind a sequence number without reading."""
        self.next = sequence + 1
        self._stream = None
        end = message_key(MESSAGE, self._number, sequence)
        self._at = bisect_right(self._tail, end, self._at, key=itemgetter(0))
        if self._at == len(self._tail):
            self._drop_tail()

    def reset(self, start: int, *, caught_up: bool) -> None:
        """Restart, after a restart of the namespace or a failed commit."""
        self.next = start
        self.close()
        self._drop_tail()
        self._open = caught_up

    def close(self) -> None:
        """Close the scan; reading continues with a new one."""
        self._stream = None

    def _drop_tail(self) -> None:
        self._tail = []
        self._at = 0
        self._budget.used_bytes -= self._tail_bytes
        self._tail_bytes = 0
