"""The delivery of a queue's messages to receivers: locked, or deleted on delivery.

What it is: active messages in their order, deferred ones by their numbers, and the deletion of many unlocked ones. What it
is not: the stored messages (`backlog`), or their settlement (`settlement`).
Spec: docs/explanation/protocol.md, Settlement, Management.

Invariants:
    I1. A receiver gets only messages whose acceptance is durable, in sequence order; a returned message precedes all
        unread ones.
    I2. A message taken from the backlog is locked, or removed by the next commit.
    I3. Locks are held by monotonic time: a step of the wall clock changes none. Clients are shown their ends by the wall clock
        at the time of locking.
    I4. Messages that receive-and-delete has deleted are delivered to their receiver also if the store has failed but kept the deletion: no
        other receiver can get them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from isthmus.clock import monotonic_ms
from isthmus.entities.member.state import cursors
from isthmus.entities.queue.backlog import sequences_of
from isthmus.entities.queue.deferred import DeferredMessages, DeferringQueue
from isthmus.entities.queue.expiry import ExpiringQueue, next_pairs
from isthmus.entities.queue.lock import Acquired, Lock, LockTable
from isthmus.entities.queue.run import runs_of
from isthmus.entities.queue.window import Pair
from isthmus.entities.record.amend import enqueued_ms_of
from isthmus.entities.record.record import deleted_payload, locked_payloads, plain_payload
from isthmus.entities.storage.key import DEFERRED, MESSAGE, message_key, state_key, unpack_message
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import StoreError

__all__ = ["DeliveringQueue", "acquire", "delete_batch", "delete_locked", "receive_deferred"]

# Messages that one deletion of many checks at most, about 0.1 s of work, and how many of them are in memory at once.
_CHECKED_MESSAGES = 1 << 15
_READ_AT_ONCE = 500


class DeliveringQueue(ExpiringQueue, DeferringQueue, Protocol):
    """The queue that has the messages.

    Attributes:
        locks: of its messages.
        deferred: its deferred messages.
        session_until_ms: wall ms of the end of the session lock, which also ends its messages' locks; 0 without a session.
        accessed_at_ms: wall time of the last use.
        delivered_total: messages handed to receivers since the start.
        settled_total: messages completed since the start.
    """

    locks: LockTable
    deferred: DeferredMessages
    session_until_ms: int
    accessed_at_ms: int
    delivered_total: int
    settled_total: int

    def check_open(self) -> None:
        """Raise where the entity, or the session, has ended."""
        ...


def acquire(
    queue: DeliveringQueue, limit: int, on_durable: Callback | None, on_failed: Failure | None, *, lock: bool
) -> Acquired | None:
    """Up to `limit` available messages in sequence order; None if there is none (no callback is called then).

    With `lock` each is locked for the entity's lock duration. Without, each is deleted: send the payloads only in
    `on_durable`, or a kill may deliver them again. Callbacks matter only without `lock`.
    """
    pairs = next_pairs(queue, limit)
    if not pairs:
        return None
    if lock:
        return _lock(queue, pairs, is_deferred=False)
    queue.delivered_total += len(pairs)
    return _delete(queue, pairs, on_durable, on_failed)


def delete_locked(
    queue: DeliveringQueue, token: bytes, on_durable: Callback | None = None, on_failed: Failure | None = None
) -> Acquired | None:
    """Delete a message that `acquire` has locked, as it does without `lock`; None if the lock is lost.

    Raises:
        EntityNotFoundError, SessionLockLostError: the entity or the session has ended.
        StoreError: the message cannot be read; its lock stays.
    """
    queue.check_open()
    key = message_key(MESSAGE, queue.number, int.from_bytes(token[8:], "big"))
    record = queue.context.staging.journal.get(key) if queue.locks.holds([token])[0] else None
    if record is None:
        return None
    queue.locks.take([token])
    return _delete(queue, [(key, record)], on_durable, on_failed)


def _delete(
    queue: DeliveringQueue, pairs: Sequence[Pair], on_durable: Callback | None, on_failed: Failure | None
) -> Acquired:
    sequences = queue.backlog.numbers_of(pairs)
    payloads = queue.context.blobs.kept([deleted_payload(record) for _, record in pairs])
    queue.backlog.remove(queue, sequences, sum(len(record) for _, record in pairs))
    queue.settled_total += len(pairs)
    _promise(queue, sequences[0], on_durable, on_failed)
    return Acquired(_plain_tags(pairs), payloads, sequences, 0)


def receive_deferred(
    queue: DeliveringQueue,
    sequences: Sequence[int],
    *,
    lock: bool,
    on_durable: Callback | None,
    on_failed: Failure | None,
) -> Acquired:
    """Deferred messages by sequence number, locked or deleted.

    Raises:
        MessageNotFoundError: one of them is not deferred, or locked; none is taken then.
        InvalidArgumentError: together they are too large for one answer; none is taken then.
    """
    pairs = queue.deferred.read(sequences)
    wanted = [unpack_message(key) for key, _ in pairs]
    if lock:
        queue.deferred.lock(wanted)
        return _lock(queue, pairs, is_deferred=True)
    queue.deferred.remove(queue, wanted, sum(len(record) for _, record in pairs))
    queue.delivered_total += len(pairs)
    queue.settled_total += len(pairs)
    _promise(queue, wanted[0] if wanted else 0, on_durable, on_failed)
    payloads = queue.context.blobs.kept([plain_payload(record, 1) for _, record in pairs])
    return Acquired(_plain_tags(pairs), payloads, wanted, 0)


def _promise(queue: DeliveringQueue, sequence: int, on_durable: Callback | None, on_failed: Failure | None) -> None:
    """Call back for messages that receive-and-delete has deleted; `sequence` is one of them (I4)."""
    queue.context.staging.promise(on_durable, _Deletion(queue, sequence, on_durable, on_failed).failed)


class _Deletion:
    """The deletion of messages on delivery. It never refers to itself: its callbacks keep bodies in memory and on disk, and these have
    to go when the commit ends, not when Python collects garbage.
    """

    __slots__ = ("_on_durable", "_on_failed", "_queue", "_sequence")

    def __init__(
        self, queue: DeliveringQueue, sequence: int, on_durable: Callback | None, on_failed: Failure | None
    ) -> None:
        self._queue = queue
        self._sequence = sequence
        self._on_durable = on_durable
        self._on_failed = on_failed

    def failed(self, error: Exception) -> None:
        """The commit has failed; the store may have kept the deletion."""
        staging = self._queue.context.staging
        if self._on_durable is not None and staging.is_stale:
            staging.when_back(partial(self._check, error))
        else:
            self._check(error)

    def _check(self, error: Exception) -> None:
        if self._on_durable is not None and _is_gone(self._queue, self._sequence):
            self._queue.context.staging.confirm(self._on_durable, self.failed)
        elif self._on_failed is not None:
            self._on_failed(error)


def _is_gone(queue: DeliveringQueue, sequence: int) -> bool:
    """Whether the store, as it was loaded again, has a message no more; one that was set aside may be back in its place."""
    journal, number = queue.context.staging.journal, queue.number
    try:
        state = journal.get(state_key(number))
        active, deferred = journal.get_many([message_key(kind, number, sequence) for kind in (MESSAGE, DEFERRED)])
    except StoreError:
        return False
    if state is None:  # an empty session leaves no row; elsewhere it has never held a message
        return deferred is None and queue.session_until_ms > 0
    last, head, *_ = cursors(state)
    # A number above the last was removed with its acceptance, whose failure was reported to its sender.
    return deferred is None and sequence <= last and (active is None or sequence < head)


def _lock(queue: DeliveringQueue, pairs: Sequence[Pair], *, is_deferred: bool) -> Acquired:
    context = queue.context
    clock, session_until_ms, duration_ms = context.clock, queue.session_until_ms, queue.lock_duration_ms
    queue.accessed_at_ms = now_ms = clock.wall_ms()
    until_ms = session_until_ms or now_ms + duration_ms
    ends_at_ms = monotonic_ms(clock) + duration_ms
    random = context.random_bytes(8)
    slot = until_ms.to_bytes(8, "big")
    tags = [random + key[5:] for key, _ in pairs]
    if is_deferred:
        payloads = [plain_payload(record, 1, slot) for _, record in pairs]
    else:
        payloads = locked_payloads(pairs, slot, random)
    sequences = queue.backlog.numbers_of(pairs)
    lock = Lock(random, tags, sequences, array("Q", [len(record) for _, record in pairs]), ends_at_ms)
    lock.deferred = is_deferred
    queue.delivered_total += len(tags)
    queue.locks.add(lock)
    if not session_until_ms:
        context.wake(queue, ends_at_ms)
    return Acquired(tags, context.blobs.kept(payloads), sequences, until_ms)


def _plain_tags(pairs: Sequence[Pair]) -> list[bytes]:
    """Delivery tags of messages that are not settled."""
    return [key[5:].rjust(16, b"\0") for key, _ in pairs]


def delete_batch(
    queue: DeliveringQueue,
    limit: int,
    before_ms: int | None,
    on_durable: Callback | None,
    on_failed: Failure | None,
) -> int:
    """Delete up to `limit` unlocked active messages enqueued before a wall time; returns how many.

    Newer messages are skipped: a dead-letter queue may have them before older ones, so there `_CHECKED_MESSAGES` are checked at most,
    elsewhere `limit`.

    Raises:
        StoreError: none can be read; nothing was deleted.
    """
    staging, backlog = queue.context.staging, queue.backlog
    drops, deleted = staging.drops, 0
    unchecked = _CHECKED_MESSAGES if queue.keeps_dead_letters else limit
    newer: list[Sequence[int]] = []
    try:
        while deleted < limit and unchecked > 0:
            pairs = next_pairs(queue, min(limit - deleted, unchecked, _READ_AT_ONCE))
            if not pairs:
                break
            unchecked -= len(pairs)
            if before_ms is not None:
                kept = [pair for pair in pairs if enqueued_ms_of(pair[1]) >= before_ms]
                if kept:
                    newer.append(sequences_of(kept))
                    pairs = [pair for pair in pairs if enqueued_ms_of(pair[1]) < before_ms]
            if pairs:
                backlog.remove(queue, sequences_of(pairs), sum(len(record) for _, record in pairs))
                deleted += len(pairs)
    except StoreError:
        if not deleted or staging.drops != drops:
            raise
    finally:
        if staging.drops == drops:  # otherwise the queue has gone back to the store, where nothing is taken
            for sequences in newer:
                backlog.put_back(runs_of(sequences))
    staging.promise(on_durable, on_failed)
    return deleted
