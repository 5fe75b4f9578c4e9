"""A session that one receiver has locked.

What it is: the handle with which a receiver renews the lock, releases it, and reads and sets the state. What it is not: the
lock itself (`session.lock`).
Spec: docs/explanation/protocol.md, Sessions.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.entities.session.messages import SessionMessages
from isthmus.entities.storage.staging import Callback, Failure

__all__ = ["Hold"]


def _nothing() -> None:
    """Does nothing."""


class Holds(Protocol):
    """The locks that a hold belongs to (`session.lock`)."""

    def renew_hold(self, hold: Hold) -> int:
        """See `Hold.renew`."""
        ...

    def end_hold(self, hold: Hold, *, failed: bool) -> None:
        """End a hold; `failed`: the locked messages count as failed deliveries."""
        ...

    def state_of(self, hold: Hold) -> bytes | None:
        """See `Hold.get_state`."""
        ...

    def change_state(
        self, hold: Hold, content: bytes | None, on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """See `Hold.set_state`."""
        ...


class Hold:
    """A receiver's lock on a session, until it is released, expires, or is lost with the entity.

    Attributes:
        session_id: which.
        messages: the messages that the receiver acquires and settles.
        locked_until_ms: wall time, as clients are shown it.
        ends_at_ms: monotonic time of its end.
        grace_ms: by how much it lasts longer than its holder is shown.
        is_over: whether it has ended, for any reason.
        holder: the receiver, as given when it was opened.
        link_name: likewise.
        on_lost: called when it ends without `release`.
    """

    __slots__ = (
        "_locks",
        "ends_at_ms",
        "grace_ms",
        "holder",
        "is_over",
        "link_name",
        "locked_until_ms",
        "messages",
        "on_lost",
        "session_id",
    )

    def __init__(self, locks: Holds, messages: SessionMessages, holder: object, link_name: str) -> None:
        self._locks = locks
        self.session_id = messages.session.session_id
        self.messages = messages
        self.locked_until_ms = self.ends_at_ms = self.grace_ms = 0
        self.is_over = False
        self.holder = holder
        self.link_name = link_name
        self.on_lost: Callback = _nothing

    def linger(self, grace_ms: int) -> int:
        """As `renew`; from now on the lock lasts this much longer than its holder is shown."""
        self.grace_ms = grace_ms
        return self.renew()

    def renew(self) -> int:
        """Lock for a full lock duration from now; returns the new locked-until wall ms.

        Raises:
            SessionLockLostError: it is over.
        """
        return self._locks.renew_hold(self)

    def release(self) -> None:
        """Release the session with everything that is locked in it; no error if it is over."""
        self._locks.end_hold(self, failed=False)

    def get_state(self) -> bytes | None:
        """The session's state; None if there is none.

        Raises:
            SessionLockLostError: the hold is over.
        """
        return self._locks.state_of(self)

    def set_state(
        self, state: bytes | None, on_durable: Callback | None = None, on_failed: Failure | None = None
    ) -> None:
        """Replace the session's state; None clears it.

        Raises:
            SessionLockLostError: the hold is over.
            MessageTooLargeError: the state is larger than a message may be.
            QuotaExceededError: the entity is full.
        """
        self._locks.change_state(self, state, on_durable, on_failed)
