"""The expiry of a queue's messages.

What it is: expired messages skipped at delivery, and removed when their second is over. What it is not: the index of these times
(`calendar`), or the expiry of a locked message: that is the end of its lock (`settlement`).
Spec: docs/explanation/protocol.md, Message.

Invariants:
    I1. An expired message is never delivered; it is removed when its lock ends or its second is over.
    I2. An expired message is dead-lettered in the batch that removes it, where the queue is set so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from isthmus.entities.queue.backlog import sequences_of
from isthmus.entities.queue.dead_letter import SourceQueue, bury
from isthmus.entities.queue.window import Pair
from isthmus.entities.record.record import expires_at_ms
from isthmus.entities.storage.key import MESSAGE, message_span, unpack_message

__all__ = ["ExpiringQueue", "expire", "expire_messages", "next_pairs"]

# Reads in which expired messages are skipped, per call: they must not block the loop.
_ROUNDS = 50
_NEVER = bytes(8)


class ExpiringQueue(SourceQueue, Protocol):
    """The queue that has the messages.

    Attributes:
        lock_duration_ms: of its messages.
        dead_letters_expired: whether expired messages are dead-lettered.
        expired_total: messages that expired since the start.
    """

    lock_duration_ms: int
    dead_letters_expired: bool
    expired_total: int

    @property
    def keeps_dead_letters(self) -> bool:
        """Whether it is a dead-letter queue, which has none of its own."""
        ...


def next_pairs(queue: ExpiringQueue, limit: int) -> list[Pair]:
    """Up to `limit` messages that may be delivered now, taken; expired ones before them are removed."""
    backlog = queue.backlog
    for _ in range(_ROUNDS):
        pairs = backlog.read(queue, limit)
        if not pairs or not queue.may_expire:
            return pairs
        now = queue.context.clock.wall_ms().to_bytes(8, "big")
        expired = [pair for pair in pairs if _NEVER != pair[1][:8] <= now]
        if not expired:
            return pairs
        with queue.context.staging.whole(begun=True):
            expire(queue, expired)
        pairs = [pair for pair in pairs if not _NEVER != pair[1][:8] <= now]
        if pairs:
            return pairs
    backlog.has_news = True  # there is more: the next commit calls the listeners
    return []


def expire(queue: ExpiringQueue, pairs: Sequence[Pair]) -> None:
    """Expire messages that are not locked, and that the cursor has passed."""
    _bury_expired(queue, pairs)
    queue.backlog.remove(queue, sequences_of(pairs), _size_of(pairs))


def expire_messages(queue: ExpiringQueue, first: int, last: int, now_ms: int, limit: int) -> tuple[int, int] | None:
    """Expire the unlocked messages among first..last whose time is over; returns the run still to check, or None."""
    backlog, staging = queue.backlog, queue.context.staging
    staging.write()
    start = max(first, queue.head)
    if start > last:
        return None
    expired: list[Pair] = []
    locked: list[int] = []
    left = None
    window = backlog.window
    stored = staging.journal.scan(*message_span(MESSAGE, queue.number, start, last))
    for checked, (key, record) in enumerate(stored):
        sequence = unpack_message(key)
        if checked == limit:
            left = (sequence, last)
            break
        if 0 < expires_at_ms(record) <= now_ms:
            if sequence >= window.next or sequence in backlog.returned:
                expired.append((key, record))
            else:
                locked.append(sequence)
    if locked:
        # A locked message expires at the end of its lock; a restart in between, which ends locks silently, must not prevent that.
        queue.context.calendar.expire(now_ms + queue.lock_duration_ms, queue.number, locked[0], locked[-1])
    if expired:
        _expire_stored(queue, expired)
    return left


def _expire_stored(queue: ExpiringQueue, expired: Sequence[Pair]) -> None:
    """As `expire`, of messages that the cursor may not have passed."""
    backlog = queue.backlog
    front = backlog.window.next
    ahead: list[Pair] = []
    behind: list[Pair] = []
    for pair in expired:
        sequence = unpack_message(pair[0])
        if sequence > front:
            ahead.append(pair)
            continue
        behind.append(pair)
        if sequence == front:
            front += 1
        else:
            backlog.returned.discard(sequence, sequence)
    if front > backlog.window.next:
        backlog.window.skip(front - 1)
    if behind:
        expire(queue, behind)
    if ahead:
        _bury_expired(queue, ahead)
        backlog.remove_unread(queue, sequences_of(ahead), _size_of(ahead))


def _bury_expired(queue: ExpiringQueue, pairs: Sequence[Pair]) -> None:
    queue.expired_total += len(pairs)
    if queue.dead_letters_expired and not queue.keeps_dead_letters:
        records = [record for _, record in pairs]
        bury(queue, records, "TTLExpiredException", "The message expired and was dead lettered.")


def _size_of(pairs: Sequence[Pair]) -> int:
    return sum(len(record) for _, record in pairs)
