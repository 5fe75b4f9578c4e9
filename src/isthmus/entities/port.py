"""The common interface of a namespace's entities: targets that take messages, and sources that give them.

What it is: two protocols, `MessageTarget` and `MessageSource`, that plain entities, entities with sessions and partitioned
ones implement alike, and the parts of a contract that they share. Callers use an entity, and never check its class. What it is not:
an entity (`queue`, `session`, `topic`, `fragment`).
Spec: docs/explanation/protocol.md, Entities.
A little over 400 lines: a protocol is as long as what it documents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from isthmus.entities.queue.lock import Acquired
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.entities.transaction.participant import LockHolder, Participant, ScheduleParticipant

__all__ = [
    "Entity",
    "MessageSource",
    "MessageTarget",
    "SessionLock",
    "Sessions",
]


class MessageTarget(Protocol):
    """A target of messages: a queue, a topic, or the route via one.

    Attributes:
        refused_total: deliveries that were refused; counted by the broker.
    """

    refused_total: int

    @property
    def path(self) -> str:
        """Canonical."""
        ...

    @property
    def is_deleted(self) -> bool:
        """Whether it was deleted."""
        ...

    @property
    def is_partitioned(self) -> bool:
        """Whether `accept` takes one run of messages at a time (`runs`), and tokens name fragments."""
        ...

    @property
    def max_message_size_bytes(self) -> int:
        """Of one message."""
        ...

    @property
    def takes_bodies(self) -> bool:
        """Whether messages whose bodies are outside of the store can be kept here."""
        ...

    def check_sendable(self) -> None:
        """Refuse if every message would be refused."""
        ...

    def accept(
        self, payloads: Sequence[Payload], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Take messages as one atomic unit, in order; exactly one of the callbacks is called."""
        ...

    def runs(self, payloads: Sequence[Payload]) -> list[int]:
        """Lengths of the runs of messages that `accept` can take together."""
        ...

    def placed(self, payloads: Sequence[Payload], preferred: int | None = None) -> Participant:
        """The participant that takes messages as a unit in a transaction.

        Args:
            payloads: encoded messages.
            preferred: the fragment of messages without a key, if one has been chosen for them.
        """
        ...


class Entity(MessageTarget, Protocol):
    """A queue, topic, subscription or dead-letter queue."""

    @property
    def takes_senders(self) -> bool:
        """Whether senders may attach, unless it is a subscription: not to a dead-letter queue."""
        ...

    @property
    def source(self) -> MessageSource | None:
        """Itself, where it gives messages; None for a topic."""
        ...

    @property
    def transfer_dead_letters(self) -> MessageSource | None:
        """The messages whose target was deleted; None while there were none."""
        ...

    @property
    def is_whole(self) -> bool:
        """Whether all of its stores are up."""
        ...

    @property
    def requires_session(self) -> bool:
        """Whether every message must belong to a session."""
        ...

    @property
    def active_count(self) -> int:
        """Messages that are neither deferred nor scheduled."""
        ...

    @property
    def scheduled_count(self) -> int:
        """Messages that are not due."""
        ...

    @property
    def deferred_count(self) -> int:
        """Deferred messages."""
        ...

    @property
    def leaving_count(self) -> int:
        """Messages that have left for another store and have not arrived there."""
        ...

    @property
    def size_bytes(self) -> int:
        """Of all records."""
        ...

    @property
    def record_bytes(self) -> int:
        """Of all records, and of the bodies that they refer to."""
        ...

    @property
    def taken_total(self) -> int:
        """Messages taken from senders since the start."""
        ...

    @property
    def delivered_total(self) -> int:
        """Messages handed to receivers since the start."""
        ...

    @property
    def settled_total(self) -> int:
        """Messages completed since the start."""
        ...

    @property
    def expired_total(self) -> int:
        """Messages that expired since the start."""
        ...

    @property
    def last(self) -> int:
        """Highest sequence number assigned."""
        ...

    @property
    def accessed_at_ms(self) -> int:
        """Wall time of the last use."""
        ...

    def stored_bytes(self) -> int:
        """The size that counts towards the quota."""
        ...

    def placed(self, payloads: Sequence[Payload], preferred: int | None = None) -> ScheduleParticipant:
        """As `MessageTarget.placed`."""
        ...

    def scheduled_in(self, sequences: Sequence[int]) -> ScheduleParticipant:
        """The participant that has these scheduled messages."""
        ...

    def schedule(
        self,
        messages: Sequence[tuple[bytes, int]],
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[int]:
        """Take (payload, due wall ms) pairs; returns their sequence numbers while scheduled."""
        ...

    def cancel_scheduled(
        self, sequences: Sequence[int], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Drop scheduled messages."""
        ...

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """Messages of every state from a sequence number on, in order, without locking."""
        ...


class MessageSource(Entity, Protocol):
    """A source of messages: a queue, a subscription, a dead-letter queue, or a session's messages."""

    @property
    def lock_duration_ms(self) -> int:
        """Of messages and sessions."""
        ...

    @property
    def dead_letters(self) -> MessageSource | None:
        """The dead-letter queue; None for a dead-letter queue."""
        ...

    @property
    def sessions(self) -> Sessions | None:
        """Its sessions, where it requires them."""
        ...

    @property
    def has_available(self) -> bool:
        """Whether `acquire` would find something."""
        ...

    @property
    def has_listeners(self) -> bool:
        """Whether receivers wait for messages."""
        ...

    @property
    def has_large(self) -> bool:
        """Whether some message may be large: receivers then get one at a time."""
        ...

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        ...

    @property
    def transfer_count(self) -> int:
        """Active messages that wait to be forwarded."""
        ...

    def check_receivable(self) -> None:
        """Refuse if no message would be given."""
        ...

    def check_stays(self) -> None:
        """Refuse receivers of an entity that forwards."""
        ...

    def acquire(
        self,
        limit: int,
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired | None:
        """Up to `limit` available messages in sequence order, locked or deleted; None if there is none."""
        ...

    def delete_locked(
        self, token: bytes, on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> Acquired | None:
        """Delete a message that `acquire` has locked, as it does without `lock`; None if the lock is lost."""
        ...

    def receive_deferred(
        self,
        sequences: Sequence[int],
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired:
        """Deferred messages by sequence number, locked or deleted."""
        ...

    def delete_batch(
        self,
        limit: int,
        before_ms: int | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> int:
        """Delete up to `limit` unlocked active messages enqueued before a wall time; returns how many."""
        ...

    def fragment_index(self, token: bytes) -> int:
        """The fragment that a lock token names; 0 where there is only one."""
        ...

    def holder_of(self, tokens: Sequence[bytes]) -> LockHolder:
        """The participant that has these locks."""
        ...

    def complete(
        self, tokens: Sequence[bytes], on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> list[bool]:
        """Remove locked messages. One flag per token; False: the lock was lost."""
        ...

    def abandon(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Return messages with their delivery count raised."""
        ...

    def release(self, tokens: Sequence[bytes]) -> list[bool]:
        """Return messages at once, as if never delivered."""
        ...

    def defer(
        self,
        tokens: Sequence[bytes],
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Defer messages."""
        ...

    def dead_letter(
        self,
        tokens: Sequence[bytes],
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, Any] | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> list[bool]:
        """Move messages to the dead-letter queue."""
        ...

    def renew(self, tokens: Sequence[bytes]) -> list[int | None]:
        """Lock for a full lock duration from now; returns the new locked-until wall ms per token, None: lock lost."""
        ...

    def add_listener(self, listener: Callback) -> None:
        """Call whenever something became available, and when the entity was deleted or its status changed."""
        ...

    def remove_listener(self, listener: Callback) -> None:
        """Undo `add_listener`; no error if unknown."""
        ...


class SessionLock(Protocol):
    """A receiver's lock on a session (`session.hold.Hold`).

    Attributes:
        on_lost: called when it ends without `release`.
    """

    on_lost: Callback

    @property
    def session_id(self) -> str:
        """Which."""
        ...

    @property
    def messages(self) -> MessageSource:
        """The messages that the receiver acquires and settles."""
        ...

    @property
    def locked_until_ms(self) -> int:
        """Wall time, as clients are shown it."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether it has ended, for any reason."""
        ...

    def linger(self, grace_ms: int) -> int:
        """As `renew`; from now on the lock lasts this much longer than its holder is shown."""
        ...

    def renew(self) -> int:
        """Lock for a full lock duration from now; returns the new locked-until wall ms."""
        ...

    def release(self) -> None:
        """Release the session with everything that is locked in it; no error if it is over."""
        ...

    def get_state(self) -> bytes | None:
        """The session's state; None if there is none."""
        ...

    def set_state(
        self, state: bytes | None, on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Replace the session's state; None clears it."""
        ...


class Sessions(Protocol):
    """The sessions of an entity that requires them."""

    @property
    def path(self) -> str:
        """Of the entity."""
        ...

    @property
    def session_count(self) -> int:
        """How many sessions have messages, a state or a receiver."""
        ...

    @property
    def session_lock_count(self) -> int:
        """How many sessions are locked by a receiver."""
        ...

    @property
    def receiver_count(self) -> int:
        """How many receivers have a session, or wait for one."""
        ...

    def open_session(self, session_id: str, holder: object = None, link_name: str = "") -> SessionLock:
        """Lock a session, whether or not it has messages."""
        ...

    def next_session(self, holder: object = None, link_name: str = "") -> SessionLock | None:
        """Lock the free session with messages that has waited longest; None if there is none."""
        ...

    def wait_for_session(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once when `next_session` may find something."""
        ...

    def cancel_wait(self, on_free: Callable[[], None]) -> None:
        """Undo `wait_for_session`; no error if it has been called."""
        ...

    def held_session(self, session_id: str, holder: object = None, link_name: str = "") -> SessionLock:
        """The lock on a session that a holder has."""
        ...

    def hold_on(self, holder: object, link_name: str) -> SessionLock:
        """The lock that a link of a holder has."""
        ...

    def list_sessions(self, updated_after_ms: int | None, skip: int, top: int) -> list[str]:
        """Ids of sessions in their order."""
        ...
