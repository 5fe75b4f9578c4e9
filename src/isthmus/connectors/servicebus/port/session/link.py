"""One session link of a source.

What it is: the receiver of one session, or the request for the next free one, and the renewal of its lock. What it is not: the
decision which sessions are locked (`scheduler`), or the account of their deliveries (`account`).
Spec: docs/explanation/protocol.md, Sessions.

Invariants:
    I1. A lock is renewed from when the session is granted until the link is closed, every third of its duration.
    I2. At most one renewal is in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from isthmus.connectors.servicebus.port.end import MarkedReceiver
from isthmus.connectors.servicebus.port.session.scheduler import LockedSession
from isthmus.errors import ConnectionLostError, IsthmusError, LockLostError, OperationTimeoutError, ServerBusyError
from isthmus.transport import Client, Management, Reply

__all__ = ["SessionLink"]

# A namespace answers a request for the next session within a minute, with or without one.
REQUEST_SECONDS = 90.0
ANSWER_SECONDS = 30.0
RETRY_SECONDS = 0.5
# Errors that end one session, or the request for one, and nothing else.
_OF_ONE_SESSION = (LockLostError, OperationTimeoutError, ServerBusyError, ConnectionLostError)


class SessionLink:
    """A link.

    Args:
        number: its number in the account.
        mark: called when a frame arrives.
        client: the connection.
        path: the entity.
        now: monotonic seconds.

    Attributes:
        receiver: of the session.
        locked: the session for the scheduling; None while it is only requested.
        fault: why the lock is lost, although the link is open.
    """

    def __init__(self, number: int, mark: Callable[[], None], client: Client, path: str, now: float) -> None:
        self.number = number
        self.receiver = MarkedReceiver(mark, client, path, in_session=True)
        self.locked: LockedSession | None = None
        self.fault: IsthmusError | None = None
        self._mark = mark
        self._asked_until = now + REQUEST_SECONDS
        self._renewed_at = math.inf
        self._not_before = -math.inf
        self._reply: Reply | None = None
        self._reply_by = math.inf

    @property
    def session_id(self) -> str:
        """The id of its session."""
        return self.receiver.session_id or ""

    @property
    def error(self) -> IsthmusError | None:
        """Why it is unusable."""
        return self.receiver.error or self.fault

    def is_lost_alone(self, error: IsthmusError) -> bool:
        """Whether an error of it affects no other session."""
        return self.receiver.client.error is None and isinstance(error, _OF_ONE_SESSION)

    def update(self, unsettled: int) -> None:
        """Updates the values for the scheduling."""
        if self.locked is not None:
            self.locked.credit, self.locked.unsettled = self.receiver.credit, unsettled

    def granted(self, now: float) -> None:
        """The session is locked from now on."""
        self.locked = LockedSession(since=now, quiet_since=now)
        self._asked_until, self._renewed_at = math.inf, now

    def check_time(self, now: float) -> None:
        """Gives up an unanswered request."""
        if now >= self._asked_until:
            self.fault = OperationTimeoutError(f"'{self.receiver.path}': no answer to the request for a session")

    def renew(self, now: float, lock_seconds: float, management: Callable[[], Management]) -> None:
        """Renews the lock if that is due, and takes the answer.

        Raises:
            IsthmusError: the source refused permanently, or gave no answer.
        """
        reply = self._reply
        if reply is not None and reply.done:
            self._reply, self._reply_by = None, math.inf
            if reply.error is None:
                self._renewed_at = now
            elif isinstance(reply.error, LockLostError):
                self._renewed_at, self.fault = math.inf, reply.error
                self._mark()
            elif reply.error.retryable:
                self._not_before = now + RETRY_SECONDS
            else:
                raise reply.error
        elif reply is not None and now >= self._reply_by:
            raise OperationTimeoutError(f"'{self.receiver.path}/$management': no answer within {ANSWER_SECONDS:g} s")
        elif reply is None and now >= self._renewal_due(lock_seconds):
            self._reply = management().start("renew-session-lock", {"session-id": self.session_id})
            self._reply_by = now + ANSWER_SECONDS
            self._reply.when_done(self._mark)

    def deadline(self, lock_seconds: float) -> float:
        """When `check_time` or `renew` has work even without events."""
        due = self._renewal_due(lock_seconds) if self._reply is None else self._reply_by
        return min(self._asked_until, due)

    def _renewal_due(self, lock_seconds: float) -> float:
        return max(self._renewed_at + lock_seconds / 3, self._not_before)

    def close(self) -> None:
        """Detaches, which releases the session with all its locked messages."""
        if self.receiver.client.error is None:
            self.receiver.close()
