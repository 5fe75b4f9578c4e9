"""A partitioned queue or subscription that requires sessions, as receivers see it.

What it is: a session is found in the fragment of its id, and the next free one in the next fragment that has one. What it is not:
the sessions and their locks, which each fragment has.
Spec: docs/explanation/protocol.md, Entities, Sessions.

Invariants:
    I1. All messages of a session are in one fragment.
    I2. No fragment with a free session is skipped twice in a row; one whose store is down gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from isthmus.entities.catalog.limit import Limits
from isthmus.entities.fragment.message_key import place
from isthmus.entities.fragment.port import FragmentStore
from isthmus.entities.fragment.queue import PartitionedQueueBase
from isthmus.entities.member.listener import call_all
from isthmus.entities.port import Sessions
from isthmus.entities.session.hold import Hold
from isthmus.entities.session.queue import SessionQueue
from isthmus.errors import SessionLockLostError, StoreError

__all__ = ["PartitionedSessionQueue"]


class PartitionedSessionQueue(PartitionedQueueBase[SessionQueue]):
    """A partitioned entity that requires sessions; each session is in one fragment."""

    def __init__(
        self, path: str, number: int, stores: Sequence[FragmentStore], limits: Limits, *, is_dead: bool = False
    ) -> None:
        super().__init__(path, number, stores, limits, is_dead=is_dead)
        self._waiters: dict[Callable[[], None], Callable[[], None]] = {}
        self._next_session_index = 0

    @property
    def sessions(self) -> Sessions:
        return self

    def _fragment(self, session_id: str) -> SessionQueue:
        return self._member(place(session_id, len(self.slots)))

    def open_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """As `SessionLocks.open_session`.

        Raises:
            ServerBusyError: the store of the session's fragment is down.
        """
        self.check_receivable()
        return self._fragment(session_id).sessions.open_session(session_id, holder, link_name)

    def next_session(self, holder: object = None, link_name: str = "") -> Hold | None:
        """As `SessionLocks.next_session`, from the next readable fragment that has a free session."""
        self.check_receivable()
        unread: StoreError | None = None
        count = len(self.slots)
        for step in range(count):
            index = (self._next_session_index + step) % count
            member = self.slots[index].usable
            try:
                hold = member.sessions.next_session(holder, link_name) if member is not None else None
            except StoreError as error:
                unread = error
                continue
            if hold is not None:
                self._next_session_index = (index + 1) % count
                return hold
        if unread is not None:
            raise unread
        return None

    def wait_for_session(self, on_free: Callable[[], None]) -> None:
        """Call `on_free` once when `next_session` may find something."""

        def once() -> None:
            self.cancel_wait(on_free)
            on_free()

        self.cancel_wait(on_free)
        self._waiters[on_free] = once
        for member in self._usable:
            member.sessions.wait_for_session(once)

    def cancel_wait(self, on_free: Callable[[], None]) -> None:
        """Undo `wait_for_session`; no error if it has been called."""
        once = self._waiters.pop(on_free, None)
        if once is not None:
            for member in self._members:
                member.sessions.cancel_wait(once)

    def notify(self) -> None:
        """Let waiting receivers check again."""
        call_all([super().notify, *self._waiters.values()])

    def held_session(self, session_id: str, holder: object = None, link_name: str = "") -> Hold:
        """As `SessionLocks.held_session`."""
        self._check_open()
        return self._fragment(session_id).sessions.held_session(session_id, holder, link_name)

    def hold_on(self, holder: object, link_name: str) -> Hold:
        """As `SessionLocks.hold_on`, in the fragments that are up."""
        self._check_open()
        for member in self._usable:
            with suppress(SessionLockLostError):
                return member.sessions.hold_on(holder, link_name)
        raise SessionLockLostError(self.path)

    def list_sessions(self, updated_after_ms: int | None, skip: int, top: int) -> list[str]:
        """As `SessionLocks.list_sessions`, of the fragments that are up."""
        self._check_open()
        ids = [
            each for member in self._usable for each in member.sessions.list_sessions(updated_after_ms, 0, skip + top)
        ]
        return sorted(ids)[skip : skip + top]

    @property
    def has_available(self) -> bool:
        """Whether `next_session` may find something."""
        return any(member.has_available for member in self._usable)

    @property
    def session_count(self) -> int:
        """How many sessions have messages, a state or a receiver."""
        return sum(member.sessions.session_count for member in self._members)

    @property
    def session_lock_count(self) -> int:
        """How many sessions are locked by a receiver."""
        return sum(member.sessions.session_lock_count for member in self._members)

    @property
    def has_listeners(self) -> bool:
        """Whether a receiver has a session, or waits for one."""
        return self.receiver_count > 0 or super().has_listeners

    @property
    def receiver_count(self) -> int:
        """How many receivers have a session, or wait for one."""
        return self.session_lock_count + len(self._waiters)
