"""A session in the hands of one receiver.

What it is: the handle that a receiver gets, and by which it renews, gives back, and keeps state. What it is not: the
lock itself (`session.lock`).
Spec: docs/explanation/protocol.md, Sessions.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.entities.session.messages import SessionMessages
from isthmus.entities.storage.staging import Callback, Failure

__all__ = ["Hold"]


def _nothing() -> None:
    """Nobody is told."""


class Holds(Protocol):
    """What gives sessions (`session.lock`)."""

    def renew_hold(self, hold: Hold) -> int:
        """See `Hold.renew`."""
        ...

    def end_hold(self, hold: Hold, *, failed: bool) -> None:
        """End a hold; `failed`: that counts as a failed delivery of what is locked."""
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
    """A session in a receiver's hands, until it is released, expires, or is lost with the entity.

    Attributes:
        session_id: which.
        messages: what the receiver acquires from and settles on.
        locked_until_ms: wall time, as clients are shown it.
        ends_at_ms: monotonic time, by which it ends.
        grace_ms: by how much it outlasts what its holder is told.
        is_over: whether it has ended, in whatever way.
        holder: whose it is, as given when it was opened.
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
        """As `renew`; from now on the lock also lasts so much longer than its holder is told."""
        self.grace_ms = grace_ms
        return self.renew()

    def renew(self) -> int:
        """Lock for a full lock duration from now; the new locked-until wall ms.

        Raises:
            SessionLockLostError: it is over.
        """
        return self._locks.renew_hold(self)

    def release(self) -> None:
        """Give the session back with everything that is locked in it; no error if it is over."""
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
