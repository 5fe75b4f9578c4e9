"""The connections of one process to RabbitMQ.

What it is: the common part of the pools of sources and targets: connections are made in threads, and served in the process's
loop; and the list of ends that have events. What it is not: sources or targets.

Invariants:
    I1. Each end has a connection of its own (`connection` explains why), and a source another one for its dead letters (`dead_letter`).
    I2. Only `close` blocks, for at most `CLOSE_SECONDS`.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from isthmus.connectors.rabbitmq.option import BrokerOptions
from isthmus.connectors.rabbitmq.port.handshake import dial
from isthmus.connectors.rabbitmq.protocol.connection import Connection
from isthmus.connectors.servicebus.port.dialer import Dialer
from isthmus.errors import IsthmusError

__all__ = ["CLOSE_SECONDS", "BrokerPool", "Dialing", "Request"]

CLOSE_SECONDS = 5.0


class Dialing(Protocol):
    """An end that waits for its connection."""

    def on_connected(self, connection: Connection) -> None:
        """The connection is open, and belongs to the end now."""
        ...

    def on_closed(self, error: IsthmusError) -> None:
        """No connection could be made."""
        ...


class Request:
    """One opening of an end; its result is discarded if the end was closed meanwhile."""

    def __init__(self, end: Dialing) -> None:
        self.end: Dialing | None = end


class BrokerPool:
    """The common part of `SourcePool` and `TargetPool`."""

    def __init__(self) -> None:
        self._dialer: Dialer[Request, Connection] = Dialer()
        self._connections: dict[Connection, None] = {}
        self._leaving: dict[Connection, float] = {}
        self._kept_until: dict[str, float] = {}  # by broker
        self._marked: dict[int, None] = {}

    # ---- for ends

    def connect(self, end: Dialing, options: BrokerOptions) -> Request:
        """Begins to connect."""
        request = Request(end)
        connection_key = options.host, options.virtual_host
        self._dialer.dial(request, partial(dial, options), connection_key, lambda: request.end is not None)
        return request

    def drop(self, connection: Connection) -> None:
        """An end does not need its connection any more."""
        self._connections.pop(connection, None)
        self._abandon(connection, time.monotonic())

    def leave(self, connection: Connection, now: float) -> None:
        """The same; written bytes are sent first, and the broker confirms the close."""
        self._connections.pop(connection, None)
        if connection.error is not None:
            self._abandon(connection, now)
            return
        self._leaving[connection] = now + CLOSE_SECONDS

    def has_left(self, connection: Connection) -> bool:
        """Whether the broker has confirmed the close of a connection."""
        return connection not in self._leaving

    def kept_until(self, broker: str) -> float:
        """Until when a broker may keep messages for connections of this process whose end it has not detected; it does not count
        these as ready in a queue.
        """
        return self._kept_until.get(broker, -math.inf)

    def mark(self, key: int) -> None:
        """An end has events."""
        self._marked[key] = None

    def unmark(self, key: int) -> None:
        """An end has no events any more."""
        self._marked.pop(key, None)

    # ---- the port

    def descriptors(self) -> Sequence[tuple[int, int]]:
        """The descriptors to poll."""
        found = [(self._dialer.fileno(), select.POLLIN)]
        for connection in (*self._connections, *self._leaving):
            interest = connection.interest()
            if connection.error is None and interest:
                found.append((connection.fileno(), interest))
        return found

    def deadline(self, now: float) -> float:
        """When `service` has work even if no descriptor is ready."""
        if self._marked:
            return now
        due = min(self._leaving.values(), default=math.inf)
        for connection in self._connections:
            if connection.error is None:
                due = min(due, connection.deadline())
        return due

    def service(self, ready: Mapping[int, int], now: float) -> Sequence[int]:
        """Reads and writes; returns the keys of the ends that have events."""
        if self._dialer.fileno() in ready:
            self._take_dialed()
        for connection in list(self._connections):
            is_ready = connection.fileno() in ready
            if is_ready or now >= connection.deadline():
                connection.service(now, is_ready=is_ready)
        if self._leaving:
            self._leave(now)
        marked = list(self._marked)
        self._marked.clear()
        return marked

    def flush(self) -> None:
        """Writes queued bytes, as far as the sockets accept them."""
        for connection in (*self._connections, *self._leaving):
            connection.flush()

    def close(self) -> None:
        """Closes everything; waits until the brokers have read the sent bytes, for `CLOSE_SECONDS` at most."""
        limit = time.monotonic() + CLOSE_SECONDS
        while self._leaving and time.monotonic() < limit:
            poll = select.poll()
            poll.register(self._dialer.fileno(), select.POLLIN)
            for connection in self._leaving:
                connection.flush()
                if connection.error is None:
                    poll.register(connection.fileno(), connection.interest())
            poll.poll(100)
            self._take_dialed()
            self._leave(time.monotonic())
        self._dialer.close()
        for connection in (*self._connections, *self._leaving):
            connection.user = None
            connection.abandon()
        self._connections.clear()
        self._leaving.clear()
        self._marked.clear()

    def _take_dialed(self) -> None:
        for request, connection, error in self._dialer.take():
            self._dialed(request, connection, error)

    def _dialed(self, request: Request, connection: Connection | None, error: IsthmusError | None) -> None:
        end = request.end
        if end is None:
            if connection is not None:
                connection.abandon()
        elif connection is not None:
            self._connections[connection] = None
            end.on_connected(connection)
        elif error is not None:
            end.on_closed(error)

    def _leave(self, now: float) -> None:
        """A connection has left when the broker has answered its close, or closed it."""
        for connection in list(self._leaving):
            connection.is_paused = False
            connection.flush()
            connection.service(now)
            if connection.error is not None or now >= self._leaving[connection]:
                del self._leaving[connection]
                self._abandon(connection, now)

    def _abandon(self, connection: Connection, now: float) -> None:
        if connection.held_seconds:
            until = max(self.kept_until(connection.broker), now + connection.held_seconds)
            self._kept_until[connection.broker] = until
        connection.user = None
        connection.abandon()
