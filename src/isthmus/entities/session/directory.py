"""The sessions of an entity, and their messages.

What it is: sessions loaded, created, read from the store and unloaded; peeks at one or all. What it is not: the locks of
sessions, and the order in which they are given (`session.lock`).
Spec: docs/explanation/protocol.md, Sessions; docs/explanation/store.md.

Invariants:
    I1. A session is dropped only when nothing of it is staged, in an unfinished commit, or left.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.member.peek import PeekedRecord, first_records
from isthmus.entities.member.state import cursors
from isthmus.entities.queue.run import runs_of
from isthmus.entities.session.messages import SessionEntity, SessionMessages
from isthmus.entities.session.row import unpack_row
from isthmus.entities.session.session import Session
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import DEFERRED, MESSAGE, SESSION, STATE, numbered_span, session_key, state_key

__all__ = ["SessionDirectory"]

# Free sessions whose messages stay loaded.
_AT_HAND = 1024
# Numbers taken from the namespace together, so that deleting the entity is a few ranges.
_BLOCK = 1024


class DirectoryEntity(SessionEntity, Protocol):
    """The entity that has the sessions."""

    @property
    def context(self) -> Context:
        """The objects that it shares with the other entities in its store."""
        ...

    def forgotten(self, session: Session) -> None:
        """A session was dropped, as nothing of it is left."""
        ...


class SessionDirectory:
    """An entity's sessions.

    Args:
        entity: that has them.
    """

    def __init__(self, entity: DirectoryEntity) -> None:
        self._entity = entity
        self._context = entity.context
        self._staging = entity.context.staging
        self._settings: dict[str, Any] = {}
        self._sessions: dict[str, Session] = {}
        self._at_hand = 0
        self._block = range(0)
        self._spare_numbers: list[int] = []

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def __len__(self) -> int:
        return len(self._sessions)

    def __getitem__(self, session_id: str) -> Session:
        return self._sessions[session_id]

    def get(self, session_id: str) -> Session | None:
        """The session of an id; None if it is unknown."""
        return self._sessions.get(session_id)

    def session(self, session_id: str) -> Session:
        """The session of an id, which may be new."""
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(self, session_id)
        return session

    # ---- start, failure, end

    def load(self) -> list[Session]:
        """Read the sessions from the store; returns those with active messages."""
        journal = self._staging.journal
        for key, row in journal.scan(*numbered_span(SESSION, self._entity.number)):
            number, at_ms, session_state = unpack_row(row)
            session = Session(self, key[5:].decode(), number)
            session.is_stored = True
            session.state_at_ms = at_ms
            session.state_bytes = None if session_state is None else len(session_state)
            self._sessions[session.session_id] = session
            self._context.sessions[number] = session
        sessions = list(self._sessions.values())
        states = journal.get_many([state_key(session.number) for session in sessions])
        for session, state in zip(sessions, states, strict=True):
            if state is not None:
                session.last, session.head, session.active_count, session.deferred_count = cursors(state)
        return [session for session in sessions if session.active_count]

    def wipe(self, batch: Batch) -> None:
        """Stage the removal of all sessions, and drop them."""
        numbers = [session.number for session in self._sessions.values() if session.number]
        numbers += [*self._spare_numbers, *self._block]
        for first, last in runs_of(sorted(numbers)):
            for table in (MESSAGE, DEFERRED, STATE):
                batch.delete_range(numbered_span(table, first)[0], numbered_span(table, last)[1])
        batch.delete_range(*numbered_span(SESSION, self._entity.number))
        for session in self._sessions.values():
            if session.messages is not None:
                session.messages.is_deleted = True
        self.let_go()

    def let_go(self) -> None:
        """Drop the sessions."""
        for session in self._sessions.values():
            self._context.sessions.pop(session.number, None)
            if session.messages is not None:
                session.messages.is_retired = True
                session.messages.unload()
                session.messages = None
        self._sessions.clear()
        self._at_hand = 0
        self._block = range(0)
        self._spare_numbers.clear()

    def inherit(self, settings: dict[str, Any]) -> None:
        """Give sessions the entity's settings, by the names of attributes."""
        self._settings = settings
        for messages in self._loaded():
            messages.inherit(settings)

    def release_store(self) -> None:
        """Close the scans of the store that reading may keep open."""
        for messages in self._loaded():
            messages.release_store()

    def housekeep(self) -> None:
        """Unload the messages of free sessions."""
        for session in self:
            if session.messages is not None:
                self.rest(session, at_most=0)

    def _loaded(self) -> Iterator[SessionMessages]:
        return (session.messages for session in self._sessions.values() if session.messages is not None)

    # ---- loaded sessions

    def messages_of(self, session: Session) -> SessionMessages:
        """A session's messages, read from the store if they are not loaded."""
        messages = session.messages
        if messages is None:
            state = None
            if session.is_stored:
                state = self._staging.journal.get(state_key(session.number))
            if not session.number:
                session.number = self._take_number()
                self._context.sessions[session.number] = session
            messages = session.messages = SessionMessages(self._entity, session, self._context, state)
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

    def rest(self, session: Session, *, at_most: int = _AT_HAND) -> None:
        """Unload a free session's messages if too many are loaded; drop the session if nothing of it is left."""
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
                return  # this is called again when that is durable
            batch = self._staging.batch
            batch.delete(session_key(self._entity.number, session.session_id))
            batch.delete(state_key(session.number))
        messages.unload()
        session.messages = None
        self._at_hand -= 1
        del self._sessions[session.session_id]
        self._entity.forgotten(session)
        self._context.sessions.pop(session.number, None)
        self._spare_numbers.append(session.number)

    # ---- peeking

    def peek_records(
        self, from_sequence: int, count: int, session_id: str | None, others: list[PeekedRecord]
    ) -> list[PeekedRecord]:
        """Messages of one session or of all.

        A peek of all reads each session that has messages from `from_sequence` on.

        Args:
            from_sequence: the first sequence number.
            count: how many, at most.
            session_id: of one session; None reads all.
            others: records read elsewhere.

        Returns:
            As many as one peek returns, in order.
        """
        seen = first_records(others, count)
        is_full = len(seen) == count or len(seen) < len(others)
        if session_id is not None:
            known = self._sessions.get(session_id)
            sessions = [known] if known is not None else []
        else:
            sessions = sorted(self._sessions.values(), key=lambda session: session.first)
        for session in sessions:
            if is_full and (not seen or session.first > seen[-1][0]):
                break  # so are all that follow
            if session.number and not session.is_empty:
                others = seen + self.messages_of(session).peek_records(from_sequence, count)
                seen = first_records(others, count)
                is_full = is_full or len(seen) == count or len(seen) < len(others)
                self.rest(session)
        return seen
