"""Messages of one entity in their order: stored, read, gone.

What it is: what a queue has besides locks. Messages get numbers, are read once in order by the window's cursor, may be
returned to their places, and go in any order. What it is not: who holds a message, and why it goes (`queue`).
Spec: docs/explanation/protocol.md, Sending, Message; docs/explanation/store.md.

A message is unread (at or above the cursor), taken (below it), returned (below it, to be had again), or gone. The head
is the lowest number not gone; all below it is dead, so that what goes in order writes only the head.

Invariants:
    I1. Only messages whose acceptance is durable are read, in sequence order; returned ones before all unread ones.
    I2. Every message below the cursor is in exactly one of: taken, returned, returning with the next commit, gone.
    I3. Counts are exact at every commit, also after a kill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from isthmus.entities.member.context import Context
from isthmus.entities.member.listener import call_all
from isthmus.entities.queue.calendar import BUCKET_MS
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.run import RunSet, runs_of
from isthmus.entities.queue.window import Pair, Window
from isthmus.entities.record.record import Parts, build_many
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import DEFERRED, MESSAGE, SCHEDULED, message_key, message_span, unpack_message
from isthmus.entities.storage.staging import Callback
from isthmus.errors import StoreError

__all__ = ["Backlog", "sequences_of"]

# Dead messages below the head are removed in ranges of this many, or of this many bytes: a range tombstone makes each
# new scan of the store dearer, a dead message that reaches a table file costs its rewriting.
_CLEAN_MESSAGES = 8192
_CLEAN_BYTES = 16 << 20
# From this length on a run that went above the head is deleted as a range (3.6 µs, and reads slow down by it).
_LONG_RUN = 2048
_READ_AT_ONCE = 256
_LAST_NUMBER = (1 << 64) - 2


class Backlog(Intake):
    """An entity's messages in sequence order."""

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self._fixed_ttl_ms = 0
        self._prefix = message_key(MESSAGE, number, 0)[:-8]
        self._listeners: list[Callback] = []
        self._returned = RunSet()
        self._returning: list[tuple[int, int]] = []
        self._removed: list[tuple[int, int]] = []
        self._gone = RunSet()
        self._cleanable_bytes = 0
        self._tell_again = False
        self._window = Window(self._staging.journal, number, context.budget, self.head, caught_up=self.head > self.last)

    def reload(self, state: bytes | None) -> None:
        """Go back to what the store holds: as after a restart, nothing is taken."""
        super().reload(state)
        self._returned.clear()
        self._returning = []
        self._removed = []
        self._gone.clear()
        self._window.reset(self.head, caught_up=self.head > self.last)

    # ---- storing

    def _take(
        self, accepted: Sequence[Parts], now_ms: int, origins: Sequence[int] | None = None, hops: int = 0
    ) -> None:
        self.store(accepted, now_ms, origins, hops=hops)

    def store(
        self,
        messages: Sequence[Parts],
        now_ms: int,
        origins: Sequence[int] | None = None,
        *,
        fed: bool = False,
        hops: int = 0,
    ) -> None:
        """Stage messages as active under new sequence numbers.

        Args:
            messages: in order.
            now_ms: enqueued time.
            origins: per message the sequence number where it first entered, if elsewhere.
            fed: whether the messages come from a topic, so that this entity's default time to live is still to apply.
            hops: how often the messages were forwarded.
        """
        if fed and self._fixed_ttl_ms:
            messages = self._capped(messages)
        first = self.last + 1
        pairs, size, blobs = build_many(messages, first, now_ms, self._prefix, origins, hops)
        put = self._staging.batch.put
        for key, record in pairs:
            put(key, record)
        for sequence, blob in blobs:
            self._context.blobs.refer(self.number, sequence, blob, self.quota_number)
        if any(parts.head.ttl_ms for parts in messages):
            self._index_expiry(messages, first, now_ms)
        self._stored(pairs, size, self.last + len(pairs))

    def _stored(self, pairs: Sequence[Pair], size_bytes: int, last: int) -> None:
        self.last = last
        self.active_count += len(pairs)
        self.size_bytes += size_bytes
        self._staging.touch(self)
        if self._listeners:
            self._window.append(pairs, size_bytes)
        else:
            self._window.decline()

    def _index_expiry(self, messages: Sequence[Parts], first: int, now_ms: int) -> None:
        self._may_expire = True
        calendar = self._context.calendar
        run_first = run_last = run_ms = 0
        for sequence, parts in enumerate(messages, first):
            if not parts.head.ttl_ms:
                continue
            expires_ms = now_ms + parts.head.ttl_ms
            if run_ms and expires_ms // BUCKET_MS == run_ms // BUCKET_MS:
                run_last = sequence
                continue
            if run_ms:
                calendar.expire(run_ms, self.number, run_first, run_last)
            run_first, run_last, run_ms = sequence, sequence, expires_ms
        calendar.expire(run_ms, self.number, run_first, run_last)

    # ---- reading

    @property
    def has_available(self) -> bool:
        """Whether `acquire` would find something (expired messages may make it find nothing all the same)."""
        return self._window.next <= self.committed or bool(self._returned)

    def _read(self, limit: int) -> list[Pair]:
        """Up to `limit` messages, taken: returned ones, then unread ones.

        Raises:
            StoreError: the first one cannot be read; nothing was taken.
        """
        pairs = self._read_returned(limit) if self._returned else []
        try:
            while len(pairs) < limit and self._window.next <= self.committed:  # again where disk and memory meet
                unread, gaps = self._window.take(limit - len(pairs), self.committed)
                self._removed += gaps
                pairs = pairs + unread if pairs else unread
        except StoreError:
            if not pairs:
                raise
        self._window.reached(self.last)
        return pairs

    def _read_returned(self, limit: int) -> list[Pair]:
        pairs: list[Pair] = []
        journal = self._staging.journal
        while self._returned and len(pairs) < limit:
            first, last = self._returned.take(min(limit - len(pairs), _READ_AT_ONCE))
            try:
                if first == last:
                    key = message_key(MESSAGE, self.number, first)
                    record = journal.get(key)
                    found = [] if record is None else [(key, record)]
                else:
                    found = list(journal.scan(*message_span(MESSAGE, self.number, first, last)))
            except StoreError:
                self._returned.add(first, last)
                if not pairs:
                    raise
                break
            pairs += found
        return pairs

    def put_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """Return messages to their places."""
        for run in runs:
            self._returned.add(*run)

    # ---- going

    def pass_numbers(self, count: int) -> range:
        numbers = range(self.last + 1, self.last + 1 + count)
        if self._window.next == numbers.start:
            self._window.skip(numbers[-1])
            self._removed.append((numbers.start, numbers[-1]))
        # Otherwise the cursor finds a gap in their place, in its own time.
        return super().pass_numbers(count)

    def remove(self, sequences: Sequence[int], size_bytes: int) -> None:
        """Stage that active messages are gone."""
        self._removed += runs_of(sequences)
        self.active_count -= len(sequences)
        self.size_bytes -= size_bytes
        self._cleanable_bytes += size_bytes
        self._staging.touch(self)

    def release_store(self) -> None:
        """Let go of the scan of the store that reading may hold open."""
        self._window.close()

    def housekeep(self) -> None:
        """Let go of what an idle queue holds: its scan of the store, and dead messages below the head."""
        self._window.close()
        if self.head > self._cleaned and not self._removed:
            self._clean(self._staging.batch)
            self._staging.touch(self)

    # ---- group commit

    def stage_state(self, batch: Batch) -> None:
        if self.is_deleted:
            return
        if self._removed:
            for run in self._removed:
                self._gone.add(*run)
            if self._gone.first == self.head:
                self.head = self._gone.take(_LAST_NUMBER)[1] + 1
            for first, last in self._removed:
                if last < self.head:
                    continue
                if last - first >= _LONG_RUN:
                    batch.delete_range(*message_span(MESSAGE, self.number, first, last))
                else:
                    for sequence in range(first, last + 1):
                        batch.delete(message_key(MESSAGE, self.number, sequence))
            self._removed = []
            if self.head - self._cleaned >= _CLEAN_MESSAGES or self._cleanable_bytes >= _CLEAN_BYTES:
                self._clean(batch)
        if not self.active_count:
            self._may_expire = False
        super().stage_state(batch)

    def _clean(self, batch: Batch) -> None:
        if self.head > self._cleaned:
            batch.delete_range(*message_span(MESSAGE, self.number, self._cleaned, self.head - 1))
            self._cleaned = self.head
        self._cleanable_bytes = 0

    def seal(self) -> tuple[int, list[tuple[int, int]]]:
        sealed = (self.last, self._returning)
        self._returning = []
        return sealed

    def publish(self, sealed: Any) -> None:
        last, returning = sealed
        news = last > self.committed or bool(returning) or self._tell_again
        self._tell_again = False
        super().publish(last)
        for run in returning:
            self._returned.add(*run)
        if news and self.has_available:
            self.notify()

    def wipe(self) -> None:
        super().wipe()
        self._returned.clear()
        self._returning, self._removed = [], []
        self._window.reset(self.last + 1, caught_up=True)
        self.notify()

    def tell_again(self) -> None:
        """Let the next commit call the listeners, though nothing new has come."""
        self._tell_again = True
        self._staging.touch(self)

    # ---- listeners

    def add_listener(self, listener: Callback) -> None:
        """Call `listener` (from ``end_commit``, ``release``, ``tick``) whenever something became available, and when
        the entity was deleted or its status changed.
        """
        self._listeners.append(listener)

    @property
    def has_listeners(self) -> bool:
        """Whether anybody waits for messages."""
        return bool(self._listeners)

    def remove_listener(self, listener: Callback) -> None:
        """Undo `add_listener`; no error if unknown. Who waited until now has used the entity until now."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            self.accessed_at_ms = self._context.clock.wall_ms()

    def notify(self) -> None:
        """Call the listeners, each whatever another one raises.

        Raises:
            Exception: what a listener raised, once all of them have been called; several in an ExceptionGroup.
        """
        call_all(tuple(self._listeners))

    def _tables(self) -> list[tuple[int, int]]:
        tables = [(MESSAGE, 0)]
        if self.deferred_count:
            tables.append((DEFERRED, 1))
        return tables + ([(SCHEDULED, 2)] if self.scheduled_count else [])


def sequences_of(pairs: Sequence[Pair]) -> Sequence[int]:
    """The numbers of messages read in order: a range, where there is no gap."""
    first, last = unpack_message(pairs[0][0]), unpack_message(pairs[-1][0])
    if last - first == len(pairs) - 1:
        return range(first, last + 1)
    return [int.from_bytes(key[5:], "big") for key, _ in pairs]
