"""A queue or subscription that requires sessions.

What it is: messages sorted into sessions as they arrive, and the answers of the entity as a whole. What it is not: the locks of sessions
(`session.lock`) and their states (`session.state`), the messages of a session (`session.directory`,
`session.messages`), or settlement, which receivers do on the messages of their session.
Spec: docs/explanation/protocol.md, Links, Management, Sessions; docs/explanation/store.md.

Invariants:
    I1. Messages keep the order of the entity's sequence numbers in every session.
    I2. A message without a session, or that would have to be forwarded, is dead-lettered in the batch in which it arrives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.entities.error import InvalidMessageError, SessionRequiredError
from isthmus.entities.member.context import Context
from isthmus.entities.member.listener import call_all
from isthmus.entities.member.peek import PEEK_BYTES, PeekedRecord
from isthmus.entities.queue import dead_letter
from isthmus.entities.queue.lock import Acquired
from isthmus.entities.queue.queue import Queue
from isthmus.entities.record.amend import Stored, take_apart
from isthmus.entities.record.record import Parts
from isthmus.entities.session.directory import SessionDirectory
from isthmus.entities.session.lock import SessionLocks
from isthmus.entities.session.row import session_id_of
from isthmus.entities.session.session import Session
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import (
    SCHEDULED,
    message_span,
    unpack_message,
)
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import (
    NotAllowedError,
    StoreError,
)

__all__ = ["SessionQueue"]

# Why messages are dead-lettered on arrival.
_WITHOUT_SESSION = (
    "Session ID is null",
    "Session enabled entity doesn't allow a message whose session identifier is null.",
)
_FORWARDS = (
    "ForwardingNotSupported",
    "Messages of an entity that requires sessions cannot be forwarded; clear ForwardTo to receive them.",
)
_SETTINGS = (
    "_status",
    "_examination",
    "_fixed_ttl_ms",
    "lock_duration_ms",
    "max_delivery_count",
    "dead_letters_expired",
    "max_message_size_bytes",
)


class SessionQueue(Queue):
    """An entity that requires sessions.

    Attributes:
        are_totals_staged: whether its row in the batch has the present counts.
        directory: its sessions, and their messages.
        sessions: their locks.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self.requires_session = True
        self.are_totals_staged = True
        self.directory = SessionDirectory(self)
        self._locks = SessionLocks(self, self.directory)

    def reload(self, state: bytes | None) -> None:
        """Go back to the state of the store: as after a restart, all sessions are free."""
        super().reload(state)
        self._locks.reload()

    def wipe(self) -> None:
        self._locks.wipe()
        self.directory.wipe(self._staging.batch)
        super().wipe()

    def configure(self, **settings: Any) -> None:
        super().configure(**settings)
        self.directory.inherit({name: getattr(self, name) for name in _SETTINGS})

    def release_store(self) -> None:
        super().release_store()
        self.directory.release_store()

    def housekeep(self) -> None:
        self.directory.housekeep()

    def stage_state(self, batch: Batch) -> None:
        super().stage_state(batch)
        self.are_totals_staged = True

    @property
    def sessions(self) -> SessionLocks:
        return self._locks

    def lose_session_locks(self) -> None:
        self._locks.lose_all()

    def expire_locks(self, now_ms: int) -> int | None:
        return self._locks.expire(now_ms)

    def published(self, session_id: str) -> None:
        """A session's messages have become visible, have become available again, or are removed permanently."""
        self._locks.published(self.directory[session_id])

    def forgotten(self, session: Session) -> None:
        """A session was dropped, as nothing of it is left."""
        self._locks.forgotten(session)

    # ---- storing

    def check_sessions(self, messages: Sequence[Parts]) -> None:
        limit = self.context.limits.max_session_id_characters
        for parts in messages:
            session_id = session_id_of(parts.rest)
            if session_id is None:
                raise SessionRequiredError(self.path)
            if len(session_id) > limit:
                raise InvalidMessageError(f"the SessionId has {len(session_id)} characters; the limit is {limit}")

    def store(
        self,
        messages: Sequence[Parts],
        now_ms: int,
        origins: Sequence[int] | None = None,
        *,
        fed: bool = False,
        hops: int = 0,
    ) -> None:
        """As `Backlog.store`. Messages without a session, which senders cannot send here directly, are dead-lettered."""
        self._staging.touch(self)
        if self.relay is not None:
            self._refuse(messages, now_ms, origins, hops, *_FORWARDS)
            return
        ids = [_readable_id(parts) for parts in messages]
        start, count = 0, len(ids)
        while start < count:
            session_id, stop = ids[start], start + 1
            while stop < count and ids[stop] == session_id:
                stop += 1
            run = messages[start:stop]
            own_origins = None if origins is None else origins[start:stop]
            if session_id is None:
                self._refuse(run, now_ms, own_origins, hops, *_WITHOUT_SESSION)
            else:
                held = self.directory.messages_of(self.directory.session(session_id))
                held.last = self.last
                held.store(run, now_ms, own_origins, fed=fed, hops=hops)
                self.last = held.last
            start = stop

    def _refuse(
        self,
        messages: Sequence[Parts],
        now_ms: int,
        origins: Sequence[int] | None,
        hops: int,
        reason: str,
        description: str,
    ) -> None:
        assert self.dead_letters is not None
        stored = [
            Stored(parts, 0 if origins is None else origins[index], now_ms, None, hops)
            for index, parts in enumerate(messages)
        ]
        dead_letter.store(self.dead_letters, stored, self.path, reason, description)

    # ---- peeking

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """As `Intake.peek`, of one session or of all."""
        self.check_open()
        self.accessed_at_ms = self.context.clock.wall_ms()
        self._staging.write()
        scheduled = self._peek_scheduled(from_sequence, count, session_id)
        return self._shown(self.directory.peek_records(from_sequence, count, session_id, scheduled))

    def _peek_scheduled(self, from_sequence: int, count: int, session_id: str | None) -> list[PeekedRecord]:
        seen: list[PeekedRecord] = []
        size = 0
        first = max(from_sequence, 0)
        if not self.scheduled_count or first > self.committed:
            return seen
        for key, record in self._staging.journal.scan(*message_span(SCHEDULED, self.number, first, self.committed)):
            if len(seen) == count or size >= PEEK_BYTES:
                break
            if session_id is None or session_id_of(take_apart(record).parts.rest) == session_id:
                seen.append((unpack_message(key), record, 2))
                size += len(record)
        return seen

    # ---- the entity as a whole

    @property
    def has_available(self) -> bool:
        """Whether `next_session` may find something."""
        return self._locks.free_count > 0

    @property
    def has_listeners(self) -> bool:
        """Whether a receiver has a session, or waits for one."""
        return self._locks.receiver_count > 0 or super().has_listeners

    def notify(self) -> None:
        """Let waiting receivers check again: after a failure, a change of status, or the end of the entity."""
        call_all([super().notify, self._locks.wake_all])

    def acquire(
        self,
        limit: int,
        *,
        lock: bool = True,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> Acquired | None:
        """Raises NotAllowedError: messages are acquired from a session."""
        raise NotAllowedError(
            "It is not possible for an entity that requires sessions to create a non-sessionful message receiver: "
            f"'{self.path}'."
        )

    def delete_batch(
        self,
        limit: int,
        before_ms: int | None = None,
        on_durable: Callback | None = None,
        on_failed: Failure | None = None,
    ) -> int:
        """As `Queue.delete_batch`, in the free sessions; one that cannot be read does not stop the others."""
        self.check_receivable()
        deleted = 0
        unread: StoreError | None = None
        for session in self.directory:
            if deleted < limit and session.hold is None and session.has_available:
                try:
                    deleted += self.directory.messages_of(session).delete_batch(limit - deleted, before_ms)
                except StoreError as error:
                    unread = error
        if unread is not None and not deleted:
            raise unread
        self._staging.promise(on_durable, on_failed)
        return deleted

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        return self._locks.locked_count

    def statistics(self) -> dict[str, int]:
        return {
            **super().statistics(),
            "locked_count": self.locked_count,
            "session_count": self._locks.session_count,
            "held_session_count": self._locks.session_lock_count,
            "free_session_count": self._locks.free_count,
            "waiting_receiver_count": self._locks.waiting_count,
        }


def _readable_id(parts: Parts) -> str | None:
    """The session of a message that was accepted elsewhere; None if its id cannot be read."""
    try:
        return session_id_of(parts.rest)
    except InvalidMessageError:
        return None
