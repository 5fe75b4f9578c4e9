"""The locks of an entity's sessions: their holders and ends.

What it is: sessions given to receivers, by name or the next free one, and their locks renewed, released and ended. What it
is not: the list of sessions (`session.directory`), the effect of a lock's end on messages locked in it (`session.messages`),
or the handle of a receiver (`session.hold`).
Spec: docs/explanation/protocol.md, Links, Management, Sessions.

Invariants:
    I1. A session has at most one holder; a former holder renews nothing and settles nothing.
    I2. Free sessions with messages are given in the order in which they became free, and waiting receivers get them
        in the order of their requests.
    I3. A lock that expires raises the delivery counts of the messages locked in it, one that is released does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from isthmus.clock import monotonic_ms
from isthmus.entities.session import state
from isthmus.entities.session.directory import SessionDirectory
from isthmus.entities.session.free import FreeSessions
from isthmus.entities.session.hold import Hold
from isthmus.entities.session.session import Session
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import SessionLockedError, SessionLockLostError, StoreError

__all__ = ["SessionLocks"]

_log = logging.getLogger(__name__)


class LockingQueue(state.StatefulQueue, Protocol):
    """The entity that has the sessions.

    Attributes:
        path: canonical.
        lock_duration_ms: of its sessions.
        accessed_at_ms: wall time of the last use.
    """

    path: str
    lock_duration_ms: int
    accessed_at_ms: int

    def check_open(self) -> None:
        """Refuse where the entity was deleted."""
        ...

    def check_receivable(self) -> None:
        """Refuse if no message would be given."""
        ...


class SessionLocks:
    """The locks of the sessions of one entity; implements `isthmus.entities.port.Sessions`.

    Args:
        queue: the entity.
        directory: its sessions.
    """

    def __init__(self, queue: LockingQueue, directory: SessionDirectory) -> None:
        self._queue = queue
        self._directory = directory
        self._free = FreeSessions(directory.load())
        self._holds: dict[Hold, None] = {}

    @property
    def path(self) -> str:
        """Of the entity."""
        return self._queue.path

    # ---- failure and end

    def reload(self) -> None:
        """The entity has gone back to the state of the store: as after a restart, all sessions are free."""
        lost = self._end_all()
        try:
            self._directory.let_go()
            self._free.reset(self._directory.load())
        finally:  # also if the read fails: there is no other call
            _notify_lost(lost)

    def wipe(self) -> None:
        """The entity and its sessions have ended; receivers get no single calls."""
        self._end_all()
        self._free.reset(())

    def lose_all(self) -> None:
        """End every hold, since the store of the sessions is down."""
        _notify_lost(self._end_all())

    def _end_all(self) -> list[Hold]:
        """End every hold; returns the ended ones."""
        holds, self._holds = list(self._holds), {}
        for hold in holds:
            hold.is_over = True
        return holds

    # ---- changes of sessions

    def published(self, session: Session) -> None:
        """A session's messages have become visible, have become available again, or are removed permanently."""
        if session.hold is None:
            self._offer(session)
        self._directory.rest(session)

    def forgotten(self, session: Session) -> None:
        """A session was dropped, as nothing of it is left."""
        self._free.discard(session)

    def _offer(self, session: Session) -> None:
        if session.has_available:
            self._free.add(session)

    def wake_all(self) -> None:
        """Call all receivers that wait for a session, so that they check again."""
        self._free.wake_all()

    # ---- taking a session

    def open_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """Lock a session, whether or not it has messages.

        Raises:
            SessionLockedError: another receiver has locked it.
            EntityDisabledError: the status forbids receiving.
            EntityNotFoundError: the entity was deleted.
        """
        self._queue.check_receivable()
        known = self._directory.get(session_id)
        if known is not None and known.hold is not None:
            raise SessionLockedError(self.path, session_id)
        return self._grant(self._directory.session(session_id), holder, link_name)

    def next_session(self, holder: object = None, link_name: str = "") -> Hold | None:
        """Lock the free session with messages that has waited longest (I2); None if there is none.

        Raises:
            EntityDisabledError: the status forbids receiving.
            EntityNotFoundError: the entity was deleted.
            StoreError: the session's messages cannot be read; the next call tries another session, if one is free.
        """
        self._queue.check_receivable()
        session = self._free.next()
        if session is None:
            return None
        try:
            return self._grant(session, holder, link_name)
        except StoreError:
            self._free.postpone(session)
            raise

    def wait_for_session(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once when `next_session` may find something; in the order of the calls."""
        self._free.wait(on_free)

    def cancel_wait(self, on_free: Callable[[], None]) -> None:
        """Undo `wait_for_session`; no error if it has been called."""
        if self._free.cancel(on_free):
            self._queue.accessed_at_ms = self._queue.context.clock.wall_ms()

    def _grant(self, session: Session, holder: object, link_name: str) -> Hold:
        messages = self._directory.messages_of(session)  # a failed read leaves the session free
        self._free.discard(session)
        hold = session.hold = Hold(self, messages, holder, link_name)
        self._holds[hold] = None
        self.renew_hold(hold)
        return hold

    # ---- holds

    def held_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """The hold on a session.

        Raises:
            SessionLockLostError: it is free, or another holder has it, or (if `link_name` is given) another link.
        """
        self._queue.check_open()
        session = self._directory.get(session_id)
        hold = session.hold if session is not None else None
        if hold is None or hold.holder is not holder or (link_name and hold.link_name != link_name):
            raise SessionLockLostError(self.path, session_id)
        return hold

    def hold_on(self, holder: object, link_name: str) -> Hold:
        """The hold that a link of a holder has.

        Raises:
            SessionLockLostError: it has none, or it has ended.
        """
        self._queue.check_open()
        for hold in self._holds:
            if hold.holder is holder and hold.link_name == link_name:
                return hold
        raise SessionLockLostError(self.path)

    def renew_hold(self, hold: Hold) -> int:
        """See `Hold.renew`."""
        queue = self._queue
        if hold.is_over:
            raise SessionLockLostError(self.path, hold.session_id)
        queue.check_open()
        queue.accessed_at_ms = queue.context.clock.wall_ms()
        hold.locked_until_ms = queue.accessed_at_ms + queue.lock_duration_ms
        hold.ends_at_ms = monotonic_ms(queue.context.clock) + queue.lock_duration_ms + hold.grace_ms
        hold.messages.lock_until(hold.locked_until_ms)
        queue.context.wake(queue, hold.ends_at_ms)
        return hold.locked_until_ms

    def end_hold(self, hold: Hold, *, failed: bool) -> None:
        """End a hold (I3)."""
        if hold.is_over:
            return
        hold.is_over = True
        del self._holds[hold]
        self._queue.accessed_at_ms = self._queue.context.clock.wall_ms()
        session = self._directory[hold.session_id]
        session.hold = None
        hold.messages.end_locks(failed=failed)
        self._offer(session)
        self._directory.rest(session)

    def expire(self, now_ms: int) -> int | None:
        """End holds that are due; returns monotonic ms of the next check, None if no session is held."""
        for hold in list(self._holds):
            if hold.ends_at_ms <= now_ms:
                try:
                    self.end_hold(hold, failed=True)
                finally:  # also if the disk refused the raised delivery counts
                    hold.on_lost()
        return min((hold.ends_at_ms for hold in self._holds), default=None)

    # ---- states

    def state_of(self, hold: Hold) -> bytes | None:
        """See `Hold.get_state`."""
        return state.read(self._queue, self._of(hold))

    def change_state(
        self, hold: Hold, content: bytes | None, on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """See `Hold.set_state`."""
        state.change(self._queue, self._of(hold), hold.messages, content)
        self._queue.context.staging.promise(on_durable, on_failed)

    def _of(self, hold: Hold) -> Session:
        self._queue.check_open()
        if hold.is_over:
            raise SessionLockLostError(self.path, hold.session_id)
        return self._directory[hold.session_id]

    # ---- lists and counts

    def list_sessions(self, updated_after_ms: int | None, skip: int, top: int) -> list[str]:
        """Ids of sessions in their order: with active messages or a state, or (given a wall time) whose state was set after it."""
        self._queue.check_open()
        ids = [
            session.session_id
            for session in self._directory
            if (
                session.has_active or session.state_bytes is not None
                if updated_after_ms is None
                else session.state_at_ms > updated_after_ms
            )
        ]
        return sorted(ids)[skip : skip + top]

    @property
    def session_count(self) -> int:
        """How many sessions have messages, a state or a receiver."""
        return len(self._directory)

    @property
    def session_lock_count(self) -> int:
        """How many sessions are locked by a receiver."""
        return len(self._holds)

    @property
    def free_count(self) -> int:
        """How many sessions have messages and no receiver."""
        return len(self._free)

    @property
    def waiting_count(self) -> int:
        """How many receivers wait for a session."""
        return self._free.waiting_count

    @property
    def receiver_count(self) -> int:
        """How many receivers have a session, or wait for one."""
        return self.session_lock_count + self.waiting_count

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        return sum(hold.messages.locked_count for hold in self._holds)


def _notify_lost(holds: Iterable[Hold]) -> None:
    """Call `on_lost` of receivers whose sessions are lost, each whatever another one raises."""
    for hold in holds:
        try:
            hold.on_lost()
        except Exception:  # noqa: BLE001 - a receiver's fault must not end a reload
            _log.exception("a fault of a receiver's callback of a lost session")
