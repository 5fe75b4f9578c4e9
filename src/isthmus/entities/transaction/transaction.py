"""One transaction: sends, settlements and schedules that take effect together, or not at all.

What it is: a list of operations, kept in memory until it is committed, and the commit itself: everything is
checked, then staged in one batch of the store. What it is not: the check of rights, and its name on the wire (the broker's).
Spec: docs/explanation/protocol.md, Transactions; docs/explanation/transactions.md.

Invariants:
    I1. Before `commit` nothing is staged: a roll-back, and a kill, leave the entities as they were. Messages settled in
        the transaction stay locked. The numbers of messages to be scheduled are reserved, and nothing is stored under them.
    I2. `commit` stages all or raises and stages nothing; what it stages is one batch, which the store writes whole.
    I3. A transaction ends once; everything after that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from enum import Enum
from typing import NamedTuple

from isthmus.entities.catalog.catalog import parse_address
from isthmus.entities.error import TransactionRolledBackError, TransactionTimeoutError
from isthmus.entities.fragment.message_key import fragment_of
from isthmus.entities.member.context import Context
from isthmus.entities.port import Entity, MessageSource, MessageTarget
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.entities.transaction.participant import LockHolder, Participant, ScheduleParticipant, StoredEntity
from isthmus.errors import (
    IsthmusError,
    LockLostError,
    MessageNotFoundError,
    NotAllowedError,
    QuotaExceededError,
)

__all__ = ["Ending", "Transaction"]

_log = logging.getLogger(__name__)


class Ending(Enum):
    """The outcome of a transaction."""

    COMMITTED = "committed"
    """Everything took effect and is durable."""
    ROLLED_BACK = "rolled back"
    """Nothing took effect; messages settled in it are locked as before."""
    FAILED = "failed"
    """The disk failed: all or nothing took effect, and the locks are lost."""


Settle = Callable[[Sequence[bytes]], object]
OnEnd = Callable[[Ending], None]


class _Send(NamedTuple):
    destination: Participant
    messages: list[Parts]


class _Settlement(NamedTuple):
    queue: LockHolder
    tokens: Sequence[bytes]
    settle: Settle
    on_end: OnEnd


class _Scheduling(NamedTuple):
    destination: ScheduleParticipant
    messages: list[tuple[int, Parts, int]]


class _Cancellation(NamedTuple):
    destination: ScheduleParticipant
    sequences: list[int]


_Operation = _Send | _Settlement | _Scheduling | _Cancellation


class Transaction:
    """One transaction, from its declaration to its discharge.

    Args:
        context: of the namespace's entities.

    Attributes:
        deadline: monotonic seconds; after it, it can only be rolled back.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._operations: list[_Operation] = []
        self._entity: str | None = None
        # Index of the fragment of a partitioned entity, whose store is then the transaction's.
        self._fragment: int | None = None
        self._count = 0
        self._message_bytes = 0
        self._tokens: set[bytes] = set()
        self._cancelled: set[int] = set()
        self._doom: Exception | None = None
        self._conditions: dict[Hashable, Callable[[], object]] = {}
        self._ended = False
        self.deadline = self._next_deadline()

    @property
    def entity(self) -> str | None:
        """Name of the entity that it is on; None before its first operation."""
        return self._entity if self._operations else None

    def _next_deadline(self) -> float:
        return self._context.clock.monotonic() + self._context.limits.transaction_timeout_ms / 1000

    def send(self, destination: MessageTarget, payloads: Sequence[Payload]) -> None:
        """Add messages as one unit, in order.

        Raises (nothing is then added): what ``accept`` of the destination raises, and as `settle`.
        """
        size_bytes = self._check_room(destination.path, payloads)
        destination.check_sendable()
        participant = destination.placed(payloads, self._fragment)
        self._check_fragment(participant.stored)
        messages = participant.examine(payloads)
        self._add(participant.path, len(payloads), _Send(participant, messages))
        self.add_condition(id(destination), destination.check_sendable)  # of the whole: its fragments outlast it
        self._message_bytes += size_bytes

    def schedule(
        self,
        destination: Entity,
        messages: Sequence[tuple[bytes, int]],
        on_durable: Callback,
        on_failed: Failure,
    ) -> list[int]:
        """Add (payload, due wall ms) pairs as one unit, to be scheduled.

        Returns:
            The numbers that they will have while scheduled. Return them in `on_durable`, which does not wait for the end
            of the transaction: from then on no other message gets them, even if it is rolled back.

        Raises (nothing is then added): as `send`.
        """
        payloads = [payload for payload, _ in messages]
        size_bytes = self._check_room(destination.path, payloads)
        destination.check_sendable()
        participant = destination.placed(payloads, self._fragment)
        self._check_fragment(participant.stored)
        examined = participant.examine(payloads)

        def failed(error: Exception) -> None:
            self.doom(error)  # the numbers may be assigned to another message
            on_failed(error)

        numbers = participant.reserve(len(examined), on_durable, failed)
        due = [due_ms for _, due_ms in messages]
        operation = _Scheduling(participant, list(zip(numbers, examined, due, strict=True)))
        self._add(participant.path, len(examined), operation)
        self.add_condition(id(destination), destination.check_sendable)
        self._message_bytes += size_bytes
        return numbers

    def cancel_scheduled(self, destination: Entity, sequences: Sequence[int]) -> None:
        """Add the cancellation of scheduled messages, which stay scheduled until the end; if they are due earlier, they are
        activated, and a commit fails.

        Raises (nothing is then added):
            MessageNotFoundError: one is not scheduled (one scheduled in this transaction is not yet), or cancelled in it already.
            InvalidArgumentError: they are in several fragments of a partitioned entity.
            IsthmusError: as `settle`.
        """
        sequences = list(dict.fromkeys(sequences))
        self._check(destination.path, len(sequences))
        holder = destination.scheduled_in(sequences)
        self._check_fragment(holder.stored)
        missing = [each for each in sequences if each in self._cancelled] or holder.missing_scheduled(sequences)
        if missing:
            raise MessageNotFoundError(f"'{holder.path}' has no scheduled message with sequence number {missing[0]}")
        self._cancelled.update(sequences)
        self._add(holder.path, len(sequences), _Cancellation(holder, sequences))

    def _check_room(self, path: str, payloads: Sequence[Payload]) -> int:
        """Refuse messages that the transaction cannot take; returns their bytes."""
        self._check(path, len(payloads))
        size_bytes = sum(map(len, payloads))
        limit = self._context.limits.max_transaction_bytes
        if self._message_bytes and self._message_bytes + size_bytes > limit:
            raise QuotaExceededError(f"The transaction's messages would be over {limit} bytes together.")
        return size_bytes

    def settle(self, queue: MessageSource, tokens: Sequence[bytes], settle: Settle, on_end: OnEnd) -> None:
        """Add the settlement of locked messages, which stay locked until the end.

        Args:
            queue: the entity.
            tokens: lock tokens.
            settle: does it; raises nothing while the entity exists.
            on_end: called at the end with the outcome; of a commit when that is durable.

        Raises (nothing is then added):
            LockLostError: a lock was lost, or its message is settled in this transaction already.
            NotAllowedError: another entity is in the transaction.
            QuotaExceededError: too many messages are.
            TransactionTimeoutError: it lasted too long.
        """
        self._check(queue.path, len(tokens))
        holder = queue.holder_of(tokens)
        self._check_fragment(holder.stored)
        if not self._tokens.isdisjoint(tokens) or not all(holder.holds(tokens)):
            raise LockLostError(
                "The lock supplied is invalid. Either the lock expired, or the message has already been removed."
            )
        self._tokens.update(tokens)
        self._add(holder.path, len(tokens), _Settlement(holder, tokens, settle, on_end))

    def _check_fragment(self, member: StoredEntity) -> None:
        """Refuse a fragment of a partitioned entity if another one is in the transaction.

        Raises:
            NotAllowedError: it is.
        """
        index = fragment_of(member.last)
        if member.is_fragment and self._fragment not in (None, index):
            raise NotAllowedError(
                f"The transaction is on partition {self._fragment} of '{member.path}', this belongs to partition {index}. "
                "All messages of a transaction on a partitioned entity have the same partition key or session."
            )

    def _join(self, member: StoredEntity) -> None:
        """Add a participant; if it is a fragment, its store is the transaction's from now on."""
        if member.is_fragment:
            self._fragment = fragment_of(member.last)
            self._context = member.context

    def doom(self, error: Exception) -> None:
        """Make it end in a roll-back: an operation failed whose sender waits for no answer."""
        self._doom = self._doom or error

    def add_condition(self, name: Hashable, check: Callable[[], object]) -> None:
        """Make `commit` refuse if a check raises IsthmusError then; one check for each name."""
        self._conditions.setdefault(name, check)

    def commit(self, on_durable: Callback | None = None, on_failed: Failure | None = None) -> None:
        """Do everything; exactly one of the callbacks is called, as for ``accept``.

        Raises:
            TransactionRolledBackError: an operation is impossible, with the reason; nothing was done then.
            StoreError: the store could not be read; everything staged has failed.
        """
        obstacle = self._obstacle()
        if obstacle is not None:
            self.rollback()
            raise TransactionRolledBackError(f"The transaction was rolled back: {obstacle}")
        now_ms = self._context.clock.wall_ms()
        operations = self._end()
        staging = self._context.staging

        def durable() -> None:
            _notify(operations, Ending.COMMITTED)
            if on_durable is not None:
                on_durable()

        def failed(error: Exception) -> None:
            _notify(operations, Ending.FAILED)
            if on_failed is not None:
                on_failed(error)

        try:
            with staging.atomic():
                for one in operations:
                    if isinstance(one, _Send):
                        one.destination.enter(one.messages, now_ms)
                    elif isinstance(one, _Scheduling):
                        one.destination.enter_scheduled(one.messages, now_ms)
                    elif isinstance(one, _Cancellation):
                        one.destination.cancel_scheduled(one.sequences)
                    else:
                        one.settle(one.tokens)
                staging.promise(durable, failed)
        except Exception:
            _notify(operations, Ending.FAILED)
            raise

    def rollback(self) -> None:
        """Discard all operations; no error if it has ended."""
        _notify(self._end(), Ending.ROLLED_BACK)

    def _end(self) -> list[_Operation]:
        self._ended = True
        operations, self._operations = self._operations, []
        return operations

    def _check(self, path: str, count: int) -> None:
        if self._ended:
            raise TransactionRolledBackError("The transaction has ended.")
        if self._context.clock.monotonic() >= self.deadline:
            raise TransactionTimeoutError(self._context.limits.transaction_timeout_ms)
        entity = parse_address(path).name
        if self._entity not in (None, entity):
            raise NotAllowedError(
                f"The transaction is on '{self._entity}'; '{path}' cannot take part. Send to other entities via that one."
            )
        limit = self._context.limits.max_transaction_messages
        if self._count + count > limit:
            raise QuotaExceededError(f"The transaction would have {self._count + count} messages; {limit} are allowed.")

    def _add(self, path: str, count: int, operation: _Operation) -> None:
        if not self._operations:
            self._entity = parse_address(path).name
            self.deadline = self._next_deadline()
        self._join((operation.queue if isinstance(operation, _Settlement) else operation.destination).stored)
        self._count += count
        self._operations.append(operation)

    def _obstacle(self) -> Exception | None:
        """Why the transaction cannot be committed."""
        if self._ended:
            return TransactionRolledBackError("it has ended")
        if self._doom is not None:
            return self._doom
        if self._context.clock.monotonic() >= self.deadline:
            return TransactionTimeoutError(self._context.limits.transaction_timeout_ms)
        try:
            for check in self._conditions.values():
                check()
        except IsthmusError as lack:
            return lack
        together: dict[Participant, list[Parts]] = {}
        for one in self._operations:
            if isinstance(one, _Send):
                together.setdefault(one.destination, []).extend(one.messages)
            elif isinstance(one, _Scheduling):
                together.setdefault(one.destination, []).extend(parts for _, parts, _ in one.messages)
            elif isinstance(one, _Cancellation):
                error = _uncancellable(one)
                if error is not None:
                    return error
            elif not all(one.queue.holds(one.tokens)):
                return LockLostError(f"a lock on a message of '{one.queue.path}' was lost")
        for destination, messages in together.items():
            error = destination.refusal_of(messages)
            if error is not None:
                return error
        return None


def _uncancellable(one: _Cancellation) -> IsthmusError | None:
    """Why scheduled messages cannot be cancelled any more."""
    try:
        missing = one.destination.missing_scheduled(one.sequences)
    except IsthmusError as error:  # the entity is deleted, or cannot be read
        return error
    if not missing:
        return None
    return MessageNotFoundError(f"message {missing[0]} of '{one.destination.path}' is not scheduled any more")


def _notify(operations: Sequence[_Operation], ending: Ending) -> None:
    """Call back the receivers that settled in a transaction with its outcome, each whatever another one raises."""
    for one in operations:
        if isinstance(one, _Settlement):
            try:
                one.on_end(ending)
            except Exception:  # noqa: BLE001 - a receiver's fault; the client that discharged waits for an answer
                _log.exception("a fault of a receiver's callback of the end of a transaction")
