"""The free sessions of an entity, and the receivers that wait for one.

What it is: the order on both sides; pure. What it is not: the locks of sessions (`session.lock`).
Spec: docs/explanation/protocol.md, Sessions.

Invariants:
    I1. Free sessions with messages are given in the order in which they became free, and waiting receivers get them
        in the order of their requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from isthmus.entities.member.listener import call_all
from isthmus.entities.session.session import Session

__all__ = ["FreeSessions"]


class FreeSessions:
    """Sessions with messages and without a receiver, and receivers without a session.

    Args:
        sessions: in the order in which they became free.
    """

    __slots__ = ("_is_serving", "_sessions", "_waiters")

    def __init__(self, sessions: Iterable[Session]) -> None:
        self._sessions: dict[Session, None] = dict.fromkeys(sessions)
        self._waiters: dict[Callable[[], None], None] = {}
        self._is_serving = False

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def waiting_count(self) -> int:
        """How many receivers wait."""
        return len(self._waiters)

    def reset(self, sessions: Iterable[Session]) -> None:
        """The sessions were loaded again, or are removed; waiting receivers continue to wait."""
        self._sessions = dict.fromkeys(sessions)

    def add(self, session: Session) -> None:
        """A session is free, and has messages."""
        self._sessions.setdefault(session)
        self._serve()

    def discard(self, session: Session) -> None:
        """It is locked by a receiver, or nothing of it is left."""
        self._sessions.pop(session, None)

    def next(self) -> Session | None:
        """The session that has waited longest."""
        while self._sessions:
            session = next(iter(self._sessions))
            if session.hold is None and session.has_available:
                return session
            del self._sessions[session]
        return None

    def postpone(self, session: Session) -> None:
        """It cannot be given now: the others precede it."""
        del self._sessions[session]
        self._sessions[session] = None

    def wait(self, on_free: Callable[[], None]) -> None:
        """Call once when there may be a free session; in the order of the calls."""
        self._waiters[on_free] = None

    def cancel(self, on_free: Callable[[], None]) -> bool:
        """Undo `wait`; returns whether it had not been called."""
        if on_free not in self._waiters:
            return False
        del self._waiters[on_free]
        return True

    def wake_all(self) -> None:
        """Call all waiting receivers, so that they check again."""
        waiters, self._waiters = list(self._waiters), {}
        call_all(waiters)

    def _serve(self) -> None:
        """Let waiting receivers choose, as long as there are free sessions.

        A receiver that releases its session immediately calls this again: the outer call then goes on with the next receiver.
        """
        if self._is_serving:
            return
        self._is_serving = True
        try:
            call_all(self._next_waiters())
        finally:
            self._is_serving = False

    def _next_waiters(self) -> Iterator[Callable[[], None]]:
        while self._waiters and self._sessions:
            on_free = next(iter(self._waiters))
            del self._waiters[on_free]
            yield on_free
