"""Which sessions an entity has, and where their messages are.

What it is: sessions loaded, made, taken up from the store and let go of again; messages sorted into them; looks at one
or all. What it is not: who has a session, and in which turn (`session.queue`).
Spec: docs/explanation/protocol.md, Sessions; docs/explanation/store.md.

Invariants:
    I1. A session is forgotten only when nothing of it is staged, on its way to the disk, or left.
    I2. Messages keep the order of the entity's sequence numbers in every session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.entities.error import InvalidMessageError, SessionRequiredError
from isthmus.entities.queue.context import Context
from isthmus.entities.queue.look import LOOK_BYTES, Seen, first_seen
from isthmus.entities.queue.queue import Queue
from isthmus.entities.queue.run import runs_of
from isthmus.entities.queue.state import cursors
from isthmus.entities.record.amend import Stored, take_apart
from isthmus.entities.record.record import Parts
from isthmus.entities.session.messages import SessionMessages
from isthmus.entities.session.row import session_id_of, unpack_row
from isthmus.entities.session.session import Session
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.key import (
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

__all__ = ["SessionDirectory"]

# Sessions whose messages are at hand though nobody has them.
_AT_HAND = 1024
# Numbers taken from the namespace at once, so that deleting the entity is a few ranges.
_BLOCK = 1024
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
    "_max_delivery_count",
    "_dead_letters_expired",
    "max_message_size_bytes",
)


class SessionDirectory(Queue):
    """An entity's sessions.

    Attributes:
        are_totals_staged: whether its row in the batch tells the counts as they are.
    """

    def __init__(self, path: str, number: int, context: Context, state: bytes | None) -> None:
        super().__init__(path, number, context, state)
        self.requires_session = True
        self.are_totals_staged = True
        self._settings: dict[str, Any] = {}
        self._sessions: dict[str, Session] = {}
        # Free sessions with messages, in the order in which they became so.
        self._free: dict[Session, None] = {}
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

    def _let_go(self) -> None:
        """Forget the sessions."""
        for session in self._sessions.values():
            self._context.sessions.pop(session.number, None)
            if session.messages is not None:
                session.messages.is_retired = True
                session.messages.unload()
                session.messages = None
        self._sessions.clear()
        self._free.clear()
        self._at_hand = 0
        self._block = range(0)
        self._spare_numbers.clear()

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
        if self.onward is not None:
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
                held = self.messages_of(self._session(session_id))
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
        self.dead_letters.store_dead(stored, self.path, reason, description)

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

    def published(self, session_id: str) -> None:
        """A session's messages have become visible, have come back, or are gone for good."""
        self._rest(self._sessions[session_id])

    def _rest(self, session: Session, *, at_most: int = _AT_HAND) -> None:
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
        session.messages = None
        self._at_hand -= 1
        del self._sessions[session.session_id]
        self._free.pop(session, None)
        self._context.sessions.pop(session.number, None)
        self._spare_numbers.append(session.number)

    # ---- looking

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """As `Intake.peek`, of one session or of all.

        Looking at all costs a look at each session that has messages from `from_sequence` on.
        """
        self._check_open()
        self._staging.write()
        looked = self._look_at_scheduled(from_sequence, count, session_id)
        seen = first_seen(looked, count)
        is_full = len(seen) == count or len(seen) < len(looked)
        if session_id is not None:
            known = self._sessions.get(session_id)
            sessions = [known] if known is not None else []
        else:
            sessions = sorted(self._sessions.values(), key=lambda session: session.first)
        for session in sessions:
            if is_full and (not seen or session.first > seen[-1][0]):
                break  # so are all that follow
            if session.number and not session.is_empty:
                looked = seen + self.messages_of(session).look(from_sequence, count)
                seen = first_seen(looked, count)
                is_full = is_full or len(seen) == count or len(seen) < len(looked)
                self._rest(session)
        return self._shown(seen)

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


def _readable_id(parts: Parts) -> str | None:
    """The session of a message that was accepted elsewhere; one that cannot be read is none."""
    try:
        return session_id_of(parts.rest)
    except InvalidMessageError:
        return None
