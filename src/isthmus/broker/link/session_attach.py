"""Receivers of a session: the request at attach, the wait for a session, and the link that has it.

What it is: the session filter read and echoed, the wait of a receiver that takes any session, and a `SenderLink` that
holds the lock of a session until it is closed. What it is not: the locks of sessions (`isthmus.entities.session.lock`), nor the right to
receive (`isthmus.broker.peer`).
Spec: docs/explanation/protocol.md, Links, Sessions, Clients.

Invariants:
    I1. An attach is answered once: with the session that it got, or with why it got none.
    I2. The end of the link, for any reason, releases the session.
    I3. A link that is gone, or may not receive any more, takes no session; a grant that fails releases it at once.
    I4. In receive-and-delete each delivery renews the session's lock, which lasts some seconds longer than the time sent to
        the client: a client that waits for the next message for exactly the lock's time ends its wait before the lock ends.
    I5. A message that cannot be read is dead-lettered after MaxDeliveryCount receivers: it does not block its session for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from isthmus.amqp import Link
from isthmus.amqp.performative import Source
from isthmus.amqp.types import Described, Long, Symbol
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.sender_link import Carrier, SenderLink
from isthmus.entities.port import SessionLock, Sessions
from isthmus.errors import InvalidArgumentError, IsthmusError, OperationTimeoutError

__all__ = [
    "DEFAULT_WAIT_SECONDS",
    "SessionSenderLink",
    "SessionWait",
    "Wanted",
    "dotnet_ticks",
    "wait_seconds",
    "wanted_session",
]

# How long a receiver waits for any session by default: the service's own limit.
DEFAULT_WAIT_SECONDS = 60.0
# Only the session is locked: a client that waits as long as that lock lasts must reach the end of its wait.
_GRACE_MS = 5_000
_FILTER = "com.microsoft:session-filter"
_TIMEOUT = "com.microsoft:timeout"
_LOCKED_UNTIL = Symbol("com.microsoft:locked-until-utc")
# .NET counts from the year 1, in units of 100 ns.
_TICKS_AT_EPOCH = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


class Wanted(NamedTuple):
    """The session filter of an attach.

    Attributes:
        session_id: None asks for the next available one.
        key: the name of the filter.
        descriptor: of the filter's value; None if it had none.
    """

    session_id: str | None
    key: Any
    descriptor: Any

    def granted(self, source: Source, session_id: str) -> Source:
        """The source with the granted session in the filter, in the form of the request."""
        value: Any = session_id if self.descriptor is None else Described(self.descriptor, session_id)
        return replace(source, filter={**(source.filter or {}), self.key: value})


def wanted_session(source: Any) -> Wanted | None:
    """The session filter of an attach's source; None if it has none.

    Raises:
        InvalidArgumentError: the filter's value is neither a string nor null.
    """
    if not isinstance(source, Source):
        return None
    for key, value in (source.filter or {}).items():
        if str(key) == _FILTER:
            descriptor, plain = (value.descriptor, value.value) if isinstance(value, Described) else (None, value)
            if plain is not None and not isinstance(plain, str):
                raise InvalidArgumentError(f"the session filter is {type(plain).__name__}; expected a string or null")
            return Wanted(None if plain is None else str(plain), key, descriptor)
    return None


def wait_seconds(link: Link) -> float:
    """How long an attach may wait for a session."""
    value = {str(key): value for key, value in (link.properties or {}).items()}.get(_TIMEOUT)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value / 1000
    return DEFAULT_WAIT_SECONDS


def dotnet_ticks(wall_ms: int) -> int:
    """A wall time in the ticks of .NET clients."""
    return _TICKS_AT_EPOCH + wall_ms * _TICKS_PER_MS


class SessionSenderLink(SenderLink):
    """One link on which a client receives a session.

    Args:
        link: whose sender we are, not answered yet.
        path: the entity as the client wrote it.
        wanted: what the attach asked for.
        hold: the session's lock.
        carrier: the connection.
        transactions: of the connection.
    """

    def __init__(
        self, link: Link, path: str, wanted: Wanted, hold: SessionLock, carrier: Carrier, transactions: Transactions
    ) -> None:
        link.accept(
            source=wanted.granted(link.source, hold.session_id),
            properties={_LOCKED_UNTIL: Long(dotnet_ticks(hold.locked_until_ms))},
        )
        super().__init__(link, path, hold.messages, carrier, transactions)
        self.hold = hold
        if self._deletes:
            hold.linger(_GRACE_MS)

    def deliver(self, limit: int) -> int:
        """As for any receiving link; I4."""
        count = super().deliver(limit)
        if count and self._deletes:
            self.hold.renew()
        return count

    def keep(self, token: bytes) -> None:
        """As for any receiving link, of the session's lock; I4."""
        self.hold.renew()

    def fail(self, token: bytes) -> None:
        """As for any receiving link; the end of the session's lock by `close` would count as no failed delivery (I5)."""
        with suppress(IsthmusError):
            self.queue.abandon([token])

    @property
    def activity(self) -> object:
        """As for any receiving link; a session whose lock is renewed is not idle."""
        return super().activity, self.hold.locked_until_ms

    def close(self) -> None:
        """The link is gone, and with it the session's lock."""
        super().close()
        self.hold.release()


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Cancels the call, and drops its references."""
        ...


class SessionWait:
    """An attach that waits for the next available session.

    Args:
        queue: the entity.
        holder: the connection that will have the session.
        link_name: likewise.
        is_wanted: whether the link is still open; raises IsthmusError where it may not receive any more.
        granted: called with the session's lock.
        refused: called with the error if there is none.
    """

    def __init__(
        self,
        queue: Sessions,
        holder: object,
        link_name: str,
        is_wanted: Callable[[], bool],
        granted: Callable[[SessionLock], None],
        refused: Callable[[IsthmusError], None],
    ) -> None:
        self._queue = queue
        self._holder = holder
        self._link_name = link_name
        self._is_wanted = is_wanted
        self._granted = granted
        self._refused = refused
        self._is_over = False
        # Calls `time_out`; set by the owner.
        self.timer: Timer | None = None

    def try_grant(self) -> bool:
        """Takes a session if there is one; returns whether the wait is over."""
        if self._is_over:
            return True
        try:
            if not self._is_wanted():
                self._end()
                return True
            hold = self._queue.next_session(self._holder, self._link_name)
        except IsthmusError as error:
            self._end()
            self._refused(error)
            return True
        if hold is None:
            self._queue.wait_for_session(self._look_again)
            return False
        self._end()
        self._granted(hold)
        return True

    def _end(self) -> None:
        """Ends the wait and cancels its timer: a client may have asked for weeks."""
        self._is_over = True
        if self.timer is not None:
            self.timer.cancel()

    def _look_again(self) -> None:
        self.try_grant()

    def time_out(self) -> None:
        """The time is over."""
        if not self._is_over:
            self.cancel()
            self._refused(
                OperationTimeoutError(f"No session of '{self._queue.path}' became available in the time given.")
            )

    def cancel(self) -> None:
        """The attach is no longer wanted."""
        self._end()
        self._queue.cancel_wait(self._look_again)
