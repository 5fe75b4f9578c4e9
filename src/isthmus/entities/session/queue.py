"""A queue or subscription that requires sessions: who has which session.

What it is: messages sorted into sessions, the locks of sessions, the choice of the next free one, and their states. What it is
not: where a session's messages are (`session.directory`, `session.messages`), nor settlement, which receivers do on the messages of the session they hold.
Spec: docs/explanation/protocol.md, Links, Management, Sessions; docs/explanation/store.md.
A little over 400 lines: what a session's end, its state and its messages change about the entity is here together.

Invariants:
    I1. A session has at most one holder; who has lost it renews nothing and settles nothing.
    I2. Free sessions with messages are given out in the order in which they became free, receivers that wait are served
        in the order in which they came.
    I3. A lock that expires raises the delivery counts of what was locked, one that is given back does not.
    I4. A session's state is as durable as a message, and stays until it is cleared.
    I5. Messages keep the order of the entity's sequence numbers in every session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from isthmus.clock import monotonic_ms
from isthmus.entities.error import InvalidMessageError, SessionRequiredError
from isthmus.entities.member.context import Context
from isthmus.entities.member.listener import call_all
from isthmus.entities.member.look import LOOK_BYTES, Seen
from isthmus.entities.port import Sessions
from isthmus.entities.queue import dead_letter
from isthmus.entities.queue.lock import Acquired
from isthmus.entities.queue.queue import Queue
from isthmus.entities.record.amend import Stored, take_apart
from isthmus.entities.record.record import Parts
from isthmus.entities.session.directory import SessionDirectory
from isthmus.entities.session.free import FreeSessions
from isthmus.entities.session.hold import Hold
from isthmus.entities.session.row import pack_row, session_id_of, unpack_row
from isthmus.entities.session.session import Session
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import (
    SCHEDULED,
    message_span,
    session_key,
    unpack_message,
)
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import (
    MessageTooLargeError,
    NotAllowedError,
    SessionLockedError,
    SessionLockLostError,
    StoreError,
)

__all__ = ["SessionQueue"]

_log = logging.getLogger(__name__)

# Why messages are dead-lettered as they come.
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
        are_totals_staged: whether its row in the batch tells the counts as they are.
        directory: its sessions, and where their messages are.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self.requires_session = True
        self.are_totals_staged = True
        self.directory = SessionDirectory(self)
        self._free = FreeSessions(self.directory.load())
        self._holds: dict[Hold, None] = {}

    def reload(self, state: bytes | None) -> None:
        """Go back to what the store holds: as after a restart, all sessions are free."""
        super().reload(state)
        lost = self._end_holds()
        try:
            self.directory.let_go()
            self._free.reset(self.directory.load())
        finally:  # also if the disk does not give them: nobody else would tell
            _tell_lost(lost)

    def wipe(self) -> None:
        self._end_holds()
        self.directory.wipe(self._staging.batch)
        self._free.reset(())
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
    def sessions(self) -> Sessions:
        return self

    def lose_holds(self) -> None:
        """End every hold, since the store that the sessions are in cannot be reached."""
        _tell_lost(self._end_holds())

    def _end_holds(self) -> list[Hold]:
        """Every hold is over; those that were."""
        holds, self._holds = list(self._holds), {}
        for hold in holds:
            hold.is_over = True
        return holds

    def published(self, session_id: str) -> None:
        """A session's messages have become visible, have come back, or are gone permanently."""
        session = self.directory[session_id]
        if session.hold is None:
            self._offer(session)
        self.directory.rest(session)

    def forgotten(self, session: Session) -> None:
        """Nothing is left of a session."""
        self._free.discard(session)

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
        """As `Backlog.store`. Messages without a session, which no sender can bring here directly, are dead-lettered."""
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
            Stored(parts, 0 if origins is None else origins[place], now_ms, None, hops)
            for place, parts in enumerate(messages)
        ]
        dead_letter.store(self.dead_letters, stored, self.path, reason, description)

    # ---- who has a session

    def open_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """Lock a session, whether or not it has messages.

        Raises:
            SessionLockedError: somebody has it.
            EntityDisabledError: the status forbids receiving.
            EntityNotFoundError: the entity was deleted.
        """
        self.check_receivable()
        known = self.directory.get(session_id)
        if known is not None and known.hold is not None:
            raise SessionLockedError(self.path, session_id)
        return self._grant(self.directory.session(session_id), holder, link_name)

    def next_session(self, holder: object = None, link_name: str = "") -> Hold | None:
        """Lock the free session with messages that has waited longest (I2); None if there is none.

        Raises:
            EntityDisabledError: the status forbids receiving.
            EntityNotFoundError: the entity was deleted.
            StoreError: the disk does not give the session's messages; the next call has another session, if one is free.
        """
        self.check_receivable()
        session = self._free.next()
        if session is None:
            return None
        try:
            return self._grant(session, holder, link_name)
        except StoreError:
            self._free.postpone(session)
            raise

    def wait_for_session(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once when `next_session` may find something; first come, first called."""
        self._free.wait(on_free)

    def cancel_wait(self, on_free: Callable[[], None]) -> None:
        """Undo `wait_for_session`; no error if it has been called."""
        if self._free.cancel(on_free):
            self.accessed_at_ms = self.context.clock.wall_ms()

    @property
    def has_listeners(self) -> bool:
        """Whether anybody has a session, or waits for one."""
        return bool(self._holds or self._free.waiting_count) or super().has_listeners

    def held_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """The hold on a session.

        Raises:
            SessionLockLostError: nobody has it, or another holder, or (if `link_name` is given) another link.
        """
        self._check_open()
        session = self.directory.get(session_id)
        hold = session.hold if session is not None else None
        if hold is None or hold.holder is not holder or (link_name and hold.link_name != link_name):
            raise SessionLockLostError(self.path, session_id)
        return hold

    def hold_on(self, holder: object, link_name: str) -> Hold:
        """The hold that a link of a holder has.

        Raises:
            SessionLockLostError: it has none, or none any more.
        """
        self._check_open()
        for hold in self._holds:
            if hold.holder is holder and hold.link_name == link_name:
                return hold
        raise SessionLockLostError(self.path)

    def _grant(self, session: Session, holder: object, link_name: str) -> Hold:
        messages = self.directory.messages_of(session)  # a disk that does not give them leaves the session free
        self._free.discard(session)
        hold = session.hold = Hold(self, messages, holder, link_name)
        self._holds[hold] = None
        self.renew_hold(hold)
        return hold

    def renew_hold(self, hold: Hold) -> int:
        """See `Hold.renew`."""
        if hold.is_over:
            raise SessionLockLostError(self.path, hold.session_id)
        self._check_open()
        self.accessed_at_ms = self.context.clock.wall_ms()
        hold.locked_until_ms = self.accessed_at_ms + self.lock_duration_ms
        hold.ends_at_ms = monotonic_ms(self.context.clock) + self.lock_duration_ms + hold.grace_ms
        hold.messages.lock_until(hold.locked_until_ms)
        self.context.wake(self, hold.ends_at_ms)
        return hold.locked_until_ms

    def end_hold(self, hold: Hold, *, failed: bool) -> None:
        """End a hold (I3)."""
        if hold.is_over:
            return
        hold.is_over = True
        del self._holds[hold]
        self.accessed_at_ms = self.context.clock.wall_ms()
        session = self.directory[hold.session_id]
        session.hold = None
        hold.messages.give_back(failed=failed)
        self._offer(session)
        self.directory.rest(session)

    def expire_locks(self, now_ms: int) -> int | None:
        """End holds that are due; monotonic ms of the next look, None if no session is held."""
        for hold in list(self._holds):
            if hold.ends_at_ms <= now_ms:
                try:
                    self.end_hold(hold, failed=True)
                finally:  # also if the disk refused the raised delivery counts
                    hold.on_lost()
        return min((hold.ends_at_ms for hold in self._holds), default=None)

    def _offer(self, session: Session) -> None:
        if session.has_available:
            self._free.add(session)

    def notify(self) -> None:
        """Let those who wait look again: at what came back after a failure, at a new status, at the end of the entity."""
        call_all([super().notify, self._free.wake_all])

    # ---- state

    def state_of(self, hold: Hold) -> bytes | None:
        """See `Hold.get_state`."""
        session = self._of(hold)
        if session.state_bytes is None:
            return None
        self._staging.write()
        row = self._staging.journal.get(session_key(self.number, session.session_id))
        return None if row is None else unpack_row(row)[2]

    def change_state(
        self, hold: Hold, state: bytes | None, on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """See `Hold.set_state`."""
        session = self._of(hold)
        grown = len(state or b"") - (session.state_bytes or 0)
        if state is not None and len(state) > self.max_message_size_bytes:
            raise MessageTooLargeError(len(state), self.max_message_size_bytes)
        if grown > 0:
            self._quota.check(self, grown)
        session.state_at_ms = self.context.clock.wall_ms()
        session.state_bytes = None if state is None else len(state)
        session.is_stored = True
        row = pack_row(session.number, session.state_at_ms, state)
        self._staging.batch.put(session_key(self.number, session.session_id), row)
        self.size_bytes += grown
        self._staging.touch(self)
        self._staging.touch(hold.messages)
        self._staging.promise(on_durable, on_failed)

    def _of(self, hold: Hold) -> Session:
        self._check_open()
        if hold.is_over:
            raise SessionLockLostError(self.path, hold.session_id)
        return self.directory[hold.session_id]

    def list_sessions(self, updated_after_ms: int | None, skip: int, top: int) -> list[str]:
        """Ids of sessions in their order: with active messages or a state, or (given a wall time) whose state was set after it."""
        self._check_open()
        ids = [
            session.session_id
            for session in self.directory
            if (
                session.has_active or session.state_bytes is not None
                if updated_after_ms is None
                else session.state_at_ms > updated_after_ms
            )
        ]
        return sorted(ids)[skip : skip + top]

    # ---- looking

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """As `Intake.peek`, of one session or of all."""
        self._check_open()
        self.accessed_at_ms = self.context.clock.wall_ms()
        self._staging.write()
        looked = self._look_at_scheduled(from_sequence, count, session_id)
        return self._shown(self.directory.look(from_sequence, count, session_id, looked))

    def _look_at_scheduled(self, from_sequence: int, count: int, session_id: str | None) -> list[Seen]:
        seen: list[Seen] = []
        size = 0
        first = max(from_sequence, 0)
        if not self.scheduled_count or first > self.committed:
            return seen
        for key, record in self._staging.journal.scan(*message_span(SCHEDULED, self.number, first, self.committed)):
            if len(seen) == count or size >= LOOK_BYTES:
                break
            if session_id is None or session_id_of(take_apart(record).parts.rest) == session_id:
                seen.append((unpack_message(key), record, 2))
                size += len(record)
        return seen

    # ---- the entity as a whole

    @property
    def has_available(self) -> bool:
        """Whether `next_session` may find something."""
        return bool(self._free)

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
        """As `Queue.delete_batch`, in the sessions that nobody has."""
        self.check_receivable()
        deleted = 0
        for session in self.directory:
            if deleted < limit and session.hold is None and session.has_available:
                deleted += self.directory.messages_of(session).delete_batch(limit - deleted, before_ms)
        self._staging.promise(on_durable, on_failed)
        return deleted

    @property
    def session_count(self) -> int:
        """How many sessions have messages, a state or a receiver."""
        return len(self.directory)

    @property
    def held_count(self) -> int:
        """How many sessions a receiver has."""
        return len(self._holds)

    @property
    def receiver_count(self) -> int:
        """How many receivers have a session, or wait for one."""
        return len(self._holds) + self._free.waiting_count

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        return sum(hold.messages.locked_count for hold in self._holds)

    def statistics(self) -> dict[str, int]:
        return {
            **super().statistics(),
            "locked_count": self.locked_count,
            "session_count": self.session_count,
            "held_session_count": self.held_count,
            "free_session_count": len(self._free),
            "waiting_receiver_count": self._free.waiting_count,
        }


def _tell_lost(holds: Iterable[Hold]) -> None:
    """Tell receivers that their sessions are lost, each whatever another one raises."""
    for hold in holds:
        try:
            hold.on_lost()
        except Exception:  # noqa: BLE001 - a receiver's fault, and no end of a reload
            _log.exception("a fault where a receiver was told that its session is lost")


def _readable_id(parts: Parts) -> str | None:
    """The session of a message that was accepted elsewhere; one that cannot be read is none."""
    try:
        return session_id_of(parts.rest)
    except InvalidMessageError:
        return None
