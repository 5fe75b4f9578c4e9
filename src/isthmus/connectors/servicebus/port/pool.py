"""The connections of one process to AMQP 1.0 namespaces and brokers, and the ends that use them.

What it is: the part of a pool that sources and targets have in common: which connection an end uses, the service of the sockets,
and the account of the ends that have something to tell. What it is not: sources or targets.

Invariants:
    I1. Ends with the same place share a connection, up to so many AMQP sessions on each as it takes.
    I2. The work of `service` and `flush` grows with what happened and with the number of connections, not with that of ends.
    I3. Nothing here blocks but `close`, for at most `CLOSE_SECONDS`.
    I4. A fault that nobody foresaw, met while a connection is served, costs that connection, and no end of another one.
"""

from __future__ import annotations

import logging
import math
import select
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Protocol

from isthmus.connectors.servicebus.port.connection import Peer, SharedConnection, User
from isthmus.connectors.servicebus.port.dialer import Dialer
from isthmus.errors import ConnectionLostError
from isthmus.transport import Client

__all__ = ["ConnectionPool", "Leaving"]

_log = logging.getLogger(__name__)

# A route that is opened again finds its connection, if that is soon.
IDLE_SECONDS = 10.0
CLOSE_SECONDS = 5.0


class Leaving(Protocol):
    """An end that is closed, and not done yet."""

    leave_by: float

    def leave(self, now: float) -> bool:
        """Does what is left to do; whether that was all."""


class ConnectionPool:
    """What `SourcePool` and `TargetPool` have in common."""

    def __init__(self) -> None:
        self._dialer: Dialer[SharedConnection, Client] = Dialer()
        self._connections: dict[Hashable, list[SharedConnection]] = {}
        self._marked: dict[int, None] = {}
        self._leaving: deque[Leaving] = deque()  # in the order of `leave_by`
        self._leaving_marked: dict[Leaving, None] = {}
        self._held_until: dict[Hashable, float] = {}

    # ---- for ends

    def join(self, user: User, peer: Peer) -> SharedConnection:
        """The connection that an end uses; it tells the end when it is open."""
        known = self._connections.setdefault(peer.place, [])
        for connection in known:
            if connection.takes(user.sessions):
                connection.join(user)
                return connection
        connection = SharedConnection(peer.place)
        known.append(connection)
        connection.join(user)
        self._dialer.dial(connection, peer.dial, peer.place)
        return connection

    def hold(self, place: Hashable, until: float) -> None:
        """A peer may hold messages until then for a connection whose end it has not noticed."""
        self._held_until[place] = max(until, self.held_until(place))

    def held_until(self, place: Hashable) -> float:
        """Until when a peer may hold messages for connections that were lost; what it says of its queues is not all until then."""
        return self._held_until.get(place, -math.inf)

    def mark(self, key: int) -> None:
        """An end has something to tell."""
        self._marked[key] = None

    def unmark(self, key: int) -> None:
        """An end has nothing to tell any more."""
        self._marked.pop(key, None)

    def add_leaving(self, end: Leaving) -> None:
        """An end is closed, and not done yet."""
        self._leaving.append(end)
        self._leaving_marked[end] = None

    def mark_leaving(self, end: Leaving) -> None:
        """An end that is closed has something to do."""
        self._leaving_marked[end] = None

    # ---- the port

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """What to poll."""
        found = [(self._dialer.fileno(), select.POLLIN)]
        for connection in self._all():
            client = connection.client
            if client is not None and client.error is None:
                found.append((client.fileno(), client.interest()))
        return found

    def deadline(self, now: float) -> float:
        """When `service` has something to do though no descriptor is ready."""
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
        """Reads and writes; the keys of the ends that have something to tell."""
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
        """Writes what is queued, as far as the sockets take it."""
        for connection in self._all():
            if connection.client is not None:
                self._guarded(connection, connection.client.flush)

    def close(self) -> None:
        """Closes everything; waits until the namespaces have taken in what was sent before, for `CLOSE_SECONDS` at most."""
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
        """Serve a connection, which is lost where that meets a fault (I4)."""
        try:
            call()
        except Exception as fault:  # noqa: BLE001 - whatever it is, the other connections go on
            _log.exception("a fault at a connection, which is given up")
            connection.lost(ConnectionLostError(f"a fault at the connection: {type(fault).__name__}: {fault}"))

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
        known = self._connections[connection.place]
        known.remove(connection)
        if not known:
            del self._connections[connection.place]

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
    """Whether a closed end is done; one that meets a fault is (I4)."""
    try:
        return end.leave(now)
    except Exception:  # noqa: BLE001 - as above
        _log.exception("a fault at an end that is closed")
        return True
