"""A queue: also what a subscription and a dead-letter queue are.

What it is: messages of a `Backlog`, each for one receiver, locked while it works on them; what settlement, expiry and
abandonment do to them. What it is not: where messages come from (`Intake`, `Topic`), nor when the disk is synced.
Spec: docs/explanation/protocol.md, Settlement, Message, Forwarding. Over 400 lines: every way in which a message leaves a receiver's
hands is here, beside the others.

Invariants:
    I1. A receiver sees only messages whose acceptance is durable, in sequence order; a returned message comes before
        all unread ones.
    I2. What is taken from the backlog is locked, or on its way: returning, deferred, dead-lettered, or gone.
    I3. What is settled is invisible at once, and the callback comes only after the sync that covers it.
    I4. An expired message is never delivered; it goes when its lock ends or its second is over.
    I5. Locks are held by monotonic time: a step of the wall clock changes none. Clients are shown their ends by the wall
        clock as it was when they were taken or renewed.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from isthmus.clock import monotonic_ms
from isthmus.entities.catalog.description import INFINITE_MS, EntityStatus
from isthmus.entities.member.context import Context
from isthmus.entities.port import MessageSource, Sessions
from isthmus.entities.queue.backlog import Backlog, sequences_of
from isthmus.entities.queue.deferred import DeferredMessages
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.lock import Acquired, Lock, LockTable, Span
from isthmus.entities.queue.onward import Onward, reason_of
from isthmus.entities.queue.relay import Relay
from isthmus.entities.queue.run import runs_of
from isthmus.entities.queue.window import Pair
from isthmus.entities.record.amend import (
    Stored,
    annotation_of,
    as_dead_letters,
    check_encodable,
    delivery_count,
    merged,
    take_apart,
    with_delivery_count,
)
from isthmus.entities.record.copy import is_copy
from isthmus.entities.record.envelope import Packed
from isthmus.entities.record.record import Parts, build, deleted_payload, expires_at_ms, locked_payloads, plain_payload
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.key import DEFERRED, MESSAGE, message_key, message_span, unpack_message
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    IsthmusError,
    NotAllowedError,
)

__all__ = ["Queue"]

# Locks ended in one call, and rounds in which expired messages are passed over: neither may hold up the loop.
_EXPIRY_LIMIT = 1000
_ROUNDS = 50
_NEVER = bytes(8)


class Queue(Backlog):
    """Messages in sequence order, each for one receiver.

    Attributes:
        path: canonical, e.g. ``orders``, ``flights/Subscriptions/audit``, each also with ``/$DeadLetterQueue``.
        dead_letters: the queue's dead-letter queue; None for one that is itself one.
        transfer_dead_letters: where those went whose target was gone; None while there were none.
        onward: where messages go on; None: they stay.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self.dead_letters: Queue | None = None
        self.transfer_dead_letters: Queue | None = None
        self.onward: Onward | None = None
        self._relay: Relay | None = None
        self.lock_duration_ms = 60_000
        self._max_delivery_count = 10
        self._dead_letters_expired = False
        self._is_dead_letter_queue = False
        self._locks = LockTable()
        # Where a session is locked its messages are, as long as it is; 0 where each is for itself.
        self._session_until_ms = 0
        self._deferred = DeferredMessages(path, number, context.staging)

    def reload(self, state: bytes | None) -> None:
        """Go back to what the store holds: as after a restart, all locks are lost."""
        super().reload(state)
        if self._relay is not None:
            self._relay.reset()
        self._locks.clear()
        self._deferred.unlock_all()

    def wipe(self) -> None:
        self._locks.clear()
        self._deferred.unlock_all()
        if self._relay is not None:
            self._relay.forget()
        self.forward_to(None)
        super().wipe()

    def configure(
        self,
        *,
        status: EntityStatus,
        default_ttl_ms: int,
        lock_duration_ms: int,
        max_delivery_count: int,
        dead_letters_expired: bool,
        requires_session: bool = False,
        quota_megabytes: int = 0,
        max_message_size_bytes: int | None = None,
        duplicate_window_ms: int = 0,
    ) -> None:
        """Take the settings of a description."""
        self._configure(
            status=status,
            default_ttl_ms=default_ttl_ms,
            quota_megabytes=quota_megabytes,
            max_message_size_bytes=max_message_size_bytes,
            duplicate_window_ms=duplicate_window_ms,
        )
        self._fixed_ttl_ms = 0 if default_ttl_ms >= INFINITE_MS else default_ttl_ms
        self.lock_duration_ms = lock_duration_ms
        self._max_delivery_count = max_delivery_count
        self._dead_letters_expired = dead_letters_expired
        self.requires_session = requires_session

    def become_dead_letter_queue(self) -> None:
        """Take no sends, keep messages without end, and dead-letter nothing further."""
        self._is_dead_letter_queue = True

    def stored_bytes(self) -> int:
        return super().stored_bytes() + (self.dead_letters.stored_bytes() if self.dead_letters else 0)

    def _check_open_to_senders(self, payloads: Sequence[Payload]) -> None:
        """A dead-letter queue takes nothing but what is put back into it: copies, of a link that may (`RESTORES`)."""
        are_copies = payloads.are_copies if isinstance(payloads, Packed) else all(map(is_copy, payloads))
        if self._is_dead_letter_queue and not are_copies:
            raise NotAllowedError(f"'{self.path}' takes no sends; dead-letter a message of its entity instead.")

    def examine(self, payloads: Sequence[Payload]) -> list[Parts]:
        self._check_open_to_senders(payloads)
        return super().examine(payloads)

    # ---- what a user asks for, see `isthmus.entities.port`

    @property
    def source(self) -> MessageSource | None:
        """Itself: it gives messages."""
        return self

    @property
    def sessions(self) -> Sessions | None:
        """Its sessions, where it requires them."""
        return None

    @property
    def takes_senders(self) -> bool:
        """Whether senders may attach: not to a dead-letter queue."""
        return self.dead_letters is not None

    def parts(self) -> list[Intake]:
        return [self] if self.dead_letters is None else [self, self.dead_letters]

    def holder_of(self, tokens: Sequence[bytes]) -> Self:
        """Whose locks these are: its own."""
        del tokens
        return self

    def fragment_index(self, token: bytes) -> int:
        """The fragment that a lock token names: there is only one."""
        del token
        return 0

    # ---- forwarding

    def forward_to(self, onward: Onward | None) -> None:
        """Let messages go on from now, or keep them. What waits is moved by `retry`."""
        relay = self._relay
        if relay is not None:
            relay.look_again()
            if onward is not None:
                relay.onward = onward
            else:
                relay.reset()
                self.remove_listener(relay.pump)
                self._relay = None
        elif onward is not None:
            self._relay = Relay(self, onward)
            self.add_listener(self._relay.pump)
        self.onward = onward

    def forward_parts(self, path: str | None, forward: Callable[[Queue, Any], None]) -> None:
        """Call `forward` with each part that forwards to a path by itself, and its store: here with itself."""
        del path
        forward(self, None)

    def look_again(self) -> None:
        """Let dead letters try again that could not go on to a target as it was."""
        if self._relay is not None:
            self._relay.look_again()

    def retry(self) -> None:
        """Move a group of what waits to go on, also after a commit has failed."""
        if self._relay is not None:
            self._relay.retry()

    @property
    def has_listeners(self) -> bool:
        """Whether anybody waits for messages; that they go on is no one's wait."""
        return len(self._listeners) > (self._relay is not None)

    @property
    def transfer_count(self) -> int:
        """Active messages that wait to go on; dead letters that wait so are dead letters still."""
        waiting = self.active_count if self._relay is not None and self.dead_letters is not None else 0
        return waiting + self.leaving_count

    @property
    def gives_messages(self) -> bool:
        """Whether its status lets messages out."""
        return self._status not in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED)

    @property
    def keeps_dead_letters(self) -> bool:
        """Whether it is a dead-letter queue."""
        return self.dead_letters is None

    def store(
        self,
        messages: Sequence[Parts],
        now_ms: int,
        origins: Sequence[int] | None = None,
        *,
        fed: bool = False,
        hops: int = 0,
    ) -> None:
        # What is put back into a dead-letter queue goes on from there: what the target does not take has to stay.
        if self._relay is None or self.keeps_dead_letters or not self._relay.passes:
            super().store(messages, now_ms, origins, fed=fed, hops=hops)
        else:
            self._relay.pass_on(self._capped(messages) if fed else messages, now_ms, origins, hops)

    def set_aside(self, stored: Stored, error: IsthmusError) -> None:
        """Stage a message that could not go on where somebody will look for it; not for dead-letter queues."""
        if isinstance(error, EntityNotFoundError):
            queue = self._context.transfer_dead_letters(self)
        else:
            assert self.dead_letters is not None
            queue = self.dead_letters
        queue.store_dead([stored], self.path, reason_of(error), str(error))

    def take_back(self, stored: Stored, error: IsthmusError) -> None:
        if self.dead_letters is not None:
            self.set_aside(stored, error)
        else:
            before = annotation_of(stored.parts, "x-opt-deadletter-source")
            self.store_dead([stored], str(before), None, None)

    # ---- receiving

    def acquire(
        self,
        limit: int,
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired | None:
        """Up to `limit` available messages in sequence order; None if there is none (no callback comes then).

        With `lock` each is locked for the entity's lock duration. Without, each is deleted: send the payloads only in
        `on_durable`, or a kill may deliver them again. Callbacks matter only without `lock`.

        Raises:
            EntityDisabledError: the status forbids receiving.
            EntityNotFoundError: the entity was deleted.
        """
        self.check_receivable()
        self.check_stays()
        pairs = self.next_pairs(limit)
        if not pairs:
            return None
        if not lock:
            sequences = self._numbers_of(pairs)
            payloads = self._kept([deleted_payload(record) for _, record in pairs])
            self.remove(sequences, sum(len(record) for _, record in pairs))
            self.delivered_total += len(pairs)
            self.settled_total += len(pairs)
            self._staging.promise(on_durable, on_failed)
            return Acquired([key[5:].rjust(16, b"\0") for key, _ in pairs], payloads, sequences, 0)
        return self._lock(pairs, deferred=False)

    def _numbers_of(self, pairs: Sequence[Pair]) -> Sequence[int]:
        """The sequence numbers of messages just read."""
        return sequences_of(pairs)

    def check_stays(self) -> None:
        """Refuse receivers where messages go on.

        Raises:
            NotAllowedError: the entity forwards.
        """
        if self.onward is not None:
            raise NotAllowedError(
                f"Cannot create a message receiver on an entity with auto-forwarding enabled: '{self.path}' forwards to "
                f"'{self.onward.path}'."
            )

    def _lock(self, pairs: Sequence[Pair], *, deferred: bool) -> Acquired:
        clock = self._context.clock
        self.accessed_at_ms = clock.wall_ms()
        until_ms = self._session_until_ms or self.accessed_at_ms + self.lock_duration_ms
        ends_at_ms = monotonic_ms(clock) + self.lock_duration_ms
        random = self._context.random_bytes(8)
        slot = until_ms.to_bytes(8, "big")
        tags = [random + key[5:] for key, _ in pairs]
        if deferred:
            payloads = [plain_payload(record, 1, slot) for _, record in pairs]
        else:
            payloads = locked_payloads(pairs, slot, random)
        sequences = self._numbers_of(pairs)
        held = Lock(random, tags, sequences, array("Q", [len(record) for _, record in pairs]), ends_at_ms)
        held.deferred = deferred
        self.delivered_total += len(tags)
        self._locks.add(held)
        if not self._session_until_ms:
            self._context.wake(self, ends_at_ms)
        return Acquired(tags, self._kept(payloads), sequences, until_ms)

    def check_receivable(self) -> None:
        """Refuse where no message would be given.

        Raises:
            EntityNotFoundError: the entity was deleted.
            EntityDisabledError: its status forbids receiving.
        """
        self._check_open()
        if self._status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED):
            raise EntityDisabledError(self.path, self._status)

    def next_pairs(self, limit: int) -> list[Pair]:
        """Up to `limit` messages that may be delivered now; what has expired is seen to on the way."""
        for _ in range(_ROUNDS):
            pairs = self._read(limit)
            if not pairs or not self._may_expire:
                return pairs
            now = self._context.clock.wall_ms().to_bytes(8, "big")
            expired = [pair for pair in pairs if _NEVER != pair[1][:8] <= now]
            if not expired:
                return pairs
            with self._staging.whole(begun=True):
                self._expire(expired)
            pairs = [pair for pair in pairs if not _NEVER != pair[1][:8] <= now]
            if pairs:
                return pairs
        self._tell_again = True  # there is more: the next commit wakes the listeners
        return []

    # ---- settling

    def complete(
        self, tokens: Sequence[bytes], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> list[bool]:
        """Remove locked messages. One flag per token; False: the lock was lost, and nothing happened to the message.

        The callback comes also if all flags are False. The same holds for the other settlements. Without a callback this is
        written with whatever is next.
        """
        self._check_open()
        flags, spans = self._locks.take(tokens)
        if on_durable is None and on_failed is None:
            with self._staging.patience():
                self._complete(spans)
        else:
            self._complete(spans)
            self._staging.promise(on_durable, on_failed)
        return flags

    def _complete(self, spans: Sequence[Span]) -> None:
        for span in spans:
            self.settled_total += len(span.sequences)
            if span.deferred:
                self._remove_deferred(span)
            else:
                self.remove(span.sequences, span.size_bytes)

    def abandon(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Give messages back with their delivery count raised; at MaxDeliveryCount they are dead-lettered."""
        self._check_open()
        check_encodable(properties)
        flags, spans = self._locks.take(tokens)
        with self._staging.whole(begun=True):
            self._give_back(spans, properties)
        self._staging.promise(on_durable, on_failed)
        return flags

    def release(self, tokens: Sequence[bytes]) -> list[bool]:
        """Give messages back at once, as if never delivered; needs no commit."""
        self._check_open()
        flags, spans = self._locks.take(tokens)
        self._return(spans)
        return flags

    def _return(self, spans: Sequence[Span]) -> None:
        for span in spans:
            if span.deferred:
                self._deferred.unlock(span.sequences)
            else:
                for run in runs_of(span.sequences):
                    self._returned.add(*run)
        if spans:
            self.notify()

    def defer(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Set messages aside; from then on only `receive_deferred` gets them."""
        self._check_open()
        check_encodable(properties)
        flags, spans = self._locks.take(tokens)
        with self._staging.whole(begun=True):
            for span in spans:
                self._defer(span, properties)
        self._staging.promise(on_durable, on_failed)
        return flags

    def _defer(self, span: Span, properties: Mapping[str, Any] | None) -> None:
        for sequence, record in self._records(span):
            changed = merged(record, sequence, properties)
            self._staging.batch.put(message_key(DEFERRED, self.number, sequence), changed)
            self.size_bytes += len(changed)
            self.deferred_count += 1
        if span.deferred:
            self.deferred_count -= len(span.sequences)
            self.size_bytes -= span.size_bytes
            self._deferred.unlock(span.sequences)
        else:
            self.remove(span.sequences, span.size_bytes)
        self._staging.touch(self)

    def dead_letter(
        self,
        tokens: Sequence[bytes],
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Move messages to the dead-letter queue.

        Raises:
            NotAllowedError: this is a dead-letter queue.
        """
        self._check_open()
        if self.dead_letters is None:
            raise NotAllowedError(f"'{self.path}' has no dead-letter queue of its own; complete the message instead.")
        check_encodable(properties)
        flags, spans = self._locks.take(tokens)
        with self._staging.whole(begun=True):
            for span in spans:
                self._bury([record for _, record in self._records(span)], reason, description, properties)
                if span.deferred:
                    self._remove_deferred(span)
                else:
                    self.remove(span.sequences, span.size_bytes)
        self._staging.promise(on_durable, on_failed)
        return flags

    def holds(self, tokens: Sequence[bytes]) -> list[bool]:
        """Per token whether its message is locked by it now; none is where the entity or session has gone."""
        try:
            self._check_open()
        except IsthmusError:
            return [False] * len(tokens)
        return self._locks.holds(tokens)

    def renew(self, tokens: Sequence[bytes]) -> list[int | None]:
        """Lock for a full lock duration from now; the new locked-until wall ms per token, None: lock lost."""
        self._check_open()
        clock = self._context.clock
        until_ms = clock.wall_ms() + self.lock_duration_ms
        ends_at_ms = monotonic_ms(clock) + self.lock_duration_ms
        return [until_ms if live else None for live in self._locks.renew(tokens, ends_at_ms)]

    def receive_deferred(
        self,
        sequences: Sequence[int],
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired:
        """Deferred messages by sequence number, locked or deleted.

        Raises:
            MessageNotFoundError: one of them is not deferred, or locked by someone; none is taken then.
            InvalidArgumentError: together they are too large for one answer; none is taken then.
        """
        self.check_receivable()
        pairs = self._deferred.read(sequences)
        wanted = [unpack_message(key) for key, _ in pairs]
        if lock:
            self._deferred.lock(wanted)
            return self._lock(pairs, deferred=True)
        for key, record in pairs:
            self._staging.batch.delete(key)
            self.size_bytes -= len(record)
        self.deferred_count -= len(pairs)
        self.delivered_total += len(pairs)
        self.settled_total += len(pairs)
        self._staging.touch(self)
        self._staging.promise(on_durable, on_failed)
        payloads = self._kept([plain_payload(record, 1) for _, record in pairs])
        return Acquired([key[5:].rjust(16, b"\0") for key, _ in pairs], payloads, wanted, 0)

    def delete_batch(
        self,
        limit: int,
        before_ms: int | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> int:
        """Delete up to `limit` unlocked active messages enqueued before a wall time; how many."""
        self.check_receivable()
        pairs = self.next_pairs(limit)
        if before_ms is not None:
            kept = [pair for pair in pairs if take_apart(pair[1]).enqueued_ms >= before_ms]
            for key, _ in kept:
                sequence = unpack_message(key)
                self._returned.add(sequence, sequence)
            pairs = [pair for pair in pairs if take_apart(pair[1]).enqueued_ms < before_ms]
        if pairs:
            self.remove(sequences_of(pairs), sum(len(record) for _, record in pairs))
        self._staging.promise(on_durable, on_failed)
        return len(pairs)

    # ---- what becomes of messages

    def _remove_deferred(self, span: Span) -> None:
        batch = self._staging.batch
        for sequence in span.sequences:
            batch.delete(message_key(DEFERRED, self.number, sequence))
        self._deferred.unlock(span.sequences)
        self.deferred_count -= len(span.sequences)
        self.size_bytes -= span.size_bytes
        self._staging.touch(self)

    def _records(self, span: Span) -> list[tuple[int, bytes]]:
        """The stored messages of a span, read back."""
        self._staging.write()
        table = DEFERRED if span.deferred else MESSAGE
        journal, sequences = self._staging.journal, span.sequences
        if isinstance(sequences, range) and len(sequences) > 1:
            stored = journal.scan(*message_span(table, self.number, sequences[0], sequences[-1]))
            return [(unpack_message(key), record) for key, record in stored]
        keys = [message_key(table, self.number, sequence) for sequence in sequences]
        found = zip(sequences, journal.get_many(keys), strict=True)
        return [(sequence, record) for sequence, record in found if record is not None]

    def _give_back(self, spans: Sequence[Span], properties: Mapping[str, Any] | None = None) -> None:
        """Raise delivery counts and return messages to their places with the next commit."""
        now_ms = self._context.clock.wall_ms()
        for span in spans:
            table = DEFERRED if span.deferred else MESSAGE
            kept: list[int] = []
            exhausted: list[tuple[int, bytes]] = []
            expired: list[Pair] = []
            for sequence, record in self._records(span):
                count = delivery_count(record) + 1
                changed = with_delivery_count(merged(record, sequence, properties), count)
                if self.dead_letters is not None and count >= self._max_delivery_count:
                    exhausted.append((sequence, changed))
                    continue
                key = message_key(table, self.number, sequence)
                if not span.deferred and 0 < expires_at_ms(record) <= now_ms:
                    expired.append((key, record))
                    continue
                self._staging.batch.put(key, changed)
                self.size_bytes += len(changed) - len(record)
                kept.append(sequence)
            self._staging.touch(self)
            if exhausted:
                self._exhaust(exhausted, span)
            if expired:
                self._expire(expired)
            if span.deferred:
                self._deferred.unlock(span.sequences)
            else:
                self._returning += runs_of(kept)

    def _exhaust(self, messages: Sequence[tuple[int, bytes]], span: Span) -> None:
        self._bury(
            [record for _, record in messages],
            "MaxDeliveryCountExceeded",
            f"Message could not be consumed after {self._max_delivery_count} delivery attempts.",
            None,
        )
        by_sequence = dict(zip(span.sequences, span.sizes, strict=True))
        size = sum(by_sequence[sequence] for sequence, _ in messages)
        if span.deferred:
            for sequence, _ in messages:
                self._staging.batch.delete(message_key(DEFERRED, self.number, sequence))
            self.deferred_count -= len(messages)
            self.size_bytes -= size
        else:
            self.remove([sequence for sequence, _ in messages], size)

    def _expire(self, pairs: Sequence[Pair]) -> None:
        """End the life of messages that nobody holds."""
        self.expired_total += len(pairs)
        if self._dead_letters_expired and self.dead_letters is not None:
            self._bury(
                [record for _, record in pairs],
                "TTLExpiredException",
                "The message expired and was dead lettered.",
                None,
            )
        self.remove(sequences_of(pairs), sum(len(record) for _, record in pairs))

    def _bury(
        self,
        records: Sequence[bytes],
        reason: str | None,
        description: str | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        """Stage copies of stored messages in the dead-letter queue."""
        assert self.dead_letters is not None
        self.dead_letters.store_dead(
            [take_apart(record) for record in records], self.path, reason, description, properties
        )

    def store_dead(
        self,
        messages: Sequence[Stored],
        source: str,
        reason: str | None,
        description: str | None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        """Stage dead-lettered messages: enqueued time, delivery count and first sequence number stay theirs."""
        letters = as_dead_letters(messages, source, reason, description, properties)
        put = self._staging.batch.put
        pairs: list[Pair] = []
        size = 0
        sequence = self.last
        for stored in letters if self._relay is None else self._relay.pass_dead(letters):
            sequence += 1
            record = build(stored.parts, sequence, stored.enqueued_ms, 0, stored.origin, stored.hops)
            if stored.parts.blob is not None:
                self._context.blobs.refer(self.number, sequence, stored.parts.blob, self.quota_number)
            key = message_key(MESSAGE, self.number, sequence)
            put(key, record)
            pairs.append((key, record))
            size += len(record)
        self._stored(pairs, size, sequence)

    # ---- time

    def expire_locks(self, now_ms: int) -> int | None:
        """End locks that are due; monotonic ms of the next look, None if nothing is locked."""
        spans = self._locks.expire(now_ms, _EXPIRY_LIMIT)
        if spans:
            self._give_back(spans)
        return self._locks.due_ms

    def expire_messages(self, first: int, last: int, now_ms: int, limit: int) -> tuple[int, int] | None:
        """End the lives of unlocked messages among first..last that are over; the run still to look at, or None."""
        self._staging.write()
        start = max(first, self.head)
        if start > last:
            return None
        expired: list[Pair] = []
        held: list[int] = []
        left = None
        stored = self._staging.journal.scan(*message_span(MESSAGE, self.number, start, last))
        for looked_at, (key, record) in enumerate(stored):
            sequence = unpack_message(key)
            if looked_at == limit:
                left = (sequence, last)
                break
            if 0 < expires_at_ms(record) <= now_ms:
                if sequence >= self._window.next or sequence in self._returned:
                    expired.append((key, record))
                else:
                    held.append(sequence)
        if held:
            # The end of a lock ends such a life; a restart in between, which ends locks without a word, must not save it.
            self._context.calendar.expire(now_ms + self.lock_duration_ms, self.number, held[0], held[-1])
        if not expired:
            return left
        front = self._window.next
        unread_gone = []
        for key, _ in expired:
            sequence = unpack_message(key)
            if sequence == front:
                front += 1
            elif sequence > front:
                unread_gone.append(sequence)
            else:
                self._returned.discard(sequence, sequence)
        if front > self._window.next:
            self._window.skip(front - 1)
        self._expire_unread(expired, unread_gone)
        return left

    def _expire_unread(self, expired: Sequence[Pair], unread_gone: Sequence[int]) -> None:
        """As `_expire`, but messages above the cursor are deleted one by one: the cursor finds gaps in their place."""
        if not unread_gone:
            self._expire(expired)
            return
        gone = set(unread_gone)
        behind = [pair for pair in expired if unpack_message(pair[0]) not in gone]
        ahead = [pair for pair in expired if unpack_message(pair[0]) in gone]
        if behind:
            self._expire(behind)
        kept = self._removed
        self._removed = []
        self._expire(ahead)
        self._removed = kept
        for key, _ in ahead:
            self._staging.batch.delete(key)
        self._window.refresh(unread_gone)

    # ---- looking

    @property
    def holds_large(self) -> bool:
        """Whether some message may be large: receivers then get one at a time."""
        blobs = self._context.blobs
        return blobs.is_used and blobs.holds(self.number)

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        return self._locks.locked

    def statistics(self) -> dict[str, int]:
        return {**super().statistics(), "locked_count": self._locks.locked, "listener_count": len(self._listeners)}
