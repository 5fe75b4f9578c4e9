"""The limits of a client before its first valid token, and the deadline for it.

What it is: counts and a deadline, pure. What it is not: the check of tokens (`isthmus.broker.security.access`), or the
closing of a connection (`isthmus.broker.peer`). Spec: docs/explanation/protocol.md, Connection, Tokens.

Invariants:
    I1. A client without a token has only a few sessions, links and requests, whatever it sends, for a limited time.
    I2. A client that shows only tokens without rights gets a bounded number of refusals.
"""

from __future__ import annotations

from isthmus.errors import QuotaExceededError, UnauthorizedError

__all__ = ["EarlyAccess"]

# Enough to show a first token, with a margin: SDKs open one or two sessions with two links each.
_SESSIONS = 8
_LINKS = 32
_REQUESTS = 64
# Consecutive tokens without rights. A client with many entities shows as many when its key was removed.
_FAILURES = 100


class EarlyAccess:
    """The time of one connection before its first token.

    Args:
        now: monotonic seconds.
        seconds: until the deadline.

    Attributes:
        is_over: whether the client has shown a token that grants a right.
    """

    __slots__ = ("_deadline", "_failures", "_links", "_requests", "_seconds", "_sessions", "is_over")

    def __init__(self, now: float, seconds: float) -> None:
        self._seconds = seconds
        self._deadline = now + seconds
        self._sessions = self._links = self._requests = self._failures = 0
        self.is_over = False

    def overdue(self, now: float) -> UnauthorizedError | None:
        """The error, if the time is over."""
        if self.is_over or now < self._deadline:
            return None
        return UnauthorizedError(f"No valid token was presented in {self._seconds:g} seconds.")

    def begin_session(self) -> None:
        """A session begins.

        Raises:
            QuotaExceededError: there are too many; the next two raise it too.
        """
        if not self.is_over:
            self._sessions += 1
            if self._sessions > _SESSIONS:
                raise QuotaExceededError(f"More than {_SESSIONS} sessions began before the first token.")

    def attach_link(self) -> None:
        """A link is attached."""
        if not self.is_over:
            self._links += 1
            if self._links > _LINKS:
                raise QuotaExceededError(f"More than {_LINKS} links were attached before the first token.")

    def request(self, count: int) -> None:
        """Requests were sent."""
        if not self.is_over:
            self._requests += count
            if self._requests > _REQUESTS:
                raise QuotaExceededError(f"More than {_REQUESTS} requests were sent before the first token.")

    def fail(self) -> UnauthorizedError | None:
        """Counts a token that granted no right; returns the error, if there were too many."""
        self._failures += 1
        if self._failures <= _FAILURES:
            return None
        return UnauthorizedError(f"{self._failures} tokens in a row opened nothing.")

    def succeed(self) -> None:
        """A token granted a right, or was accepted."""
        self._failures = 0
