"""A partitioned queue or subscription, and its dead-letter queue, as receivers see them.

What it is: receivers take messages from all fragments in rotation; settlements go to the fragment that the lock token names. What it is
not: the locks themselves, which each fragment has, or sessions (`session`).
Spec: docs/explanation/protocol.md, Entities, Settlement.

Invariants:
    I1. Messages of a fragment are delivered in its order; no fragment with messages is skipped twice in a row.
    I2. One call settles in one fragment, so that it takes effect as a whole or not at all.
    I3. A fragment whose store is down gives nothing and settles nothing; the others continue.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from isthmus.entities.catalog.description import EntityStatus
from isthmus.entities.catalog.limit import Limits
from isthmus.entities.fragment.entity import Partitioned
from isthmus.entities.fragment.message_key import fragment_of_token
from isthmus.entities.fragment.port import FragmentStore
from isthmus.entities.fragment.slot import Slot
from isthmus.entities.member.listener import call_all
from isthmus.entities.port import MessageSource, Sessions
from isthmus.entities.queue.lock import Acquired
from isthmus.entities.queue.queue import Queue
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import EntityDisabledError, InvalidArgumentError, NotAllowedError, StoreError

__all__ = ["TRANSFER", "PartitionedQueue", "PartitionedQueueBase"]

_Q = TypeVar("_Q", bound=Queue)
_DEAD_LETTER = "/$DeadLetterQueue"
TRANSFER = "/$Transfer/$DeadLetterQueue"


class PartitionedQueueBase(Partitioned[_Q]):
    """The common part of partitioned entities that give messages.

    Attributes:
        dead_letters: the dead-letter queue, in the same fragments; None for a dead-letter queue.
        lock_duration_ms: of messages and sessions.
        onward_path: of the entity to which messages are forwarded; None: they stay.
    """

    def __init__(
        self, path: str, number: int, stores: Sequence[FragmentStore], limits: Limits, *, is_dead: bool = False
    ) -> None:
        super().__init__(path, number, stores, limits)
        self.lock_duration_ms = 60_000
        self.dead_letters: PartitionedQueue | None = None
        self.transfer_dead_letters: PartitionedQueue | None
        self.onward_path: str | None = None
        self._listeners: list[Callback] = []
        self._next = 0
        if not is_dead:
            self.dead_letters = PartitionedQueue(path + _DEAD_LETTER, number + 1, stores, limits, is_dead=True)
            self.transfer_dead_letters = PartitionedQueue(path + TRANSFER, number + 2, stores, limits, is_dead=True)

    # ---- answers to callers, see `isthmus.entities.port`

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

    def forward_parts(self, path: str | None, forward: Callable[[Queue, Any], None]) -> None:
        """Call `forward` with each part that forwards to a path by itself, and its store: with each fragment."""
        self.onward_path = path
        for slot in self.slots:
            if slot.member is not None:
                forward(slot.member, slot.store)

    # ---- start and end

    def set_durable(self) -> None:
        super().set_durable()
        if self.dead_letters is not None:
            self.dead_letters.set_durable()

    def configure(self, **settings: Any) -> None:
        self.lock_duration_ms = settings["lock_duration_ms"]
        super().configure(**settings)

    def fill(self, slot: Slot[_Q], member: _Q) -> None:
        """Put a fragment into its slot; its dead-letter queue comes with it."""
        slot.member = member
        for listener in self._listeners:
            member.add_listener(listener)
        self.configure_slot(slot)
        if self.dead_letters is not None and member.dead_letters is not None:
            self.dead_letters.fill(self.dead_letters.slots[slot.index], member.dead_letters)

    # ---- receiving

    def check_receivable(self) -> None:
        """As `Queue.check_receivable`."""
        self._check_open()
        if self._status in (EntityStatus.DISABLED, EntityStatus.RECEIVE_DISABLED):
            raise EntityDisabledError(self.path, self._status)

    def check_stays(self) -> None:
        """Refuse receivers of an entity that forwards.

        Raises:
            NotAllowedError: the entity forwards.
        """
        if self.onward_path is not None:
            raise NotAllowedError(
                f"Cannot create a message receiver on an entity with auto-forwarding enabled: '{self.path}' forwards to "
                f"'{self.onward_path}'."
            )

    @property
    def has_available(self) -> bool:
        """Whether `acquire` would find something."""
        return any(member.has_available for member in self._usable)

    def acquire(
        self,
        limit: int,
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired | None:
        """As `Queue.acquire`, from the next fragment that has messages.

        Raises:
            StoreError: nothing could be read, although there are messages. The caller has to retry: no listener is called
                for messages that were available all the time.
        """
        self.check_receivable()
        self.check_stays()
        unread: StoreError | None = None
        count = len(self.slots)
        for step in range(count):
            index = (self._next + step) % count
            member = self.slots[index].usable
            if member is None or not member.has_available:
                continue
            try:
                acquired = member.acquire(limit, lock=lock, on_durable=on_durable, on_failed=on_failed)
            except StoreError as error:
                if self.slots[index].usable is not None:  # else its store is down, and calls when it is up
                    unread = error
                continue
            if acquired is not None:
                self._next = (index + 1) % count
                return acquired
        if unread is not None:
            raise unread
        return None

    def delete_locked(
        self, token: bytes, on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> Acquired | None:
        """As `Queue.delete_locked`; errors also as `holder_of`."""
        self._check_open()
        return self.holder_of([token]).delete_locked(token, on_durable, on_failed)

    def receive_deferred(
        self,
        sequences: Sequence[int],
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired:
        """As `Queue.receive_deferred`.

        Raises:
            InvalidArgumentError: messages of several partitions are to be deleted at once.
        """
        self.check_receivable()
        by_fragment = self._by_fragment(sequences, "deferred")
        if len(by_fragment) == 1:
            ((index, part),) = by_fragment.items()
            return self._member(index).receive_deferred(part, lock=lock, on_durable=on_durable, on_failed=on_failed)
        if not lock:
            raise InvalidArgumentError(
                "The messages are of several partitions; receive-and-delete takes deferred messages of one at a time."
            )
        taken: list[tuple[_Q, Acquired]] = []
        try:
            for index, part in sorted(by_fragment.items()):
                member = self._member(index)
                taken.append((member, member.receive_deferred(part)))
        except Exception:
            for member, acquired in taken:
                member.release(acquired.tags)
            raise
        return Acquired(
            [tag for _, acquired in taken for tag in acquired.tags],
            [payload for _, acquired in taken for payload in acquired.payloads],
            [sequence for _, acquired in taken for sequence in acquired.sequences],
            min(acquired.locked_until_ms for _, acquired in taken),
        )

    def delete_batch(
        self,
        limit: int,
        before_ms: int | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> int:
        """Raises NotAllowedError, as the service does."""
        raise NotAllowedError(f"'{self.path}' is partitioned; batch delete is not supported on partitioned entities.")

    # ---- settling

    def fragment_index(self, token: bytes) -> int:
        """The fragment that a lock token names; any for a token that is not of this entity."""
        index = fragment_of_token(token)
        return index if index < len(self.slots) else 0

    def holder_of(self, tokens: Sequence[bytes]) -> _Q:
        """The fragment of lock tokens.

        Raises:
            InvalidArgumentError: they are of several fragments.
            ServerBusyError: its store is down.
        """
        indexes = {self.fragment_index(token) for token in tokens}
        if len(indexes) > 1:
            raise InvalidArgumentError(
                "The lock tokens are of messages of several partitions; settle and renew those of one at a time."
            )
        return self._member(indexes.pop() if indexes else 0)

    def complete(
        self, tokens: Sequence[bytes], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> list[bool]:
        """As `Queue.complete`, as are the other settlements; errors as `holder_of`."""
        self._check_open()
        return self.holder_of(tokens).complete(tokens, on_durable, on_failed)

    def abandon(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """As `Queue.abandon`."""
        self._check_open()
        return self.holder_of(tokens).abandon(tokens, properties, on_durable, on_failed)

    def release(self, tokens: Sequence[bytes]) -> list[bool]:
        """As `Queue.release`."""
        self._check_open()
        return self.holder_of(tokens).release(tokens)

    def defer(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """As `Queue.defer`."""
        self._check_open()
        return self.holder_of(tokens).defer(tokens, properties, on_durable, on_failed)

    def dead_letter(
        self,
        tokens: Sequence[bytes],
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """As `Queue.dead_letter`."""
        self._check_open()
        return self.holder_of(tokens).dead_letter(tokens, reason, description, properties, on_durable, on_failed)

    def holds(self, tokens: Sequence[bytes]) -> list[bool]:
        """As `Queue.holds`; errors as `holder_of`."""
        return self.holder_of(tokens).holds(tokens)

    def renew(self, tokens: Sequence[bytes]) -> list[int | None]:
        """As `Queue.renew`; errors as `holder_of`."""
        self._check_open()
        return self.holder_of(tokens).renew(tokens)

    # ---- listeners and counts

    def add_listener(self, listener: Callback) -> None:
        """As `Backlog.add_listener`, of all fragments."""
        self._listeners.append(listener)
        for member in self._members:
            member.add_listener(listener)

    def remove_listener(self, listener: Callback) -> None:
        """Undo `add_listener`; no error if unknown."""
        if listener in self._listeners:
            self._listeners.remove(listener)
        for member in self._members:
            member.remove_listener(listener)

    @property
    def has_listeners(self) -> bool:
        """Whether receivers wait for messages."""
        return bool(self._listeners)

    def notify(self) -> None:
        """Call the listeners."""
        call_all(tuple(self._listeners))

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        return self._sum("locked_count")

    @property
    def has_large(self) -> bool:
        """Whether bodies are outside of the stores, which they never are."""
        return False

    @property
    def transfer_count(self) -> int:
        """As `Relay.transfer_count`."""
        return self._sum("transfer_count")


class PartitionedQueue(PartitionedQueueBase[Queue]):
    """A partitioned queue, subscription or dead-letter queue."""
