"""What queues and topics have in common: they take messages, now or at a time.

What it is: checks of size, quota and status, missing message ids, duplicate detection, scheduled messages, and the
row of cursors and counts that every entity keeps in the store. What it is not: what becomes of a message that is taken
(`Queue`, `Topic`). Spec: docs/explanation/protocol.md, Sending, Message, Entities.
A little over 400 lines: everything that can refuse a message stands here, beside what it refuses it for.

Invariants:
    I1. A call that raises has staged nothing.
    I2. Counts and cursors are written in the batch of the messages they count.
    I3. A scheduled message is activated or cancelled, never both; on activation it gets a new sequence number.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.amqp import codec, section
from isthmus.amqp.types import Timestamp
from isthmus.clock import Clock
from isthmus.entities.catalog.description import INFINITE_MS, EntityStatus
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.detection.detection import Detection
from isthmus.entities.detection.key_detection import KeyDetection
from isthmus.entities.error import InvalidMessageError
from isthmus.entities.fragment.place import detection_id
from isthmus.entities.queue.calendar import Calendar
from isthmus.entities.queue.window import Budget
from isthmus.entities.record.amend import message_id_of, take_apart, with_annotation, with_message_id
from isthmus.entities.record.copy import Copy, KeyReader, is_copy
from isthmus.entities.record.envelope import Packed
from isthmus.entities.record.parse import HeadCache, split_many, split_mixed, split_packed
from isthmus.entities.record.record import OVERHEAD_BYTES, Parts, build, plain_payload, size_of
from isthmus.entities.storage.blob import BlobFiles, Blobs, Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import (
    DEFERRED,
    DETECTION,
    DUPLICATE_KEY,
    ERAS,
    KEY_RUN,
    MESSAGE,
    SCHEDULED,
    SOURCE_MARK,
    UNREADABLE,
    message_key,
    message_span,
    numbered_span,
    state_key,
)
from isthmus.entities.storage.staging import Callback, Failure, Staging
from isthmus.entities.topic.fan_out import FanOut
from isthmus.errors import (
    EntityDisabledError,
    EntityNotFoundError,
    IsthmusError,
    MessageNotFoundError,
    MessageTooLargeError,
    QuotaExceededError,
)

if TYPE_CHECKING:
    from isthmus.entities.fragment.handover import Outbox

__all__ = ["LOOK_BYTES", "Context", "Intake", "Seen", "cursors", "first_seen", "fresh_state"]

# Sequence number, record, and state as messages tell it.
Seen = tuple[int, bytes, int]
_STATE = struct.Struct(">9QB")
_LAST = (1 << 64) - 2
# The last time that an AMQP timestamp can say.
_LATEST_MS = (1 << 63) - 1
# No message up to this size comes as anything but bytes.
_SMALL_BYTES = 32 << 10
# Of a message id that is made here.
_ID_BYTES = 16
# Of messages that one look reads; whoever wants more asks for what follows.
LOOK_BYTES = 16 << 20
# What is larger comes with its body outside of the store, where there is room for such.
_INLINE_BYTES = 1 << 20


def cursors(state: bytes) -> tuple[int, int, int, int]:
    """Of an entity's row in the store: last sequence number, head, active and deferred messages."""
    last, head, _, active_count, deferred_count, *_ = _STATE.unpack(state)
    return last, head, active_count, deferred_count


def fresh_state(before_first: int) -> bytes:
    """The row of an entity without messages whose first sequence number will be the next."""
    return _STATE.pack(before_first, before_first + 1, before_first + 1, 0, 0, 0, 0, 0, 0, 0)


class Context:
    """What the entities of one namespace share."""

    __slots__ = (
        "allocate",
        "blobs",
        "budget",
        "calendar",
        "clock",
        "fan_out",
        "leaving",
        "limits",
        "outbox",
        "random_bytes",
        "sessions",
        "staging",
        "transfer_dead_letters",
        "wake",
    )

    def __init__(
        self,
        staging: Staging,
        clock: Clock,
        limits: Limits,
        random_bytes: Callable[[int], bytes],
        wake: Callable[[Any, int], None],
        transfer_dead_letters: Callable[[Any], Any],
        blob_files: BlobFiles | None = None,
    ) -> None:
        self.staging = staging
        self.blobs = Blobs(staging, blob_files)
        self.clock = clock
        self.limits = limits
        self.random_bytes = random_bytes
        self.wake = wake
        self.transfer_dead_letters = transfer_dead_letters
        self.calendar = Calendar(staging)
        # Numbers for parts of an entity, and the parts by number; see `session.queue`.
        self.allocate: Callable[[int], int] = lambda count: 0
        self.sessions: dict[int, Any] = {}
        self.budget = Budget(limits.live_tail_bytes)
        # What is on its way to other stores, by the number of its source: messages and bytes.
        self.leaving: dict[int, tuple[int, int]] = {}
        self.outbox: Outbox | None = None
        self.fan_out = FanOut(clock.monotonic)


class Intake:
    """An entity that takes messages.

    Attributes:
        path: canonical.
        number: under which its messages lie in the store.
        is_deleted: whether it was deleted; every call then raises EntityNotFoundError.
        requires_session: whether every message must belong to a session.
        is_fragment: whether it is a part of a partitioned entity.
        last: highest sequence number given out.
        committed: highest sequence number that receivers may see.
        leaving_count, leaving_bytes: messages that have left for another store and have not arrived there.
        taken_total, delivered_total, settled_total, expired_total: messages since the object was made: taken from
            senders, handed to receivers, completed (or deleted at delivery), ended by their time to live.
        refused_total: deliveries that were refused; counted by the broker, which knows what one delivery was.
    """

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
        self._context = context
        self._staging = context.staging
        self._status = EntityStatus.ACTIVE
        self._quota_bytes = 0
        # Of messages that are still coming; in memory only, since what has not come whole does not survive.
        self._coming_bytes = 0
        self._heads = HeadCache(0)
        self._keys = KeyReader()
        self._detection: Detection | None = None
        # Of copies' duplicate keys, which every entity keeps once such copies come.
        self._duplicate_keys: KeyDetection | None = None
        self._load(state)

    @property
    def context(self) -> Context:
        """What it shares with the other entities in its store."""
        return self._context

    def _load(self, state: bytes | None) -> None:
        self.last: int
        self.head: int
        self.active_count: int
        self.size_bytes: int
        self.accessed_at_ms: int
        self._mark: int  # what else the kind of entity has to remember
        (
            self.last,
            self.head,
            self._cleaned,
            self.active_count,
            self.deferred_count,
            self.scheduled_count,
            self.size_bytes,
            self.accessed_at_ms,
            self._mark,
            flags,
        ) = _STATE.unpack(state) if state else (0, 1, 1, 0, 0, 0, 0, 0, 0, 0)
        self._may_expire = bool(flags & 1)
        self.committed = self.last
        self.leaving_count, self.leaving_bytes = self._context.leaving.get(self.number, (0, 0))

    def stage_state(self, batch: Batch) -> None:
        """See `staging.Member`."""
        if not self.is_deleted:
            batch.put(
                state_key(self.number),
                _STATE.pack(
                    self.last,
                    self.head,
                    self._cleaned,
                    self.active_count,
                    self.deferred_count,
                    self.scheduled_count,
                    self.size_bytes,
                    self.accessed_at_ms,
                    self._mark,
                    1 if self._may_expire else 0,
                ),
            )

    def seal(self) -> Any:
        """See `staging.Member`."""
        return self.last

    def publish(self, sealed: Any) -> None:
        """See `staging.Member`."""
        self.committed = max(self.committed, sealed)

    def reload(self, state: bytes | None) -> None:
        """Go back to what the store holds, after a failed commit."""
        self._load(state)
        self._detection = self._duplicate_keys = None

    # ---- settings

    def _configure(
        self,
        *,
        status: EntityStatus,
        default_ttl_ms: int,
        quota_megabytes: int = 0,
        max_message_size_bytes: int | None = None,
        duplicate_window_ms: int = 0,
    ) -> None:
        self._status = status
        self._heads = HeadCache(0 if default_ttl_ms >= INFINITE_MS else default_ttl_ms)
        self._quota_bytes = quota_megabytes << 20
        self.max_message_size_bytes = max_message_size_bytes or self._context.limits.max_message_size_bytes
        if duplicate_window_ms and self._detection is None:
            self._detection = Detection(self.number, duplicate_window_ms, self._staging)
        elif duplicate_window_ms and self._detection is not None and self._detection.window_ms != duplicate_window_ms:
            self._detection.change(duplicate_window_ms)

    def stored_bytes(self) -> int:
        """What counts towards the quota: messages as their senders wrote them, without what the broker adds to each."""
        count: int = self.active_count + self.deferred_count + self.scheduled_count
        return self.held_bytes - count * OVERHEAD_BYTES + self.leaving_bytes

    @property
    def takes_bodies(self) -> bool:
        """Whether messages whose bodies lie outside of the store can be kept here."""
        return self._context.blobs.files is not None

    @property
    def held_bytes(self) -> int:
        """Of all records, and of the bodies that they refer to."""
        return self.size_bytes + self._context.blobs.stored_bytes(self.number)

    @property
    def _quota_number(self) -> int:
        """Of the entity whose quota bodies of large messages count to."""
        return self.number

    # ---- taking messages

    def accept(
        self, payloads: Sequence[Payload], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Take messages as one atomic unit, in order. Exactly one of the callbacks comes, from the engine's
        ``end_commit`` or ``fail_commit`` (or from ``begin_commit`` if the store refuses the write).

        A message with ``x-opt-scheduled-enqueue-time`` in the future is scheduled.

        Raises (nothing is then staged): InvalidMessageError, MessageTooLargeError, QuotaExceededError,
            EntityDisabledError, SessionRequiredError, EntityNotFoundError.
        """
        messages = self.examine(payloads)
        with self._staging.whole():
            self.enter(messages, self._context.clock.wall_ms())
        self._staging.promise(on_durable, on_failed)

    def enter(self, messages: Sequence[Parts], now_ms: int) -> None:
        """Stage messages that `examine` has passed."""
        accepted = [parts for parts in self._fresh(messages, now_ms) if parts is not None]
        self.accessed_at_ms = now_ms
        self.taken_total += len(messages)
        self._staging.touch(self)
        later = [(parts, parts.head.due_ms) for parts in accepted if parts.head.due_ms > now_ms]
        if later:
            accepted = [parts for parts in accepted if parts.head.due_ms <= now_ms]
            self._schedule(later, now_ms)
        if accepted:
            self._take(accepted, now_ms)

    def schedule(
        self,
        messages: Sequence[tuple[bytes, int]],
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[int]:
        """Take (payload, due wall ms) pairs; their sequence numbers while scheduled. Errors as `accept`."""
        now_ms = self._context.clock.wall_ms()
        examined = self.examine([payload for payload, _ in messages])
        with self._staging.whole():
            accepted = self._fresh(examined, now_ms)
            self.accessed_at_ms = now_ms
            self.taken_total += len(messages)
            self._staging.touch(self)
            sequences = self._schedule(
                [(parts, due_ms) for parts, (_, due_ms) in zip(accepted, messages, strict=True)], now_ms
            )
        self._staging.promise(on_durable, on_failed)
        return sequences

    def _take(
        self, accepted: Sequence[Parts], now_ms: int, origins: Sequence[int] | None = None, hops: int = 0
    ) -> None:
        """Stage messages as active; `origins` and `hops` as for `accept_moved`."""
        raise NotImplementedError

    def _capped(self, messages: Sequence[Parts]) -> Sequence[Parts]:
        """Messages from elsewhere with this entity's default time to live applied."""
        capped = self._heads.capped
        return [parts._replace(head=capped(parts.head)) for parts in messages]

    # ---- messages that another entity forwards

    @property
    def takes_sends(self) -> bool:
        """Whether the entity stands and its status lets messages in."""
        return not self.is_deleted and self._status not in (EntityStatus.DISABLED, EntityStatus.SEND_DISABLED)

    def refusal_of(self, messages: Sequence[Parts]) -> IsthmusError | None:
        """Why these messages, forwarded together, would not be taken; None if they would."""
        if not self.takes_sends:
            return EntityNotFoundError(self.path) if self.is_deleted else EntityDisabledError(self.path, self._status)
        sizes = list(map(size_of, messages))
        if max(sizes) > self.max_message_size_bytes:
            return MessageTooLargeError(max(sizes), self.max_message_size_bytes)
        if not self.takes_bodies:
            largest = max((size for size, parts in zip(sizes, messages, strict=True) if parts.blob), default=0)
            if largest:
                return MessageTooLargeError(largest, _INLINE_BYTES)
        if self.requires_session:
            try:
                self._check_sessions(messages)
            except IsthmusError as error:
                return error
        return self._full(sum(sizes), midway=True)

    def accept_moved(self, messages: Sequence[Parts], origins: Sequence[int], now_ms: int, hops: int) -> None:
        """Take messages that another entity forwards, in its batch; `refusal_of` was asked. Duplicates are dropped.

        Args:
            messages: in order.
            origins: per message the sequence number where it first entered.
            now_ms: enqueued time.
            hops: how often they were forwarded, this time included.
        """
        messages = self._capped(messages)
        self.accessed_at_ms = now_ms
        detection = self._detection
        if detection is not None:
            ids = [message_id_of(parts) for parts in messages]
            if self.is_fragment:
                named = zip(messages, ids, strict=True)
                ids = [detection_id(parts._replace(message_id=message_id)) for parts, message_id in named]
            flags = detection.fresh(ids, now_ms)
            detection.remember([one for one, is_new in zip(ids, flags, strict=True) if is_new], now_ms)
            messages = [parts for parts, is_new in zip(messages, flags, strict=True) if is_new]
            origins = [origin for origin, is_new in zip(origins, flags, strict=True) if is_new]
        self._staging.touch(self)
        if messages:
            self._take(messages, now_ms, origins, hops)

    def _check_open(self) -> None:
        if self.is_deleted:
            raise EntityNotFoundError(self.path)

    def hold_room(self, size_bytes: int) -> None:
        """Count bytes of a message that is still coming to the quota.

        Raises:
            QuotaExceededError: they do not fit; nothing is counted.
            EntityNotFoundError, EntityDisabledError: no message is taken.
        """
        self.check_sendable()
        self._check_quota(size_bytes)
        self._coming_bytes += size_bytes

    def give_back_room(self, size_bytes: int) -> None:
        """The message is whole and about to be taken, or does not come."""
        self._coming_bytes -= size_bytes

    def _full(self, size_bytes: int, *, midway: bool = False) -> QuotaExceededError | None:
        """The refusal, if so many bytes more do not fit.

        Args:
            size_bytes: more.
            midway: whether something may be staged without its other half, which must not be written now.
        """
        wanted_bytes = self._coming_bytes + size_bytes
        if not self._quota_bytes or self.stored_bytes() + wanted_bytes <= self._quota_bytes:
            return None
        if (
            self._context.blobs.release_dead(written=not midway)
            and self.stored_bytes() + wanted_bytes <= self._quota_bytes
        ):
            return None
        return QuotaExceededError(
            f"The maximum entity size has been reached or exceeded for {type(self).__name__}: '{self.path}'. Size of "
            f"entity in bytes:{self.stored_bytes()}, Max entity size in bytes:{self._quota_bytes}. Receive messages or "
            "raise MaxSizeInMegabytes."
        )

    def check_sendable(self) -> None:
        """Refuse where no message would be taken, whatever it is.

        Raises:
            EntityNotFoundError: the entity was deleted.
            EntityDisabledError: its status forbids sending.
        """
        self._check_open()
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
        self._check_quota(sum(sizes))
        largest = max(sizes)
        if largest > _SMALL_BYTES:
            accepted = split_mixed(payloads, self._heads)
        elif packed is not None:
            accepted = split_packed(packed.data, packed.bounds, self._heads, self._keys if packed.are_copies else None)
        else:
            accepted = split_many(payloads, self._heads)  # type: ignore[arg-type]  # none is large
        if largest > self._context.limits.max_property_bytes:
            for parts in accepted:
                self._check_properties(parts)
        limit = self._context.limits.max_message_id_characters
        without: list[int] = []
        for place, parts in enumerate(accepted):
            if len(parts.message_id) > limit:
                length = len(str(codec.decode(parts.message_id)[0]))
                if length > limit:
                    raise InvalidMessageError(f"the MessageId has {length} characters; the limit is {limit}")
            elif not parts.message_id:
                without.append(place)
        if without:
            made = self._context.random_bytes(_ID_BYTES * len(without)).hex()
            for number, place in enumerate(without):
                start = 2 * _ID_BYTES * number
                accepted[place] = with_message_id(accepted[place], made[start : start + 2 * _ID_BYTES])
        if largest > _SMALL_BYTES or (packed is None and Copy in set(map(type, payloads))):
            accepted = self._keyed(accepted, list(map(is_copy, payloads)))
        if self.requires_session:
            self._check_sessions(accepted)
        return accepted

    def _keyed(self, messages: list[Parts], copied: list[bool]) -> list[Parts]:
        """The messages, those that are routes' copies with their keys."""
        if all(copied):
            return self._keys.with_keys(messages)
        keyed = iter(
            self._keys.with_keys([parts for parts, is_keyed in zip(messages, copied, strict=True) if is_keyed])
        )
        return [next(keyed) if is_keyed else parts for parts, is_keyed in zip(messages, copied, strict=True)]

    def _fresh(self, messages: Sequence[Parts], now_ms: int) -> Sequence[Parts | None]:
        """The messages, with None for each duplicate; stages the ids and keys for detection.

        A copy with a duplicate key is compared by that alone, whatever the entity does with message ids.
        """
        keyed = [parts for parts in messages if parts.duplicate_key]
        if not keyed:
            return self._without(messages, self._equal_ids(messages, now_ms))
        if self._duplicate_keys is None:
            window_ms = self._context.limits.duplicate_key_window_ms
            self._duplicate_keys = KeyDetection(self.number, window_ms, self._staging)
        repeated = self._duplicate_keys.repeated([parts.duplicate_key for parts in keyed], now_ms)
        if len(keyed) == len(messages):
            return self._without(messages, repeated)
        equal = self._equal_ids([parts for parts in messages if not parts.duplicate_key], now_ms)
        by_key, by_id = iter(repeated or [False] * len(messages)), iter(equal or [False] * len(messages))
        return self._without(messages, [next(by_key if parts.duplicate_key else by_id) for parts in messages])

    def _equal_ids(self, messages: Sequence[Parts], now_ms: int) -> list[bool]:
        """As `_repeated`, by message id; where the entity compares these."""
        if self._detection is None:
            return []
        ids = [detection_id(parts) if self.is_fragment else parts.message_id for parts in messages]
        return _repeated(self._detection, ids, now_ms)

    @staticmethod
    def _without(messages: Sequence[Parts], dropped: Sequence[bool]) -> Sequence[Parts | None]:
        if not any(dropped):
            return messages
        return [None if is_dropped else parts for parts, is_dropped in zip(messages, dropped, strict=True)]

    def pass_numbers(self, count: int) -> range:
        """Give numbers to messages that are not stored here, since they go on at once."""
        numbers = range(self.last + 1, self.last + 1 + count)
        self.last = numbers[-1]
        self._staging.touch(self)
        return numbers

    def _check_quota(self, added_bytes: int) -> None:
        full = self._full(added_bytes)
        if full is not None:
            raise full

    def _check_sessions(self, messages: Sequence[Parts]) -> None:
        """Refuse messages without a session.

        Raises:
            SessionRequiredError: one names none.
            InvalidMessageError: one names something that is no session id.
        """
        raise NotImplementedError

    def _check_properties(self, parts: Parts) -> None:
        """Refuse application properties over the limits; only a message larger than one may be needs the look."""
        limits = self._context.limits
        start, end = section.locate(parts.rest).application_properties
        if end - start > limits.max_properties_bytes:
            raise InvalidMessageError(
                f"the application properties have {end - start} bytes; the limit is {limits.max_properties_bytes}"
            )
        if end - start > limits.max_property_bytes:
            for key, value, after in section.map_items(parts.rest, (start, end)):
                if after - key > limits.max_property_bytes:
                    name = str(codec.decode(parts.rest, key)[0]) if value - key < 300 else "..."
                    raise InvalidMessageError(
                        f"the application property '{name}' has {after - key} bytes; the limit is "
                        f"{limits.max_property_bytes}"
                    )

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
        accepted = self._fresh([parts for _, parts, _ in messages], now_ms)
        self.accessed_at_ms = now_ms
        self.taken_total += len(messages)
        for parts, (sequence, _, due_ms) in zip(accepted, messages, strict=True):
            if parts is not None:
                self._put_scheduled(sequence, parts, due_ms, now_ms)
        self._staging.touch(self)

    def _schedule(self, messages: Sequence[tuple[Parts | None, int]], now_ms: int) -> list[int]:
        """Stage scheduled messages; their numbers. A dropped duplicate (None) has one too, under which nothing is."""
        sequences = []
        for parts, due_ms in messages:
            self.last += 1
            sequences.append(self.last)
            if parts is not None:
                self._put_scheduled(self.last, parts, due_ms, now_ms)
        self._staging.touch(self)
        return sequences

    def _put_scheduled(self, sequence: int, parts: Parts, due_ms: int, now_ms: int) -> None:
        due_ms = min(max(due_ms, 0), _LATEST_MS)
        self.scheduled_count += 1
        scheduled = with_annotation(parts, "x-opt-scheduled-enqueue-time", Timestamp(due_ms))
        record = build(scheduled, sequence, now_ms, 0)
        self.size_bytes += len(record)
        self._staging.batch.put(message_key(SCHEDULED, self.number, sequence), record)
        if parts.blob is not None:
            self._context.blobs.refer(self.number, sequence, parts.blob, self._quota_number)
        self._context.calendar.schedule(due_ms, self.number, sequence)

    def cancel_scheduled(
        self, sequences: Sequence[int], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Drop scheduled messages.

        Raises:
            MessageNotFoundError: one of them is not scheduled; none is dropped then.
        """
        self._check_open()
        records = self._scheduled_records(sequences)
        missing = [sequence for sequence in sequences if sequence not in records]
        if missing:
            raise MessageNotFoundError(f"'{self.path}' has no scheduled message with sequence number {missing[0]}")
        for sequence, record in records.items():
            self._unschedule(sequence, record, _due_ms(record))
        self._staging.touch(self)
        self._staging.promise(on_durable, on_failed)

    def missing_scheduled(self, sequences: Sequence[int]) -> list[int]:
        """Which of the sequence numbers are none of scheduled messages."""
        self._check_open()
        records = self._scheduled_records(sequences)
        return [sequence for sequence in sequences if sequence not in records]

    def activate(self, due: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Take scheduled messages whose time has come, given as (due ms, sequence number)."""
        records = self._scheduled_records([sequence for _, sequence in due])
        taken = []
        for due_ms, sequence in due:
            record = records.get(sequence)
            if record is None:
                self._context.calendar.unschedule(due_ms, self.number, sequence)
                continue
            self._unschedule(sequence, record, due_ms)
            taken.append(take_apart(record).parts)
        if taken:
            self._staging.touch(self)
            # A default of more than 49 days is named by no header, and so by no scheduled message.
            self._take(self._capped(taken), now_ms)

    def _scheduled_records(self, sequences: Sequence[int]) -> dict[int, bytes]:
        self._staging.write()
        keys = [message_key(SCHEDULED, self.number, max(0, sequence)) for sequence in sequences]
        found = zip(sequences, self._staging.journal.get_many(keys), strict=True)
        return {sequence: record for sequence, record in found if record is not None}

    def _unschedule(self, sequence: int, record: bytes, due_ms: int) -> None:
        self._staging.batch.delete(message_key(SCHEDULED, self.number, sequence))
        self._context.calendar.unschedule(due_ms, self.number, sequence)
        self.scheduled_count -= 1
        self.size_bytes -= len(record)

    # ---- looking

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """Messages of every state from a sequence number on, in order, without locking."""
        self._check_open()
        self.accessed_at_ms = self._context.clock.wall_ms()
        self._staging.write()
        return self._shown(self._look(from_sequence, count))

    def _shown(self, seen: Sequence[Seen]) -> list[Payload]:
        return self._kept([plain_payload(record, state) for _, record, state in seen])

    def _kept(self, payloads: list[Payload]) -> list[Payload]:
        """Payloads about to leave, whose bodies stay until they have left, whatever becomes of their messages."""
        if self._context.blobs.is_used:
            self._context.blobs.pin(payloads)
        return payloads

    def _look(self, from_sequence: int, count: int) -> list[Seen]:
        """Messages of every state, in order, as the store has them."""
        found: list[Seen] = []
        for table, state in self._tables():
            first = max(from_sequence, self.head if table == MESSAGE else 0, 0)
            if first > self.committed:
                continue
            span = message_span(table, self.number, first, self.committed)
            size = 0
            for place, (key, record) in enumerate(self._staging.journal.scan(*span)):
                if place == count or size >= LOOK_BYTES:
                    break
                size += len(record)
                found.append((int.from_bytes(key[5:], "big"), record, state))
        return first_seen(found, count)

    def _tables(self) -> list[tuple[int, int]]:
        """(table, state as messages tell it) of those that hold messages."""
        return [(SCHEDULED, 2)] if self.scheduled_count else []

    def wipe(self) -> None:
        """Stage the removal of everything the entity has in the store, and end it."""
        batch = self._staging.batch
        for table in (MESSAGE, DEFERRED, SCHEDULED, UNREADABLE, DETECTION, DUPLICATE_KEY, SOURCE_MARK, KEY_RUN, ERAS):
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
            "size_bytes": self.held_bytes,
            "last_sequence": self.last,
        }


def _repeated(detection: Detection, ids: Sequence[bytes], now_ms: int) -> list[bool]:
    """Per id whether it was seen before; empty where none was. Stages those that were not."""
    flags = detection.fresh(ids, now_ms)
    fresh = [one for one, is_new in zip(ids, flags, strict=True) if is_new]
    if fresh:
        detection.remember(fresh, now_ms)
    return [] if len(fresh) == len(ids) else [not is_new for is_new in flags]


def first_seen(seen: list[Seen], count: int) -> list[Seen]:
    """The first messages of those seen, sorted; as many as one look shows, at least one.

    Looks that were cut off at the same size each have all that comes before.
    """
    seen.sort(key=lambda entry: entry[0])
    size = 0
    for place, (_, record, _) in enumerate(seen):
        if place == count or size >= LOOK_BYTES:
            return seen[:place]
        size += len(record)
    return seen


def _due_ms(record: bytes) -> int:
    """For when a stored scheduled message is due: the annotation that `Intake._schedule` sets comes last."""
    parts = take_apart(record).parts
    return int.from_bytes(parts.head.annotations[-8:], "big")
