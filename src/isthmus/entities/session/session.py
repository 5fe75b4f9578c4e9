"""One session of an entity, whether or not its messages are loaded.

What it is: the row of a session in memory, with its messages and its hold. What it is not: the messages
(`session.messages`), or its lock (`session.lock`).
Spec: docs/explanation/protocol.md, Sessions.

Invariants:
    I1. A session has a row in the store from its first durable message or state on, until both are removed.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.entities.session.hold import Hold
from isthmus.entities.session.messages import SessionMessages
from isthmus.entities.session.row import SessionRow

__all__ = ["Session"]


class Directory(Protocol):
    """Loads a session's messages (`session.directory`)."""

    def messages_of(self, session: Session) -> SessionMessages:
        """A session's messages, read from the store if they are not loaded."""
        ...


class Session(SessionRow):
    """One session.

    Attributes:
        queue: the entity.
        hold: its receiver's hold; None if it is free.
        messages: None while they are not loaded.
    """

    __slots__ = ("hold", "messages", "queue")

    def __init__(self, queue: Directory, session_id: str, number: int = 0) -> None:
        super().__init__(session_id, number)
        self.queue = queue
        self.hold: Hold | None = None
        self.messages: SessionMessages | None = None

    @property
    def has_available(self) -> bool:
        """Whether a receiver would get a message."""
        return self.active_count > 0 if self.messages is None else self.messages.has_available

    @property
    def has_active(self) -> bool:
        """Whether there are active messages, locked ones included."""
        return (self.messages or self).active_count > 0

    @property
    def first(self) -> int:
        """A sequence number below which it has no active or deferred message."""
        if self.deferred_count if self.messages is None else self.messages.deferred_count:
            return 0
        return self.head if self.messages is None else self.messages.head

    @property
    def is_empty(self) -> bool:
        """Whether nothing of it is left."""
        counts = self.messages or self
        return self.state_bytes is None and not counts.active_count and not counts.deferred_count

    def expire_messages(self, first: int, last: int, now_ms: int, limit: int) -> tuple[int, int] | None:
        """As `Queue.expire_messages`, of this session's messages."""
        return self.queue.messages_of(self).expire_messages(first, last, now_ms, limit)
