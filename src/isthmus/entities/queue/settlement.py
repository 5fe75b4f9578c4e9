"""Settlement of messages that a receiver has locked, and the effects of the end of a lock.

What it is: completed, abandoned, released, deferred and dead-lettered messages of a queue. What it is not: the tokens and ends of
the locks (`lock`), the locking of messages (`delivery`), or the commit that makes staged changes durable.
Spec: docs/explanation/protocol.md, Settlement.

Invariants:
    I1. A settled message is invisible immediately, and the callback is called only after the sync that covers it.
    I2. A settlement is staged whole, with the copies that it makes in the dead-letter queue, or everything staged has failed.
    I3. An abandoned message, and one whose lock has ended, is returned by the commit that raises its delivery count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from isthmus.clock import monotonic_ms
from isthmus.entities.queue.dead_letter import bury
from isthmus.entities.queue.deferred import DeferredMessages, DeferringQueue
from isthmus.entities.queue.expiry import ExpiringQueue, expire
from isthmus.entities.queue.lock import LockTable, Span
from isthmus.entities.queue.run import runs_of
from isthmus.entities.queue.window import Pair
from isthmus.entities.record.amend import check_encodable, delivery_count, merged, with_delivery_count
from isthmus.entities.record.record import expires_at_ms
from isthmus.entities.storage.key import DEFERRED, MESSAGE, message_key, message_span, unpack_message
from isthmus.entities.storage.staging import Callback, Failure

__all__ = [
    "SettlingQueue",
    "abandon",
    "complete",
    "dead_letter",
    "defer",
    "end_locks",
    "expire_locks",
    "release",
    "renew",
    "return_spans",
]


# Locks ended in one call: more would block the loop.
_EXPIRY_LIMIT = 1000


class SettlingQueue(ExpiringQueue, DeferringQueue, Protocol):
    """The queue that has the messages.

    Attributes:
        locks: of its messages.
        deferred: its deferred messages.
        max_delivery_count: deliveries after which a message is dead-lettered.
        settled_total: messages completed since the start.
    """

    locks: LockTable
    deferred: DeferredMessages
    max_delivery_count: int
    settled_total: int

    def notify(self) -> None:
        """Call the listeners."""
        ...


def complete(
    queue: SettlingQueue, tokens: Sequence[bytes], on_durable: Callback | None, on_failed: Failure | None
) -> list[bool]:
    """Remove locked messages.

    The callback is called even if no lock was left. The same applies to the other settlements. Without a callback the change is
    written with the next batch.

    Returns:
        One flag per token; False: the lock was lost, and the message is unchanged.
    """
    flags, spans = queue.locks.take(tokens)
    queue.settled_total += flags.count(True)
    staging = queue.context.staging
    if on_durable is None and on_failed is None:
        with staging.patience():
            _remove(queue, spans)
    else:
        _remove(queue, spans)
        staging.promise(on_durable, on_failed)
    return flags


def abandon(
    queue: SettlingQueue,
    tokens: Sequence[bytes],
    properties: Mapping[str, Any] | None,
    on_durable: Callback | None,
    on_failed: Failure | None,
) -> list[bool]:
    """Return messages with their delivery count raised; at MaxDeliveryCount they are dead-lettered."""
    check_encodable(properties)
    flags, spans = queue.locks.take(tokens)
    staging = queue.context.staging
    with staging.whole(begun=True):
        end_locks(queue, spans, properties)
    staging.promise(on_durable, on_failed)
    return flags


def release(queue: SettlingQueue, tokens: Sequence[bytes]) -> list[bool]:
    """Return messages at once, as if never delivered; needs no commit."""
    flags, spans = queue.locks.take(tokens)
    return_spans(queue, spans)
    return flags


def return_spans(queue: SettlingQueue, spans: Sequence[Span]) -> None:
    """Make unlocked messages available again, as if never delivered."""
    for span in spans:
        if span.deferred:
            queue.deferred.unlock(span.sequences)
        else:
            queue.backlog.put_back(runs_of(span.sequences))
    if spans:
        queue.notify()


def defer(
    queue: SettlingQueue,
    tokens: Sequence[bytes],
    properties: Mapping[str, Any] | None,
    on_durable: Callback | None,
    on_failed: Failure | None,
) -> list[bool]:
    """Defer messages; from then on only `delivery.receive_deferred` gets them."""
    check_encodable(properties)
    flags, spans = queue.locks.take(tokens)
    staging = queue.context.staging
    with staging.whole(begun=True):
        for span in spans:
            for sequence, record in _records(queue, span):
                queue.deferred.put(queue, sequence, merged(record, sequence, properties))
            if span.deferred:
                queue.deferred.replaced(queue, span.sequences, span.size_bytes)
            else:
                queue.backlog.remove(queue, span.sequences, span.size_bytes)
    staging.promise(on_durable, on_failed)
    return flags


def dead_letter(
    queue: SettlingQueue,
    tokens: Sequence[bytes],
    reason: str | None,
    description: str | None,
    properties: Mapping[str, Any] | None,
    on_durable: Callback | None,
    on_failed: Failure | None,
) -> list[bool]:
    """Move messages to the dead-letter queue, which the queue has."""
    check_encodable(properties)
    flags, spans = queue.locks.take(tokens)
    staging = queue.context.staging
    with staging.whole(begun=True):
        for span in spans:
            bury(queue, [record for _, record in _records(queue, span)], reason, description, properties)
            _remove(queue, [span])
    staging.promise(on_durable, on_failed)
    return flags


def end_locks(queue: SettlingQueue, spans: Sequence[Span], properties: Mapping[str, Any] | None = None) -> None:
    """Stage a failed delivery of messages: with their delivery count raised they return to their positions with the
    next commit, or go to the dead-letter queue, or they have expired meanwhile.
    """
    now_ms = queue.context.clock.wall_ms()
    staging = queue.context.staging
    for span in spans:
        table = DEFERRED if span.deferred else MESSAGE
        kept: list[int] = []
        exhausted: list[tuple[int, bytes]] = []
        expired: list[Pair] = []
        for sequence, record in _records(queue, span):
            count = delivery_count(record) + 1
            changed = with_delivery_count(merged(record, sequence, properties), count)
            if count >= queue.max_delivery_count and not queue.keeps_dead_letters:
                exhausted.append((sequence, changed))
                continue
            key = message_key(table, queue.number, sequence)
            if not span.deferred and 0 < expires_at_ms(record) <= now_ms:
                expired.append((key, record))
                continue
            staging.batch.put(key, changed)
            queue.size_bytes += len(changed) - len(record)
            kept.append(sequence)
        staging.touch(queue)
        if exhausted:
            _exhaust(queue, exhausted, span)
        if expired:
            expire(queue, expired)
        if span.deferred:
            queue.deferred.unlock(span.sequences)
        else:
            queue.backlog.returning += runs_of(kept)


def expire_locks(queue: SettlingQueue, now_ms: int) -> int | None:
    """End locks that are due; returns monotonic ms of the next check, None if nothing is locked."""
    spans = queue.locks.expire(now_ms, _EXPIRY_LIMIT)
    if spans:
        end_locks(queue, spans)
    return queue.locks.due_ms


def renew(queue: SettlingQueue, tokens: Sequence[bytes]) -> list[int | None]:
    """Lock for a full lock duration from now; returns the new locked-until wall ms per token, None: lock lost."""
    clock = queue.context.clock
    until_ms = clock.wall_ms() + queue.lock_duration_ms
    ends_at_ms = monotonic_ms(clock) + queue.lock_duration_ms
    return [until_ms if live else None for live in queue.locks.renew(tokens, ends_at_ms)]


def _exhaust(queue: SettlingQueue, messages: Sequence[tuple[int, bytes]], span: Span) -> None:
    bury(
        queue,
        [record for _, record in messages],
        "MaxDeliveryCountExceeded",
        f"Message could not be consumed after {queue.max_delivery_count} delivery attempts.",
    )
    by_sequence = dict(zip(span.sequences, span.sizes, strict=True))
    sequences = [sequence for sequence, _ in messages]
    size_bytes = sum(by_sequence[sequence] for sequence in sequences)
    _remove(queue, [span._replace(sequences=sequences, size_bytes=size_bytes)])


def _remove(queue: SettlingQueue, spans: Sequence[Span]) -> None:
    """Stage the removal of messages."""
    for span in spans:
        if span.deferred:
            queue.deferred.remove(queue, span.sequences, span.size_bytes)
        else:
            queue.backlog.remove(queue, span.sequences, span.size_bytes)


def _records(queue: SettlingQueue, span: Span) -> list[tuple[int, bytes]]:
    """The stored messages of a span, read back."""
    staging = queue.context.staging
    staging.write()
    table = DEFERRED if span.deferred else MESSAGE
    journal, sequences = staging.journal, span.sequences
    if isinstance(sequences, range) and len(sequences) > 1:
        stored = journal.scan(*message_span(table, queue.number, sequences[0], sequences[-1]))
        return [(unpack_message(key), record) for key, record in stored]
    keys = [message_key(table, queue.number, sequence) for sequence in sequences]
    found = zip(sequences, journal.get_many(keys), strict=True)
    return [(sequence, record) for sequence, record in found if record is not None]
