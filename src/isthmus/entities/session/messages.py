"""The messages of one session: a queue of their own, under a number of their own, that one receiver at a time has.

What it is: the differences from a plain queue: locks end with the session's, counts are added to the entity's,
and the session's row is written and removed with it. What it is not: the order of the messages (`session.backlog`), the choice of a session,
or its lock (`session.lock`).
Spec: docs/explanation/protocol.md, Sessions; docs/explanation/store.md.

Invariants:
    I1. The entity's counts are the sums of its sessions', in every written batch.
"""

from __future__ import annotations

from typing import Any, Protocol

from isthmus.entities.member.context import Context
from isthmus.entities.queue import settlement
from isthmus.entities.queue.queue import Queue
from isthmus.entities.session.backlog import SessionBacklog
from isthmus.entities.session.row import SessionRow, pack_row
from isthmus.entities.storage.blob import Payload
from isthmus.entities.storage.journal import Batch
from isthmus.entities.storage.key import session_key
from isthmus.errors import SessionLockLostError

__all__ = ["SessionMessages"]


def _shared(name: str) -> Any:
    """A count that is the entity's as well: a change here changes it there, too."""
    own = f"_own_{name}"

    def get(messages: SessionMessages) -> Any:
        return messages.__dict__.get(own, 0)

    def put(messages: SessionMessages, value: int) -> None:
        entity = messages._entity
        if entity is not None:
            setattr(entity, name, getattr(entity, name) + value - messages.__dict__[own])
            entity.are_totals_staged = False
        messages.__dict__[own] = value

    return property(get, put)


class SessionEntity(Protocol):
    """The entity that a session belongs to.

    Attributes:
        are_totals_staged: whether its row in the batch has the present counts.
        last: highest sequence number given out.
    """

    are_totals_staged: bool
    last: int

    @property
    def path(self) -> str:
        """Canonical."""
        ...

    @property
    def number(self) -> int:
        """Number of its row in the store."""
        ...

    @property
    def is_fragment(self) -> bool:
        """Whether it is a part of a partitioned entity."""
        ...

    @property
    def dead_letters(self) -> Queue | None:
        """Its dead-letter queue."""
        ...

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        """Messages of every state, scheduled ones included."""
        ...

    def published(self, session_id: str) -> None:
        """A session's messages have become visible, have become available again, or are removed permanently."""
        ...

    def stage_state(self, batch: Batch) -> None:
        """Stage its row."""
        ...


class SessionMessages(Queue):
    """One session's messages.

    Attributes:
        session: that has them.
        backlog: the messages in their order.
        is_retired: whether the session was lost to a failed commit; every call then raises SessionLockLostError.
    """

    _BACKLOG = SessionBacklog
    backlog: SessionBacklog
    # None while counts are loaded: the entity has counted them already.
    _entity: SessionEntity | None = None

    def __init__(self, entity: SessionEntity, session: SessionRow, context: Context, state: bytes | None) -> None:
        super().__init__(entity.path, session.number, context, state)
        self.session = session
        self.is_retired = False
        self.requires_session = True
        self.is_fragment = entity.is_fragment
        self.dead_letters = entity.dead_letters
        self._entity = entity
        if state is None:
            self.backlog.begin(self, entity.last)

    def inherit(self, settings: dict[str, Any]) -> None:
        """Take the entity's settings, by the names of attributes."""
        self.__dict__.update(settings)

    # ---- shared counts, see I1

    active_count: int = _shared("active_count")
    deferred_count: int = _shared("deferred_count")
    size_bytes: int = _shared("size_bytes")
    delivered_total: int = _shared("delivered_total")
    settled_total: int = _shared("settled_total")
    expired_total: int = _shared("expired_total")

    # ---- locks

    def lock_until(self, until_ms: int) -> None:
        """Show this end of the lock in messages delivered from now on: wall ms."""
        self.session_until_ms = until_ms

    def end_locks(self, *, failed: bool) -> None:
        """End all locks, since the session's has ended.

        Args:
            failed: whether that counts as a failed delivery of each locked message.
        """
        spans = self.locks.take_all()
        if failed:
            settlement.end_locks(self, spans)
        else:
            settlement.return_spans(self, spans)

    def check_open(self) -> None:
        super().check_open()
        if self.is_retired:
            raise SessionLockLostError(self.path, self.session.session_id)

    # ---- group commit

    def stage_state(self, batch: Batch) -> None:
        entity, session = self._entity, self.session
        if self.is_deleted or self.is_retired or entity is None:
            return
        super().stage_state(batch)
        if not session.is_stored:
            session.is_stored = True
            batch.put(session_key(entity.number, session.session_id), pack_row(session.number, 0, None))
        if not entity.are_totals_staged:
            entity.stage_state(batch)

    def sweep(self) -> None:
        """Stage the deletion of dead messages that are still in the store."""
        self.backlog.sweep(self)

    @property
    def is_swept(self) -> bool:
        """Whether no known dead message is left in the store."""
        return self.backlog.is_swept

    @property
    def is_quiet(self) -> bool:
        """Whether nothing of it is staged or in an unfinished commit, so that the store is complete."""
        return not self.backlog.commits and not self._staging.has_changes_of(self)

    def publish(self, sealed: Any) -> None:
        super().publish(sealed)
        if self._entity is not None and not self.is_retired and not self.is_deleted:
            self._entity.published(self.session.session_id)

    def unload(self) -> None:
        """Write the counts into the session and close the scan; the object must not be used any more."""
        session = self.session
        session.active_count, session.deferred_count = self.active_count, self.deferred_count
        session.head, session.last = self.head, self.last
        self._entity = None
        self.backlog.window.reset(self.head, caught_up=False)

    # ---- peeking

    @property
    def quota_number(self) -> int:
        assert self._entity is not None
        return self._entity.number

    def peek(self, from_sequence: int, count: int, session_id: str | None = None) -> list[Payload]:
        assert self._entity is not None
        return self._entity.peek(from_sequence, count, self.session.session_id)
