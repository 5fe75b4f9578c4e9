"""Messages of one entity in their order: stored, read, removed.

What it is: the part of a queue besides its locks. Messages get numbers, are read once in order by the window's cursor, may be
returned to their positions, and are removed in any order. What it is not: the locks of messages (`lock`), or the reasons of a removal (`settlement`,
`expiry`). The queue, which has the cursors and counts, is passed with each call: two objects that refer to each other would be freed
late, and sessions are many.
Spec: docs/explanation/protocol.md, Sending, Message; docs/explanation/store.md.

A message is unread (at or above the cursor), taken (below it), returned (below it, available again), or removed. The head
is the lowest number not removed; all below it is dead, so that removal in order writes only the head.

Invariants:
    I1. Only messages whose acceptance is durable are read, in sequence order; returned ones before all unread ones.
    I2. Every message below the cursor is in exactly one of: taken, returned, returning with the next commit, removed.
    I3. Counts are exact at every commit, also after a kill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.queue.calendar import BUCKET_MS
from isthmus.entities.queue.run import RunSet, runs_of
from isthmus.entities.queue.window import Pair, Window
from isthmus.entities.record.amend import Stored
from isthmus.entities.record.record import Parts, build, build_many
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import MESSAGE, message_key, message_span, unpack_message
from isthmus.entities.storage.staging import Callback, Member
from isthmus.errors import StoreError

__all__ = ["Backlog", "BacklogQueue", "sequences_of"]

# Dead messages below the head are removed in ranges of this many, or of this many bytes: a range tombstone makes each
# new scan of the store slower, a dead message that reaches a table file causes its rewriting.
_CLEAN_MESSAGES = 8192
_CLEAN_BYTES = 16 << 20
# From this length on a run that was removed above the head is deleted as a range (3.6 µs, and reads slow down by it).
_LONG_RUN = 2048
_READ_AT_ONCE = 256
_LAST_NUMBER = (1 << 64) - 2


class BacklogQueue(Member, Protocol):
    """The queue that has the messages.

    Attributes:
        number: under which they are in the store.
        last: highest sequence number assigned.
        committed: highest sequence number that receivers may see.
        head: lowest sequence number of a message that is not removed.
        cleaned: lowest sequence number under which something may be in the store.
        active_count: messages that are neither deferred nor scheduled.
        size_bytes: of everything that the queue stores.
        may_expire: whether some message may expire.
    """

    number: int
    last: int
    committed: int
    head: int
    cleaned: int
    active_count: int
    size_bytes: int
    may_expire: bool

    @property
    def context(self) -> Context:
        """The objects that entities share."""
        ...

    @property
    def quota_number(self) -> int:
        """Number of the entity whose quota counts bodies of large messages."""
        ...


class Backlog:
    """The messages of one queue in sequence order.

    Args:
        queue: that has them.

    Attributes:
        window: the cursor.
        returned: messages below the cursor that are available again.
        returning: runs of messages that are returned when the next commit ends.
        listeners: called when messages become available.
        has_news: whether the next commit calls the listeners, even without new messages.
    """

    __slots__ = (
        "_cleanable_bytes",
        "_prefix",
        "_removed",
        "_removed_above",
        "_staging",
        "has_news",
        "listeners",
        "returned",
        "returning",
        "window",
    )

    def __init__(self, queue: BacklogQueue) -> None:
        context = queue.context
        self._staging = context.staging
        self.listeners: list[Callback] = []
        self.returned = RunSet()
        self.returning: list[tuple[int, int]] = []
        self.has_news = False
        self.window = Window(
            context.staging.journal, queue.number, context.budget, queue.head, caught_up=queue.head > queue.last
        )
        self._prefix = message_key(MESSAGE, queue.number, 0)[:-8]
        self._removed: list[tuple[int, int]] = []
        self._removed_above = RunSet()
        self._cleanable_bytes = 0

    def reload(self, queue: BacklogQueue) -> None:
        """The queue has gone back to the state of the store: as after a restart, nothing is taken."""
        self.returned.clear()
        self.returning = []
        self._removed = []
        self._removed_above.clear()
        self.window.reset(queue.head, caught_up=queue.head > queue.last)

    def wipe(self, queue: BacklogQueue) -> None:
        """The queue has ended."""
        self.returned.clear()
        self.returning, self._removed = [], []
        self.window.reset(queue.last + 1, caught_up=True)

    # ---- storing

    def store(
        self,
        queue: BacklogQueue,
        messages: Sequence[Parts],
        now_ms: int,
        origins: Sequence[int] | None = None,
        hops: int = 0,
    ) -> None:
        """Stage messages as active under new sequence numbers.

        Args:
            queue: that has them.
            messages: in order.
            now_ms: enqueued time.
            origins: per message the sequence number where it first entered, if elsewhere.
            hops: how often the messages were forwarded.
        """
        first = queue.last + 1
        pairs, size, blobs = build_many(messages, first, now_ms, self._prefix, origins, hops)
        context = queue.context
        put = self._staging.batch.put
        for key, record in pairs:
            put(key, record)
        for sequence, blob in blobs:
            context.blobs.refer(queue.number, sequence, blob, queue.quota_number)
        if any(parts.head.ttl_ms for parts in messages):
            queue.may_expire = True
            _index_expiry(queue, messages, first, now_ms)
        self._append(queue, pairs, size, queue.last + len(pairs))

    def store_again(self, queue: BacklogQueue, messages: Sequence[Stored]) -> None:
        """Stage messages that were stored elsewhere before: they keep the annotations from there, but get new numbers."""
        context = queue.context
        put = self._staging.batch.put
        pairs: list[Pair] = []
        size = 0
        sequence = queue.last
        for stored in messages:
            sequence += 1
            record = build(stored.parts, sequence, stored.enqueued_ms, 0, stored.origin, stored.hops)
            if stored.parts.blob is not None:
                context.blobs.refer(queue.number, sequence, stored.parts.blob, queue.quota_number)
            key = message_key(MESSAGE, queue.number, sequence)
            put(key, record)
            pairs.append((key, record))
            size += len(record)
        self._append(queue, pairs, size, sequence)

    def _append(self, queue: BacklogQueue, pairs: Sequence[Pair], size_bytes: int, last: int) -> None:
        """Count messages that were staged at the end, up to a number."""
        queue.last = last
        queue.active_count += len(pairs)
        queue.size_bytes += size_bytes
        self._staging.touch(queue)
        if self.listeners:
            self.window.append(pairs, size_bytes)
        else:
            self.window.decline()

    # ---- reading

    def has_available(self, queue: BacklogQueue) -> bool:
        """Whether `read` would find something."""
        return self.window.next <= queue.committed or bool(self.returned)

    def read(self, queue: BacklogQueue, limit: int) -> list[Pair]:
        """Up to `limit` messages, taken: returned ones, then unread ones.

        Raises:
            StoreError: the first one cannot be read; nothing was taken.
        """
        pairs = self._read_returned(queue, limit) if self.returned else []
        window, committed = self.window, queue.committed
        try:
            while len(pairs) < limit and window.next <= committed:  # again from the tail, after the store
                unread, gaps = window.take(limit - len(pairs), committed)
                self._removed += gaps
                pairs = pairs + unread if pairs else unread
        except StoreError:
            if not pairs:
                raise
        window.reached(queue.last)
        return pairs

    def _read_returned(self, queue: BacklogQueue, limit: int) -> list[Pair]:
        pairs: list[Pair] = []
        journal = self._staging.journal
        while self.returned and len(pairs) < limit:
            first, last = self.returned.take(min(limit - len(pairs), _READ_AT_ONCE))
            try:
                if first == last:
                    key = message_key(MESSAGE, queue.number, first)
                    record = journal.get(key)
                    found = [] if record is None else [(key, record)]
                else:
                    found = list(journal.scan(*message_span(MESSAGE, queue.number, first, last)))
            except StoreError:
                self.returned.add(first, last)
                if not pairs:
                    raise
                break
            pairs += found
        return pairs

    def numbers_of(self, pairs: Sequence[Pair]) -> Sequence[int]:
        """The sequence numbers of messages just read."""
        return sequences_of(pairs)

    def put_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """Return messages to their positions."""
        for run in runs:
            self.returned.add(*run)

    # ---- removal

    def pass_over(self, numbers: range) -> None:
        """Skip numbers of messages that are not stored here."""
        if self.window.next == numbers.start:
            self.window.skip(numbers[-1])
            self._removed.append((numbers.start, numbers[-1]))
        # Otherwise the cursor finds a gap there later.

    def remove(self, queue: BacklogQueue, sequences: Sequence[int], size_bytes: int) -> None:
        """Stage the removal of active messages."""
        self._removed += runs_of(sequences)
        queue.active_count -= len(sequences)
        queue.size_bytes -= size_bytes
        self._cleanable_bytes += size_bytes
        self._staging.touch(queue)

    def remove_unread(self, queue: BacklogQueue, sequences: Sequence[int], size_bytes: int) -> None:
        """As `remove`, of messages above the cursor: each is deleted by its key, and the cursor finds a gap there."""
        removed, self._removed = self._removed, []
        self.remove(queue, sequences, size_bytes)
        self._removed = removed
        batch = self._staging.batch
        for sequence in sequences:
            batch.delete(message_key(MESSAGE, queue.number, sequence))
        self.window.refresh(sequences)

    def housekeep(self, queue: BacklogQueue) -> None:
        """Free the resources of an idle queue: its scan of the store, and dead messages below the head."""
        self.window.close()
        if queue.head > queue.cleaned and not self._removed:
            self.clean(queue, self._staging.batch)
            self._staging.touch(queue)

    # ---- group commit

    def stage(self, queue: BacklogQueue, batch: Batch) -> None:
        """Stage the deletion of removed messages; the queue's row follows it."""
        if self._removed:
            for run in self._removed:
                self._removed_above.add(*run)
            if self._removed_above.first == queue.head:
                queue.head = self._removed_above.take(_LAST_NUMBER)[1] + 1
            for first, last in self._removed:
                if last < queue.head:
                    continue
                if last - first >= _LONG_RUN:
                    batch.delete_range(*message_span(MESSAGE, queue.number, first, last))
                else:
                    for sequence in range(first, last + 1):
                        batch.delete(message_key(MESSAGE, queue.number, sequence))
            self._removed = []
            if queue.head - queue.cleaned >= _CLEAN_MESSAGES or self._cleanable_bytes >= _CLEAN_BYTES:
                self.clean(queue, batch)
        if not queue.active_count:
            queue.may_expire = False

    def clean(self, queue: BacklogQueue, batch: Batch) -> None:
        """Stage the deletion of dead messages below the head."""
        if queue.head > queue.cleaned:
            batch.delete_range(*message_span(MESSAGE, queue.number, queue.cleaned, queue.head - 1))
            queue.cleaned = queue.head
        self._cleanable_bytes = 0

    def seal(self) -> list[tuple[int, int]]:
        """The messages that are returned when the commit ends."""
        returning, self.returning = self.returning, []
        return returning

    def publish(self, returning: Sequence[tuple[int, int]]) -> bool:
        """The commit has ended; returns whether the listeners are to be called, even without new messages."""
        is_news, self.has_news = self.has_news, False
        if returning:
            self.put_back(returning)
        return is_news or bool(returning)


def _index_expiry(queue: BacklogQueue, messages: Sequence[Parts], first: int, now_ms: int) -> None:
    calendar = queue.context.calendar
    run_first = run_last = run_ms = 0
    for sequence, parts in enumerate(messages, first):
        if not parts.head.ttl_ms:
            continue
        expires_ms = now_ms + parts.head.ttl_ms
        if run_ms and expires_ms // BUCKET_MS == run_ms // BUCKET_MS:
            run_last = sequence
            continue
        if run_ms:
            calendar.expire(run_ms, queue.number, run_first, run_last)
        run_first, run_last, run_ms = sequence, sequence, expires_ms
    calendar.expire(run_ms, queue.number, run_first, run_last)


def sequences_of(pairs: Sequence[Pair]) -> Sequence[int]:
    """The numbers of messages read in order: a range, where there is no gap."""
    first, last = unpack_message(pairs[0][0]), unpack_message(pairs[-1][0])
    if last - first == len(pairs) - 1:
        return range(first, last + 1)
    return [int.from_bytes(key[5:], "big") for key, _ in pairs]
