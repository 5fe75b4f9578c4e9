"""A queue or subscription that requires sessions: who has which session.

What it is: the locks of sessions, the choice of the next free one, and their states. What it is not: where a session's
messages are (`session.directory`, `session.messages`), nor settlement, which receivers do on the messages of the session they hold.
Spec: docs/explanation/protocol.md, Links, Management, Sessions; docs/explanation/store.md.

Invariants:
    I1. A session has at most one holder; who has lost it renews nothing and settles nothing.
    I2. Free sessions with messages are given out in the order in which they became free, receivers that wait are served
        in the order in which they came.
    I3. A lock that expires raises the delivery counts of what was locked, one that is given back does not.
    I4. A session's state is as durable as a message, and stays until it is cleared.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.clock import monotonic_ms
from isthmus.entities.port import Sessions
from isthmus.entities.queue.context import Context
from isthmus.entities.queue.lock import Acquired
from isthmus.entities.session.directory import SessionDirectory
from isthmus.entities.session.hold import Hold
from isthmus.entities.session.row import pack_row, unpack_row
from isthmus.entities.session.session import Session
from isthmus.entities.storage.key import (
    session_key,
)
from isthmus.entities.storage.staging import Callback, Failure
from isthmus.errors import (
    MessageTooLargeError,
    NotAllowedError,
    SessionLockedError,
    SessionLockLostError,
)

__all__ = ["SessionQueue"]


class SessionQueue(SessionDirectory):
    """An entity that requires sessions."""

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self._holds: dict[Hold, None] = {}
        self._waiters: dict[Callable[[], None], None] = {}
        self._is_serving = False

    def reload(self, state: bytes | None) -> None:
        """Go back to what the store holds: as after a restart, all sessions are free."""
        super().reload(state)
        lost = self._end_holds()
        self._let_go()
        self._load_sessions()
        for hold in lost:
            hold.on_lost()

    def wipe(self) -> None:
        self._end_holds()
        super().wipe()

    @property
    def sessions(self) -> Sessions:
        return self

    def lose_holds(self) -> None:
        """End every hold, since the store that the sessions are in cannot be reached."""
        for hold in self._end_holds():
            hold.on_lost()

    def _end_holds(self) -> list[Hold]:
        """Every hold is over; those that were."""
        holds, self._holds = list(self._holds), {}
        for hold in holds:
            hold.is_over = True
        return holds

    def published(self, session_id: str) -> None:
        session = self._sessions[session_id]
        if session.hold is None:
            self._offer(session)
        super().published(session_id)

    # ---- who has a session

    def open_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """Lock a session, whether or not it has messages.

        Raises:
            SessionLockedError: somebody has it.
            EntityDisabledError: the status forbids receiving.
            EntityNotFoundError: the entity was deleted.
        """
        self.check_receivable()
        known = self._sessions.get(session_id)
        if known is not None and known.hold is not None:
            raise SessionLockedError(self.path, session_id)
        return self._grant(self._session(session_id), holder, link_name)

    def next_session(self, holder: object = None, link_name: str = "") -> Hold | None:
        """Lock the free session with messages that has waited longest (I2); None if there is none.

        Raises:
            EntityDisabledError: the status forbids receiving.
            EntityNotFoundError: the entity was deleted.
        """
        self.check_receivable()
        while self._free:
            session = next(iter(self._free))
            if session.hold is None and session.has_available:
                return self._grant(session, holder, link_name)
            del self._free[session]
        return None

    def wait_for_session(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once when `next_session` may find something; first come, first called."""
        self._waiters[on_free] = None

    def cancel_wait(self, on_free: Callable[[], None]) -> None:
        """Undo `wait_for_session`; no error if it has been called."""
        if on_free in self._waiters:
            del self._waiters[on_free]
            self.accessed_at_ms = self._context.clock.wall_ms()

    @property
    def has_listeners(self) -> bool:
        """Whether anybody has a session, or waits for one."""
        return bool(self._holds or self._waiters) or super().has_listeners

    def held_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """The hold on a session.

        Raises:
            SessionLockLostError: nobody has it, or another holder, or (if `link_name` is given) another link.
        """
        self._check_open()
        session = self._sessions.get(session_id)
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
        messages = self.messages_of(session)  # a disk that does not give them leaves the session free
        self._free.pop(session, None)
        hold = session.hold = Hold(self, messages, holder, link_name)
        self._holds[hold] = None
        self.renew_hold(hold)
        return hold

    def renew_hold(self, hold: Hold) -> int:
        """See `Hold.renew`."""
        if hold.is_over:
            raise SessionLockLostError(self.path, hold.session_id)
        self._check_open()
        self.accessed_at_ms = self._context.clock.wall_ms()
        hold.locked_until_ms = self.accessed_at_ms + self.lock_duration_ms
        hold.ends_at_ms = monotonic_ms(self._context.clock) + self.lock_duration_ms + hold.grace_ms
        hold.messages.lock_until(hold.locked_until_ms)
        self._context.wake(self, hold.ends_at_ms)
        return hold.locked_until_ms

    def end_hold(self, hold: Hold, *, failed: bool) -> None:
        """End a hold (I3)."""
        if hold.is_over:
            return
        hold.is_over = True
        del self._holds[hold]
        self.accessed_at_ms = self._context.clock.wall_ms()
        session = self._sessions[hold.session_id]
        session.hold = None
        hold.messages.give_back(failed=failed)
        self._offer(session)
        self._rest(session)

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
            self._free.setdefault(session)
            self._serve()

    def _serve(self) -> None:
        """Let receivers that wait choose, as long as there are sessions to choose.

        One that gives its session back at once calls this again: the round under way goes on with the next.
        """
        if self._is_serving:
            return
        self._is_serving = True
        try:
            while self._waiters and self._free:
                on_free = next(iter(self._waiters))
                del self._waiters[on_free]
                on_free()
        finally:
            self._is_serving = False

    def notify(self) -> None:
        """Let those who wait look again: at what came back after a failure, at a new status, at the end of the entity."""
        super().notify()
        waiters, self._waiters = list(self._waiters), {}
        for on_free in waiters:
            on_free()

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
            self._check_quota(grown)
        session.state_at_ms = self._context.clock.wall_ms()
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
        return self._sessions[hold.session_id]

    def list_sessions(self, updated_after_ms: int | None, skip: int, top: int) -> list[str]:
        """Ids of sessions in their order: with active messages or a state, or (given a wall time) whose state was set after it."""
        self._check_open()
        ids = [
            session.session_id
            for session in self._sessions.values()
            if (
                session.has_active or session.state_bytes is not None
                if updated_after_ms is None
                else session.state_at_ms > updated_after_ms
            )
        ]
        return sorted(ids)[skip : skip + top]

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
        for session in list(self._sessions.values()):
            if deleted < limit and session.hold is None and session.has_available:
                deleted += self.messages_of(session).delete_batch(limit - deleted, before_ms)
        self._staging.promise(on_durable, on_failed)
        return deleted

    @property
    def session_count(self) -> int:
        """How many sessions have messages, a state or a receiver."""
        return len(self._sessions)

    @property
    def held_count(self) -> int:
        """How many sessions a receiver has."""
        return len(self._holds)

    @property
    def receiver_count(self) -> int:
        """How many receivers have a session, or wait for one."""
        return len(self._holds) + len(self._waiters)

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
            "waiting_receiver_count": len(self._waiters),
        }
