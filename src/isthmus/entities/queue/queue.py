"""A queue: also the class of subscriptions and dead-letter queues.

What it is: messages in their order (`backlog`), each given to one receiver at a time, from delivery (`delivery`) until
settlement (`settlement`) or expiry (`expiry`); forwarding (`relay`). It is the interface to all of
these. What it is not: the acceptance of messages (`Intake`, `Topic`), or the syncing of the disk.
Spec: docs/explanation/protocol.md, Settlement, Message, Forwarding.

Invariants:
    I1. A message taken from the backlog is locked, returning, deferred, dead-lettered, or removed.
    I2. Listeners are called for visible messages when the commit ends, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from isthmus.entities.catalog.description import INFINITE_MS, EntityStatus
from isthmus.entities.member.context import Context
from isthmus.entities.member.listener import call_all
from isthmus.entities.port import MessageSource
from isthmus.entities.queue import dead_letter, delivery, expiry, settlement
from isthmus.entities.queue.backlog import Backlog
from isthmus.entities.queue.deferred import DeferredMessages
from isthmus.entities.queue.intake import Intake
from isthmus.entities.queue.lock import Acquired, LockTable
from isthmus.entities.queue.relay import Relay, forward
from isthmus.entities.record.amend import Stored
from isthmus.entities.record.copy import is_copy
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import DEFERRED, MESSAGE
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import EntityDisabledError, IsthmusError, NotAllowedError

__all__ = ["Queue"]


class Queue(Intake):
    """Messages in sequence order, each for one receiver.

    Attributes:
        path: canonical, e.g. ``orders``, ``flights/Subscriptions/audit``, each also with ``/$DeadLetterQueue``.
        backlog: its active messages.
        locks: of the messages that receivers have.
        deferred: its deferred messages.
        dead_letters: the queue's dead-letter queue; None for a dead-letter queue.
        transfer_dead_letters: messages whose target was deleted; None while there were none.
        relay: the forwarding of its messages; None where they stay.
        lock_duration_ms: of its messages.
        max_delivery_count: deliveries after which a message is dead-lettered.
        dead_letters_expired: whether expired messages are dead-lettered.
        session_until_ms: see `delivery.DeliveringQueue`.
    """

    _BACKLOG: ClassVar[type[Backlog]] = Backlog

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self.dead_letters: Queue | None = None
        self.transfer_dead_letters: Queue | None = None
        self.relay: Relay | None = None
        self.lock_duration_ms = 60_000
        self.max_delivery_count = 10
        self.dead_letters_expired = False
        self.session_until_ms = 0
        self.backlog = self._BACKLOG(self)
        self.locks = LockTable()
        self.deferred = DeferredMessages(path, number, context.staging)
        self._fixed_ttl_ms = 0

    def reload(self, state: bytes | None) -> None:
        """Go back to the state of the store: as after a restart, all locks are lost, and nothing is taken."""
        super().reload(state)
        self.backlog.reload(self)
        if self.relay is not None:
            self.relay.reset()
        self.locks.clear()
        self.deferred.unlock_all()

    def wipe(self) -> None:
        self.locks.clear()
        self.deferred.unlock_all()
        forward(self, None)
        super().wipe()
        self.backlog.wipe(self)
        self.notify()

    def configure(
        self,
        *,
        default_ttl_ms: int,
        lock_duration_ms: int = 60_000,
        max_delivery_count: int = 10,
        dead_letters_expired: bool = False,
        requires_session: bool = False,
        **settings: Any,
    ) -> None:
        """Take the settings of a description, those of `Intake.configure` included."""
        super().configure(default_ttl_ms=default_ttl_ms, **settings)
        self._fixed_ttl_ms = 0 if default_ttl_ms >= INFINITE_MS else default_ttl_ms
        self.lock_duration_ms = lock_duration_ms
        self.max_delivery_count = max_delivery_count
        self.dead_letters_expired = dead_letters_expired
        self.requires_session = requires_session

    # ---- answers to callers, see `isthmus.entities.port`

    @property
    def source(self) -> MessageSource | None:
        """Itself: it gives messages."""
        return self

    @property
    def takes_senders(self) -> bool:
        """Whether senders may attach: not to a dead-letter queue."""
        return self.dead_letters is not None

    def parts(self) -> list[Intake]:
        return [self] if self.dead_letters is None else [self, self.dead_letters]

    # ---- taking messages

    def stored_bytes(self) -> int:
        return super().stored_bytes() + (self.dead_letters.stored_bytes() if self.dead_letters else 0)

    def examine(self, payloads: Sequence[Payload]) -> list[Parts]:
        # A dead-letter queue takes only messages that are put back into it: copies, on a link with `RESTORES`.
        if self.dead_letters is None and not all(map(is_copy, payloads)):
            raise NotAllowedError(f"'{self.path}' takes no sends; dead-letter a message of its entity instead.")
        return super().examine(payloads)

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
        """As `Backlog.store`, or forwarded; `fed`: they come from a topic, so that this entity's default time to live
        is applied here.
        """
        # Messages that are put back into a dead-letter queue are forwarded from there: those that the target refuses have to stay.
        passes = self.relay is not None and not self.keeps_dead_letters and self.relay.passes
        if fed and (self._fixed_ttl_ms or passes):
            messages = self._examination.capped(messages)
        if self.relay is not None and passes:
            self.relay.pass_on(messages, now_ms, origins, hops)
        else:
            self.backlog.store(self, messages, now_ms, origins, hops)

    def pass_numbers(self, count: int) -> range:
        numbers = super().pass_numbers(count)
        self.backlog.pass_over(numbers)
        return numbers

    # ---- forwarding, and dead letters

    def forward_parts(self, path: str | None, forward: Callable[[Queue, Any], None]) -> None:
        """Call `forward` with each part that forwards to a path by itself, and its store: here with itself."""
        del path
        forward(self, None)

    @property
    def transfer_count(self) -> int:
        """Active messages that wait to be forwarded; waiting dead letters count as dead letters."""
        waiting = self.active_count if self.relay is not None and self.dead_letters is not None else 0
        return waiting + self.leaving_count

    @property
    def gives_messages(self) -> bool:
        """Whether its status lets receivers have messages."""
        return self._status not in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED)

    @property
    def keeps_dead_letters(self) -> bool:
        """Whether it is a dead-letter queue."""
        return self.dead_letters is None

    def take_back(self, stored: Stored, error: IsthmusError) -> None:
        dead_letter.take_back(self, stored, error)

    # ---- receiving

    @property
    def has_available(self) -> bool:
        """Whether `acquire` would find something (expired messages may make it find nothing all the same)."""
        return self.backlog.has_available(self)

    def check_receivable(self) -> None:
        """Refuse if no message would be given.

        Raises:
            EntityNotFoundError: the entity was deleted.
            EntityDisabledError: its status forbids receiving.
        """
        self.check_open()
        if self._status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED):
            raise EntityDisabledError(self.path, self._status)

    def check_stays(self) -> None:
        """Refuse receivers of an entity that forwards.

        Raises:
            NotAllowedError: the entity forwards.
        """
        if self.relay is not None:
            raise NotAllowedError(
                f"Cannot create a message receiver on an entity with auto-forwarding enabled: '{self.path}' forwards to "
                f"'{self.relay.onward.path}'."
            )

    def acquire(
        self,
        limit: int,
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired | None:
        """As `delivery.acquire`; errors as `check_receivable` and `check_stays`."""
        self.check_receivable()
        self.check_stays()
        return delivery.acquire(self, limit, on_durable, on_failed, lock=lock)

    delete_locked = delivery.delete_locked

    def receive_deferred(
        self,
        sequences: Sequence[int],
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired:
        """As `delivery.receive_deferred`; errors also as `check_receivable`."""
        self.check_receivable()
        return delivery.receive_deferred(self, sequences, lock=lock, on_durable=on_durable, on_failed=on_failed)

    def delete_batch(
        self,
        limit: int,
        before_ms: int | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> int:
        """As `delivery.delete_batch`; errors as `check_receivable`."""
        self.check_receivable()
        return delivery.delete_batch(self, limit, before_ms, on_durable, on_failed)

    # ---- settling

    def complete(
        self, tokens: Sequence[bytes], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> list[bool]:
        """As `settlement.complete`, as are the other settlements, of an entity that was not deleted."""
        self.check_open()
        return settlement.complete(self, tokens, on_durable, on_failed)

    def abandon(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """As `settlement.abandon`."""
        self.check_open()
        return settlement.abandon(self, tokens, properties, on_durable, on_failed)

    def release(self, tokens: Sequence[bytes]) -> list[bool]:
        """As `settlement.release`."""
        self.check_open()
        return settlement.release(self, tokens)

    def defer(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """As `settlement.defer`."""
        self.check_open()
        return settlement.defer(self, tokens, properties, on_durable, on_failed)

    def dead_letter(
        self,
        tokens: Sequence[bytes],
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """As `settlement.dead_letter`.

        Raises:
            NotAllowedError: this is a dead-letter queue.
        """
        self.check_open()
        if self.dead_letters is None:
            raise NotAllowedError(f"'{self.path}' has no dead-letter queue of its own; complete the message instead.")
        return settlement.dead_letter(self, tokens, reason, description, properties, on_durable, on_failed)

    def holds(self, tokens: Sequence[bytes]) -> list[bool]:
        """Per token whether it locks its message now; none does where the entity or session has ended."""
        try:
            self.check_open()
        except IsthmusError:
            return [False] * len(tokens)
        return self.locks.holds(tokens)

    def renew(self, tokens: Sequence[bytes]) -> list[int | None]:
        """As `settlement.renew`."""
        self.check_open()
        return settlement.renew(self, tokens)

    # ---- time

    def expire_locks(self, now_ms: int) -> int | None:
        """End locks that are due; returns monotonic ms of the next check, None if nothing is locked."""
        return settlement.expire_locks(self, now_ms)

    def expire_messages(self, first: int, last: int, now_ms: int, limit: int) -> tuple[int, int] | None:
        return expiry.expire_messages(self, first, last, now_ms, limit)

    # ---- group commit

    def stage_state(self, batch: Batch) -> None:
        if not self.is_deleted:
            self.backlog.stage(self, batch)
            super().stage_state(batch)

    def seal(self) -> tuple[int, list[tuple[int, int]]]:
        return self.last, self.backlog.seal()

    def publish(self, sealed: Any) -> None:
        last, returning = sealed
        is_news = self.backlog.publish(returning) or last > self.committed
        super().publish(last)
        if is_news and self.has_available:
            self.notify()

    def release_store(self) -> None:
        self.backlog.window.close()

    def housekeep(self) -> None:
        self.backlog.housekeep(self)

    # ---- listeners

    def add_listener(self, listener: Callback) -> None:
        """Call `listener` (from ``end_commit``, ``release``, ``tick``) whenever something became available, and when
        the entity was deleted or its status changed.
        """
        self.backlog.listeners.append(listener)

    def remove_listener(self, listener: Callback) -> None:
        """Undo `add_listener`; no error if unknown. Waiting counts as use of the entity until now."""
        if listener in self.backlog.listeners:
            self.backlog.listeners.remove(listener)
            self.accessed_at_ms = self.context.clock.wall_ms()

    @property
    def has_listeners(self) -> bool:
        """Whether receivers wait for messages; forwarding does not count."""
        return len(self.backlog.listeners) > (self.relay is not None)

    def notify(self) -> None:
        """Call the listeners; errors as `call_all`."""
        call_all(tuple(self.backlog.listeners))

    # ---- peeking

    def _tables(self) -> list[tuple[int, int]]:
        return [(MESSAGE, 0), *([(DEFERRED, 1)] if self.deferred_count else []), *super()._tables()]

    @property
    def has_large(self) -> bool:
        """Whether some message may be large: receivers then get one at a time."""
        blobs = self.context.blobs
        return blobs.is_used and blobs.has_bodies(self.number)

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        return self.locks.locked

    def statistics(self) -> dict[str, int]:
        listener_count = len(self.backlog.listeners)
        return {**super().statistics(), "locked_count": self.locks.locked, "listener_count": listener_count}
