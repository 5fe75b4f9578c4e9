"""A queue or subscription that requires sessions: which sessions there are, and who has them.

What it is: an entity whose messages lie by session (`session_messages`), with the locks of sessions, the choice of the
next free one, and their states. What it is not: settlement, which receivers do on the messages of the session they hold.
Spec: SERVICE-BUS.md W5, W9, W10, 5.5; docs/explanation/store.md.

Invariants:
    I1. A session has at most one holder; who has lost it renews nothing and settles nothing.
    I2. Free sessions with messages are given out in the order in which they became free, receivers that wait are served
        in the order in which they came.
    I3. A lock that expires raises the delivery counts of what was locked, one that is given back does not.
    I4. A session's state is as durable as a message, and stays until it is cleared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from isthmus.entities.amend import Stored, take_apart
from isthmus.entities.error import InvalidMessageError, SessionRequiredError
from isthmus.entities.intake import Context, Seen, cursors
from isthmus.entities.key import (
    DEFERRED,
    MESSAGE,
    SCHEDULED,
    SESSION,
    STATE,
    message_span,
    numbered_span,
    session_key,
    state_key,
    unpack_message,
)
from isthmus.entities.lock import Acquired
from isthmus.entities.queue import Queue
from isthmus.entities.record import Parts, plain_payload
from isthmus.entities.run import runs_of
from isthmus.entities.session import Session, pack_row, session_id_of, unpack_row
from isthmus.entities.session_hold import Hold
from isthmus.entities.session_messages import SessionMessages
from isthmus.entities.staging import Callback, Failure
from isthmus.errors import (
    MessageTooLargeError,
    NotAllowedError,
    SessionLockedError,
    SessionLockLostError,
)

__all__ = ["SessionQueue"]

# Sessions whose messages are at hand though nobody has them.
_AT_HAND = 1024
# Numbers taken from the namespace at once, so that deleting the entity is a few ranges.
_BLOCK = 1024
_SETTINGS = (
    "_status",
    "_heads",
    "_fixed_ttl_ms",
    "lock_duration_ms",
    "_max_delivery_count",
    "_dead_letters_expired",
    "max_message_size_bytes",
)


class SessionQueue(Queue):
    """An entity that requires sessions.

    Attributes:
        are_totals_staged: whether its row in the batch tells the counts as they are.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self.requires_session = True
        self.are_totals_staged = True
        self._settings: dict[str, Any] = {}
        self._sessions: dict[str, Session] = {}
        self._free: dict[Session, None] = {}
        self._holds: dict[Hold, None] = {}
        self._waiters: dict[Callable[[], None], None] = {}
        self._at_hand = 0
        self._block = range(0)
        self._spare_numbers: list[int] = []
        self._load_sessions()

    # ---- start, failure, end

    def _load_sessions(self) -> None:
        journal = self._staging.journal
        for key, row in journal.scan(*numbered_span(SESSION, self.number)):
            number, at_ms, session_state = unpack_row(row)
            session = Session(self, key[5:].decode(), number)
            session.is_stored = True
            session.state_at_ms = at_ms
            session.state_bytes = None if session_state is None else len(session_state)
            self._sessions[session.session_id] = session
            self._context.sessions[number] = session
        sessions = list(self._sessions.values())
        for session, state in zip(
            sessions, journal.get_many([state_key(session.number) for session in sessions]), strict=True
        ):
            if state is not None:
                session.last, session.head, session.active_count, session.deferred_count = cursors(state)
            if session.active_count:
                self._free[session] = None

    def reload(self, state: bytes | None) -> None:
        """Go back to what the store holds: as after a restart, all sessions are free."""
        super().reload(state)
        lost = self._let_go()
        self._load_sessions()
        for hold in lost:
            hold.on_lost()

    def wipe(self) -> None:
        batch = self._staging.batch
        numbers = [session.number for session in self._sessions.values() if session.number]
        numbers += [*self._spare_numbers, *self._block]
        for first, last in runs_of(sorted(numbers)):
            for table in (MESSAGE, DEFERRED, STATE):
                batch.delete_range(numbered_span(table, first)[0], numbered_span(table, last)[1])
        batch.delete_range(*numbered_span(SESSION, self.number))
        for session in self._sessions.values():
            if session.messages is not None:
                session.messages.is_deleted = True
        self._let_go()
        super().wipe()

    def _let_go(self) -> list[Hold]:
        """Forget the sessions; the holds that were lost by it."""
        for session in self._sessions.values():
            self._context.sessions.pop(session.number, None)
            if session.messages is not None:
                session.messages.is_retired = True
                session.messages.unload()
        holds = list(self._holds)
        for hold in holds:
            hold.is_over = True
        self._sessions.clear()
        self._free.clear()
        self._holds.clear()
        self._at_hand = 0
        self._block = range(0)
        self._spare_numbers.clear()
        return holds

    def configure(self, **settings: Any) -> None:
        super().configure(**settings)
        self._settings = {name: getattr(self, name) for name in _SETTINGS}
        for session in self._sessions.values():
            if session.messages is not None:
                session.messages.inherit(self._settings)

    def release_store(self) -> None:
        super().release_store()
        for session in self._sessions.values():
            if session.messages is not None:
                session.messages.release_store()

    def housekeep(self) -> None:
        """Let go of the messages of sessions that nobody has."""
        for session in list(self._sessions.values()):
            if session.messages is not None:
                self._rest(session, at_most=0)

    def stage_state(self, batch: Any) -> None:
        super().stage_state(batch)
        self.are_totals_staged = True

    # ---- storing

    def _check_sessions(self, messages: Sequence[Parts]) -> None:
        limit = self._context.limits.max_session_id_characters
        for parts in messages:
            session_id = session_id_of(parts.rest)
            if session_id is None:
                raise SessionRequiredError(self.path)
            if len(session_id) > limit:
                raise InvalidMessageError(f"the SessionId has {len(session_id)} characters; the limit is {limit}")

    def store(
        self, messages: Sequence[Parts], now_ms: int, origins: Sequence[int] | None = None, *, fed: bool = False
    ) -> None:
        """As `Backlog.store`. Messages without a session, which only a topic can bring here, are dead-lettered."""
        self._staging.touch(self)
        ids = [session_id_of(parts.rest) for parts in messages]
        start, count = 0, len(ids)
        while start < count:
            session_id, stop = ids[start], start + 1
            while stop < count and ids[stop] == session_id:
                stop += 1
            run = messages[start:stop]
            own_origins = None if origins is None else origins[start:stop]
            if session_id is None:
                self._refuse(run, now_ms, own_origins)
            else:
                held = self.messages_of(self._session(session_id))
                held.last = self.last
                held.store(run, now_ms, own_origins, fed=fed)
                self.last = held.last
            start = stop

    def _refuse(self, messages: Sequence[Parts], now_ms: int, origins: Sequence[int] | None) -> None:
        assert self.dead_letters is not None
        stored = [
            Stored(parts, 0 if origins is None else origins[place], now_ms, None if origins is None else origins[place])
            for place, parts in enumerate(messages)
        ]
        self.dead_letters.store_dead(
            stored,
            self.path,
            "Session ID is null",
            "Session enabled entity doesn't allow a message whose session identifier is null.",
        )

    def bury(
        self,
        records: Sequence[bytes],
        reason: str | None,
        description: str | None,
        properties: Mapping[str, Any] | None,
    ) -> None:
        """Stage copies of a session's messages in the dead-letter queue, which has no sessions."""
        self._bury(records, reason, description, properties)

    # ---- sessions at hand

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(self, session_id)
        return session

    def messages_of(self, session: Session) -> SessionMessages:
        """A session's messages, taken up from the store if they are not at hand."""
        messages = session.messages
        if messages is None:
            state = None
            if session.is_stored:
                state = self._staging.journal.get(state_key(session.number))
            if not session.number:
                session.number = self._take_number()
                self._context.sessions[session.number] = session
            messages = session.messages = SessionMessages(self, session, self._context, state)
            messages.inherit(self._settings)
            self._at_hand += 1
        return messages

    def _take_number(self) -> int:
        if self._spare_numbers:
            return self._spare_numbers.pop()
        if not self._block:
            first = self._context.allocate(_BLOCK)
            self._block = range(first, first + _BLOCK)
        number, self._block = self._block[0], self._block[1:]
        return number

    def published(self, session: Session) -> None:
        """A session's messages have become visible, or come back: tell who waits for some."""
        if session.hold is None:
            self._offer(session)
            self._rest(session, at_most=_AT_HAND)

    def _rest(self, session: Session, *, at_most: int) -> None:
        """Let go of a free session's messages if too many are at hand; forget the session if nothing is left of it."""
        messages = session.messages
        if messages is None or session.hold is not None or not messages.is_quiet:
            return
        if session.is_empty:
            self._forget(session, messages)
        elif self._at_hand > at_most and not messages.locked_count:
            if messages.is_swept:
                messages.unload()
                session.messages = None
                self._at_hand -= 1
            else:
                messages.sweep()

    def _forget(self, session: Session, messages: SessionMessages) -> None:
        if session.is_stored:
            if not messages.is_swept:
                messages.sweep()
                return  # it comes here again when that is durable
            batch = self._staging.batch
            batch.delete(session_key(self.number, session.session_id))
            batch.delete(state_key(session.number))
        messages.unload()
        self._at_hand -= 1
        del self._sessions[session.session_id]
        self._free.pop(session, None)
        self._context.sessions.pop(session.number, None)
        self._spare_numbers.append(session.number)

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
            del self._free[session]
            if session.hold is None and session.has_available:
                return self._grant(session, holder, link_name)
        return None

    def wait_for_session(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once when `next_session` may find something; first come, first called."""
        self._waiters[on_free] = None

    def cancel_wait(self, on_free: Callable[[], None]) -> None:
        """Undo `wait_for_session`; no error if it has been called."""
        self._waiters.pop(on_free, None)

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

    def _grant(self, session: Session, holder: object, link_name: str) -> Hold:
        self._free.pop(session, None)
        hold = session.hold = Hold(session, self.messages_of(session), holder, link_name)
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
        hold.messages.lock_until(hold.locked_until_ms)
        self._context.wake(self, hold.locked_until_ms)
        return hold.locked_until_ms

    def end_hold(self, hold: Hold, *, failed: bool) -> None:
        """End a hold (I3)."""
        if hold.is_over:
            return
        hold.is_over = True
        del self._holds[hold]
        session = self._sessions[hold.session_id]
        session.hold = None
        hold.messages.give_back(failed=failed)
        self._offer(session)
        self._rest(session, at_most=_AT_HAND)

    def expire_locks(self, now_ms: int) -> int | None:
        """End holds that are due; wall ms of the next look, None if no session is held."""
        for hold in list(self._holds):
            if hold.locked_until_ms <= now_ms:
                self.end_hold(hold, failed=True)
                hold.on_lost()
        return min((hold.locked_until_ms for hold in self._holds), default=None)

    def _offer(self, session: Session) -> None:
        if session.has_available:
            self._free.setdefault(session)
            self._serve()

    def _serve(self) -> None:
        """Let receivers that wait choose, as long as there are sessions to choose."""
        while self._waiters and self._free:
            on_free = next(iter(self._waiters))
            del self._waiters[on_free]
            on_free()

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
        """Ids of sessions in their order: with active messages, or (given a wall time) whose state was set after it."""
        self._check_open()
        ids = [
            session.session_id
            for session in self._sessions.values()
            if (session.has_active if updated_after_ms is None else session.state_at_ms > updated_after_ms)
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

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[bytes]:
        """As `Intake.peek`, of one session or of all.

        Looking at all costs a look at each session that has messages from `from_sequence` on.
        """
        self._check_open()
        self._staging.write()
        seen = self._look_at_scheduled(from_sequence, count, session_id)
        if session_id is not None:
            known = self._sessions.get(session_id)
            sessions = [known] if known is not None else []
        else:
            sessions = sorted(self._sessions.values(), key=lambda session: session.first)
        for session in sessions:
            if len(seen) == count and (not seen or session.first > seen[-1][0]):
                break  # so are all that follow
            if session.number and not session.is_empty:
                seen += self.messages_of(session).look(from_sequence, count)
                seen.sort(key=lambda entry: entry[0])
                del seen[count:]
                self._rest(session, at_most=_AT_HAND)
        return [plain_payload(record, state) for _, record, state in seen]

    def _look_at_scheduled(self, from_sequence: int, count: int, session_id: str | None) -> list[Seen]:
        seen: list[Seen] = []
        first = max(from_sequence, 0)
        if not self.scheduled_count or first > self.committed:
            return seen
        for key, record in self._staging.journal.scan(*message_span(SCHEDULED, self.number, first, self.committed)):
            if len(seen) == count:
                break
            if session_id is None or session_id_of(take_apart(record).parts.rest) == session_id:
                seen.append((unpack_message(key), record, 2))
        return seen

    @property
    def locked_count(self) -> int:
        """How many messages are locked now."""
        return sum(hold.messages.locked_count for hold in self._holds)

    def statistics(self) -> dict[str, int]:
        return {
            **super().statistics(),
            "locked_count": self.locked_count,
            "session_count": len(self._sessions),
            "held_session_count": len(self._holds),
            "free_session_count": len(self._free),
            "waiting_receiver_count": len(self._waiters),
        }
