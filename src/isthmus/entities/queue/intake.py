"""The common part of queues and topics: they take messages, now or at a scheduled time.

What it is: status and size of incoming messages, with quota (`quota`), examination (`examination`) and duplicate detection
(`duplicate`); the numbers that messages get; scheduled messages (`schedule`); peeks. What it is not: the storage or copying of a
message that is taken (`Queue`, `Topic`), or the form of the row of cursors and counts (`state`).
Spec: docs/explanation/protocol.md, Sending, Message, Entities.

Invariants:
    I1. A call that raises has staged nothing.
    I2. Counts and cursors are written in the batch of the messages they count.
    I3. A scheduled message gets a new sequence number when it is activated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.member import schedule
from isthmus.entities.member.context import Context
from isthmus.entities.member.duplicate import DuplicateFilter
from isthmus.entities.member.examination import Examination
from isthmus.entities.member.member import Member
from isthmus.entities.member.peek import PeekedRecord, peek_records
from isthmus.entities.member.quota import Quota
from isthmus.entities.member.state import load_state, pack_state
from isthmus.entities.queue.onward import End
from isthmus.entities.record.envelope import Packed
from isthmus.entities.record.record import OVERHEAD_BYTES, Parts, plain_payload, size_of
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import ENTITY_TABLES, SCHEDULED, numbered_span, state_key
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    IsthmusError,
    MessageTooLargeError,
)

__all__ = ["Intake"]

# Larger messages arrive with their body outside of the store, if the namespace has body files.
_INLINE_BYTES = 1 << 20


class Intake(Member):
    """An entity that takes messages.

    Attributes:
        path: canonical.
        number: under which its messages are in the store.
        is_deleted: whether it was deleted; every call then raises EntityNotFoundError.
        requires_session: whether every message must belong to a session.
        is_fragment: whether it is a part of a partitioned entity.
        context: the objects that it shares with the other entities in its store.
        committed: highest sequence number that receivers may see.
        leaving_count, leaving_bytes: messages in lines to other stores.
        taken_total, delivered_total, settled_total, expired_total: messages since the object was created: taken from
            senders, handed to receivers, completed (or deleted on delivery), expired.
        refused_total: deliveries that were refused; counted by the broker, which knows the deliveries.
        quota: its limit of bytes.
        last to may_expire: the values of its row, see `state`.
    """

    last: int
    head: int
    cleaned: int
    active_count: int
    deferred_count: int
    scheduled_count: int
    size_bytes: int
    accessed_at_ms: int
    mark: int
    may_expire: bool

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        self.path = path
        self.number = number
        self.is_deleted = False
        self.requires_session = False
        self.is_fragment = False
        self.taken_total = 0
        self.delivered_total = 0
        self.settled_total = 0
        self.expired_total = 0
        self.refused_total = 0
        self.max_message_size_bytes = context.limits.max_message_size_bytes
        self.context = context
        self._staging = context.staging
        self._status = EntityStatus.ACTIVE
        self.quota = Quota()
        self._examination = Examination(context.limits, context.random_bytes)
        self._duplicates = DuplicateFilter(number, context.staging, context.limits.duplicate_key_window_ms)
        self._load(state)

    def parts(self) -> list[Intake]:
        """Itself, and its parts with numbers of their own."""
        return [self]

    def _load(self, state: bytes | None) -> None:
        load_state(self, state)
        self.committed = self.last
        self.leaving_count, self.leaving_bytes = self.context.leaving.get(self.number, (0, 0))

    def stage_state(self, batch: Batch) -> None:
        """See `staging.Member`."""
        if not self.is_deleted:
            batch.put(state_key(self.number), pack_state(self))

    def seal(self) -> Any:
        """See `staging.Member`."""
        return self.last

    def publish(self, sealed: Any) -> None:
        """See `staging.Member`."""
        self.committed = max(self.committed, sealed)

    def reload(self, state: bytes | None) -> None:
        """Go back to the state of the store, after a failed commit."""
        self._load(state)
        self._duplicates.reset()

    # ---- settings

    def configure(
        self,
        *,
        status: EntityStatus,
        default_ttl_ms: int,
        quota_megabytes: int = 0,
        max_message_size_bytes: int | None = None,
        duplicate_window_ms: int = 0,
    ) -> None:
        """Take the settings of a description."""
        self._status = status
        self._examination.set_default_ttl(default_ttl_ms)
        self.quota.limit_bytes = quota_megabytes << 20
        self.max_message_size_bytes = max_message_size_bytes or self.context.limits.max_message_size_bytes
        self._duplicates.configure(duplicate_window_ms)

    def stored_bytes(self) -> int:
        """The size that counts towards the quota: messages as their senders wrote them, without the broker's annotations."""
        count: int = self.active_count + self.deferred_count + self.scheduled_count
        return self.record_bytes - count * OVERHEAD_BYTES + self.leaving_bytes

    @property
    def takes_bodies(self) -> bool:
        """Whether messages whose bodies are outside of the store can be kept here."""
        return self.context.blobs.files is not None

    @property
    def record_bytes(self) -> int:
        """Of all records, and of the bodies that they refer to."""
        return self.size_bytes + self.context.blobs.stored_bytes(self.number)

    @property
    def quota_number(self) -> int:
        """Number of the entity whose quota counts bodies of large messages."""
        return self.number

    # ---- taking messages

    def accept(
        self, payloads: Sequence[Payload], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Take messages as one atomic unit, in order. Exactly one of the callbacks is called, from the engine's ``end_commit`` or
        ``fail_commit`` (or from ``begin_commit`` if the store refuses the write). A message with
        ``x-opt-scheduled-enqueue-time`` in the future is scheduled.

        Raises (nothing is then staged): InvalidMessageError, MessageTooLargeError, QuotaExceededError,
            EntityDisabledError, SessionRequiredError, EntityNotFoundError.
        """
        messages = self.examine(payloads)
        with self._staging.whole():
            self.enter(messages, self.context.clock.wall_ms())
        self._staging.promise(on_durable, on_failed)

    def enter(self, messages: Sequence[Parts], now_ms: int) -> None:
        """Stage messages that `examine` has passed."""
        accepted = [parts for parts in self._admit(messages, now_ms) if parts is not None]
        later = [(parts, parts.head.due_ms) for parts in accepted if parts.head.due_ms > now_ms]
        if later:
            accepted = [parts for parts in accepted if parts.head.due_ms <= now_ms]
            schedule.add(self, later, now_ms)
        if accepted:
            self._take(accepted, now_ms)

    def schedule(
        self,
        messages: Sequence[tuple[bytes, int]],
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[int]:
        """Take (payload, due wall ms) pairs; their sequence numbers while scheduled. Errors as `accept`."""
        now_ms = self.context.clock.wall_ms()
        examined = self.examine([payload for payload, _ in messages])
        with self._staging.whole():
            accepted = self._admit(examined, now_ms)
            sequences = schedule.add(
                self, [(parts, due_ms) for parts, (_, due_ms) in zip(accepted, messages, strict=True)], now_ms
            )
        self._staging.promise(on_durable, on_failed)
        return sequences

    def _take(
        self, accepted: Sequence[Parts], now_ms: int, origins: Sequence[int] | None = None, hops: int = 0
    ) -> None:
        """Stage messages as active; `origins` and `hops` as for `accept_moved`."""
        raise NotImplementedError

    # ---- messages that another entity forwards

    @property
    def takes_sends(self) -> bool:
        """Whether the entity exists and its status lets messages in."""
        return not self.is_deleted and self._status not in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)

    def refusal(self) -> IsthmusError | None:
        """Why no message would be taken, whatever it is; None if some would."""
        if self.is_deleted:
            return EntityNotFoundError(self.path)
        return None if self.takes_sends else EntityDisabledError(self.path, self._status)

    def ends(self, messages: Sequence[Parts], store: int) -> dict[End, list[int]]:
        """The end for messages from another store, with their indices: all go here."""
        del store
        return {End(0, self.number, self, is_here=False): list(range(len(messages)))}

    def refusal_of(self, messages: Sequence[Parts]) -> IsthmusError | None:
        """Why these messages, forwarded together, would not be taken; None if they would."""
        if not self.takes_sends:
            return self.refusal()
        sizes = list(map(size_of, messages))
        if max(sizes) > self.max_message_size_bytes:
            return MessageTooLargeError(max(sizes), self.max_message_size_bytes)
        if not self.takes_bodies:
            largest = max((size for size, parts in zip(sizes, messages, strict=True) if parts.blob), default=0)
            if largest:
                return MessageTooLargeError(largest, _INLINE_BYTES)
        if self.requires_session:
            try:
                self.check_sessions(messages)
            except IsthmusError as error:
                return error
        return self.quota.refusal(self, sum(sizes), midway=True)

    def accept_moved(self, messages: Sequence[Parts], origins: Sequence[int], now_ms: int, hops: int) -> None:
        """Take messages that another entity forwards, in its batch; `refusal_of` was asked. Duplicates are dropped.

        Args:
            messages: in order.
            origins: per message the sequence number where it first entered.
            now_ms: enqueued time.
            hops: how often they were forwarded, this time included.
        """
        messages = self._examination.capped(messages)
        self.accessed_at_ms = now_ms
        messages, origins = self._duplicates.fresh_moved(messages, origins, now_ms, is_fragment=self.is_fragment)
        self._staging.touch(self)
        if messages:
            self._take(messages, now_ms, origins, hops)

    def check_open(self) -> None:
        """Raise EntityNotFoundError where the entity was deleted."""
        if self.is_deleted:
            raise EntityNotFoundError(self.path)

    def reserve_room(self, size_bytes: int) -> None:
        """Count bytes of a message that is still coming to the quota.

        Raises:
            QuotaExceededError: they do not fit; nothing is counted.
            EntityNotFoundError, EntityDisabledError: no message is taken.
        """
        self.check_sendable()
        self.quota.reserve(self, size_bytes)

    def release_room(self, size_bytes: int) -> None:
        """Release reserved bytes: the message is complete and about to be taken, or was aborted."""
        self.quota.release(size_bytes)

    def check_sendable(self) -> None:
        """Raise what `refusal` says."""
        self.check_open()
        if self._status in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED):
            raise EntityDisabledError(self.path, self._status)

    def examine(self, payloads: Sequence[Payload]) -> list[Parts]:
        """Check messages and take them apart; stages nothing. Errors as `accept`."""
        self.check_sendable()
        packed = payloads if isinstance(payloads, Packed) else None
        sizes = list(map(len, payloads)) if packed is None else packed.sizes
        if not sizes:
            return []
        if max(sizes) > self.max_message_size_bytes:
            raise MessageTooLargeError(max(sizes), self.max_message_size_bytes)
        self.quota.check(self, sum(sizes))
        largest = max(sizes)
        accepted = self._examination.split(payloads, largest)
        if self.requires_session:
            self.check_sessions(accepted)
        return accepted

    def _admit(self, messages: Sequence[Parts], now_ms: int) -> Sequence[Parts | None]:
        """Count messages as taken; they, with None for each duplicate. Stages the ids and keys for detection."""
        fresh = self._duplicates.fresh(messages, now_ms, is_fragment=self.is_fragment)
        self.accessed_at_ms = now_ms
        self.taken_total += len(messages)
        self._staging.touch(self)
        return fresh

    def pass_numbers(self, count: int) -> range:
        """Give numbers to messages that are not stored here, since they are forwarded immediately."""
        numbers = range(self.last + 1, self.last + 1 + count)
        self.last = numbers[-1]
        self._staging.touch(self)
        return numbers

    # ---- scheduled messages

    def reserve(self, count: int, on_durable: Callback | None = None, on_failed: Failure | None = None) -> list[int]:
        """Give numbers to messages that may be scheduled later; once that is durable nothing else ever gets them."""
        numbers = list(range(self.last + 1, self.last + 1 + count))
        self.last += count
        self._staging.touch(self)
        self._staging.promise(on_durable, on_failed)
        return numbers

    def enter_scheduled(self, messages: Sequence[tuple[int, Parts, int]], now_ms: int) -> None:
        """Stage (reserved number, message that `examine` has passed, due wall ms)."""
        accepted = self._admit([parts for _, parts, _ in messages], now_ms)
        for parts, (sequence, _, due_ms) in zip(accepted, messages, strict=True):
            if parts is not None:
                schedule.put(self, sequence, parts, due_ms, now_ms)

    def cancel_scheduled(
        self, sequences: Sequence[int], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Drop scheduled messages.

        Raises:
            MessageNotFoundError: one of them is not scheduled; none is dropped then.
        """
        self.check_open()
        schedule.cancel(self, sequences)
        self._staging.promise(on_durable, on_failed)

    def missing_scheduled(self, sequences: Sequence[int]) -> list[int]:
        """Which of the sequence numbers are none of scheduled messages."""
        self.check_open()
        return schedule.missing(self, sequences)

    def activate(self, due: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Take scheduled messages that are due, given as (due ms, sequence number)."""
        taken = schedule.take_due(self, due)
        if taken:
            # A default of more than 49 days is named by no header, and so by no scheduled message.
            self._take(self._examination.capped(taken), now_ms)

    # ---- peeking

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """Messages of every state from a sequence number on, in order, without locking."""
        self.check_open()
        self.accessed_at_ms = self.context.clock.wall_ms()
        self._staging.write()
        return self._shown(self.peek_records(from_sequence, count))

    def _shown(self, seen: Sequence[PeekedRecord]) -> list[Payload]:
        return self.context.blobs.kept([plain_payload(record, state) for _, record, state in seen])

    def peek_records(self, from_sequence: int, count: int) -> list[PeekedRecord]:
        """Messages of every state, in order, as the store has them; the staged ones must have been written."""
        return peek_records(self, self._tables(), from_sequence, count)

    def _tables(self) -> list[tuple[int, int]]:
        """(table, state as in the annotation) of those that contain messages."""
        return [(SCHEDULED, 2)] if self.scheduled_count else []

    def wipe(self) -> None:
        """Stage the removal of everything the entity has in the store, and end it."""
        batch = self._staging.batch
        for table in ENTITY_TABLES:
            batch.delete_range(*numbered_span(table, self.number))
        batch.delete(state_key(self.number))
        self.is_deleted = True
        self.active_count = self.deferred_count = self.scheduled_count = self.size_bytes = 0

    def statistics(self) -> dict[str, int]:
        """Counts and sizes, for metrics."""
        return {
            "active_count": self.active_count,
            "deferred_count": self.deferred_count,
            "scheduled_count": self.scheduled_count,
            "size_bytes": self.record_bytes,
            "last_sequence": self.last,
        }
