"""The connections of one process to AMQP 1.0 namespaces and brokers, and the ends that use them.

What it is: the common part of the pools of sources and targets: which connection an end uses, the service of the sockets,
and the list of ends that have events. What it is not: sources or targets.

Invariants:
    I1. Ends with an equal key share a connection, up to the AMQP sessions that each allows.
    I2. The work of `service` and `flush` grows with the number of events and of connections, not with that of ends.
    I3. Only `close` blocks, for at most `CLOSE_SECONDS`.
    I4. An unexpected error while a connection is served ends that connection, and affects no end of another one.
"""

from __future__ import annotations

import logging
import math
import select
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from isthmus.connectors.servicebus.port.connection import Remote, SharedConnection, User
from isthmus.connectors.servicebus.port.dialer import Dialer
from isthmus.errors import ConnectionLostError
from isthmus.transport import Client

__all__ = ["ConnectionPool", "Leaving"]

_log = logging.getLogger(__name__)

# A route that is soon opened again reuses its connection.
IDLE_SECONDS = 10.0
CLOSE_SECONDS = 5.0


class Leaving(Protocol):
    """An end that is closing."""

    leave_by: float

    def leave(self, now: float) -> bool:
        """Continues closing; returns whether it is done."""


class ConnectionPool:
    """The common part of `SourcePool` and `TargetPool`."""

    def __init__(self) -> None:
        self._dialer: Dialer[SharedConnection, Client] = Dialer()
        self._connections: dict[Hashable, list[SharedConnection]] = {}
        self._marked: dict[int, None] = {}
        self._leaving: deque[Leaving] = deque()  # in the order of `leave_by`
        self._leaving_marked: dict[Leaving, None] = {}
        self._kept_until: dict[Hashable, float] = {}

    # ---- for ends

    def join(self, user: User, remote: Remote) -> SharedConnection:
        """The connection for an end; the end is notified when it is open."""
        known = self._connections.setdefault(remote.connection_key, [])
        for connection in known:
            if connection.takes(user.sessions):
                connection.join(user)
                return connection
        connection = SharedConnection(remote.connection_key)
        known.append(connection)
        connection.join(user)
        self._dialer.dial(connection, remote.dial, remote.connection_key)
        return connection

    def note_kept(self, connection_key: Hashable, until: float) -> None:
        """The remote side may keep messages until then for a connection whose loss it has not detected."""
        self._kept_until[connection_key] = max(until, self.kept_until(connection_key))

    def kept_until(self, connection_key: Hashable) -> float:
        """Until when the remote side may keep messages for lost connections; its queues' answers are incomplete until then."""
        return self._kept_until.get(connection_key, -math.inf)

    def mark(self, key: int) -> None:
        """An end has events."""
        self._marked[key] = None

    def unmark(self, key: int) -> None:
        """An end has no events any more."""
        self._marked.pop(key, None)

    def add_leaving(self, end: Leaving) -> None:
        """An end is closing."""
        self._leaving.append(end)
        self._leaving_marked[end] = None

    def mark_leaving(self, end: Leaving) -> None:
        """A closing end has work."""
        self._leaving_marked[end] = None

    # ---- the port

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """The descriptors to poll."""
        found = [(self._dialer.fileno(), select.POLLIN)]
        for connection in self._all():
            client = connection.client
            if client is not None and client.error is None:
                found.append((client.fileno(), client.interest()))
        return found

    def deadline(self, now: float) -> float:
        """When `service` has work even if no descriptor is ready."""
        if self._marked or self._leaving_marked:
            return now
        due = self._leaving[0].leave_by if self._leaving else math.inf
        for connection in self._all():
            if connection.close_by:
                due = min(due, connection.close_by)
            elif connection.idle_since and connection.client is not None:
                due = min(due, connection.idle_since + IDLE_SECONDS)
            client = connection.client
            if client is not None:
                due = min(due, math.inf if client.error is None else now, client.deadline() or math.inf)
        return due

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """Reads and writes; returns the keys of the ends that have events."""
        if self._dialer.fileno() in ready:
            self._adopt()
        for connection in self._all():
            client = connection.client
            if client is None:
                continue
            if client.error is None and (client.fileno() in ready or now >= (client.deadline() or math.inf)):
                self._guarded(connection, client.service)
            self._check(connection, now)
        self._leave(now)
        marked = list(self._marked)
        self._marked.clear()
        return marked

    def flush(self) -> None:
        """Writes queued bytes, as far as the sockets accept them."""
        for connection in self._all():
            if connection.client is not None:
                self._guarded(connection, connection.client.flush)

    def close(self) -> None:
        """Closes everything; waits until the namespaces have read the sent bytes, for `CLOSE_SECONDS` at most."""
        limit = time.monotonic() + CLOSE_SECONDS
        self._dialer.close()
        while self._leaving and time.monotonic() < limit:
            self._wait(min(limit, self._leaving[0].leave_by))
            self._leave(time.monotonic())
        for client in (connection.client for connection in self._all()):
            if client is not None:
                client.start_close()
        while any(c.client is not None and c.client.error is None for c in self._all()) and time.monotonic() < limit:
            self._wait(limit)
        for connection in self._all():
            connection.lost(ConnectionLostError("the pool was closed"))
        self._connections.clear()
        self._marked.clear()

    # ---- connections

    def _all(self) -> list[SharedConnection]:
        return [connection for known in self._connections.values() for connection in known]

    @staticmethod
    def _guarded(connection: SharedConnection, call: Callable[[], None]) -> None:
        """Serves a connection, which counts as lost after an unexpected error (I4)."""
        try:
            call()
        except Exception as fault:  # noqa: BLE001 - after any error the other connections continue
            _log.exception("an error at a connection, which is closed")
            connection.lost(ConnectionLostError(f"an error at the connection: {type(fault).__name__}: {fault}"))

    def _adopt(self) -> None:
        for connection, client, error in self._dialer.take():
            if client is not None:
                connection.adopt(client)
            elif error is not None:
                connection.lost(error)
                self._forget(connection)

    def _check(self, connection: SharedConnection, now: float) -> None:
        client = connection.client
        if client is None:
            return
        if client.error is not None:
            connection.lost(client.error)
        elif connection.is_used:
            return
        elif not connection.close_by and now >= connection.idle_since + IDLE_SECONDS:
            client.start_close()
            connection.close_by = now + CLOSE_SECONDS
            return
        elif connection.close_by and now >= connection.close_by:
            connection.lost(ConnectionLostError("the connection was closed"))
        else:
            return
        self._forget(connection)

    def _forget(self, connection: SharedConnection) -> None:
        known = self._connections[connection.connection_key]
        known.remove(connection)
        if not known:
            del self._connections[connection.connection_key]

    def _leave(self, now: float) -> None:
        marked, self._leaving_marked = self._leaving_marked, {}
        done = {end for end in marked if _has_left(end, now)}
        while self._leaving and self._leaving[0].leave_by <= now:
            end = self._leaving.popleft()
            if end not in done:
                _has_left(end, now)
        if done:
            self._leaving = deque(end for end in self._leaving if end not in done)

    def _wait(self, until: float) -> None:
        poll = select.poll()
        used = [(c, c.client) for c in self._all() if c.client is not None and c.client.error is None]
        for connection, client in used:
            self._guarded(connection, client.flush)
            if client.error is None:
                poll.register(client.fileno(), client.interest())
        now = time.monotonic()
        due = now if self._leaving_marked else min([until, *(client.deadline() or math.inf for _, client in used)])
        poll.poll(max(0.0, due - now) * 1000)
        for connection, client in used:
            self._guarded(connection, client.service)


def _has_left(end: Leaving, now: float) -> bool:
    """Whether a closing end is done; one with an unexpected error is (I4)."""
    try:
        return end.leave(now)
    except Exception:  # noqa: BLE001 - as above
        _log.exception("an error at a closing end")
        return True
