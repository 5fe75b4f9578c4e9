"""The thread of the control port.

What it is: one loop that polls all connections, accepts those with the key (`control.door`), passes readers' messages to the account of
their query (`control.query`), and carries out the effects. What it is not: a decision; those are the account's (`control.account`).

Invariants:
    I1. Only this thread touches connections, and no other thread waits for it.
    I2. Callbacks are called here, outside locks; an exception of one is logged, and ends nothing.
    I3. A question is answered before all other effects of its round, with the times for which claims are held at the answer.
    I4. A connection that sends anything but a reader's message is closed; all others are served.
    I5. Messages that connections sent before one of them began a lease are processed before that lease.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from isthmus.bridge.frame import Kind, pack_json
from isthmus.bridge.host.channel import Channel, ChannelError
from isthmus.bridge.host.control.door import Door
from isthmus.bridge.host.control.effect import Add, Assign, Death, Effect, Grant, Plan, SendFrame
from isthmus.bridge.host.control.message import Lease, Look, Message, message_of
from isthmus.bridge.host.control.query import Queries
from isthmus.bridge.lease.crash_search import Plan as CrashPlan
from isthmus.bridge.report import RouteReport

__all__ = ["Callbacks", "ControlLoop"]

log = logging.getLogger(__name__)

T = TypeVar("T")
_KINDS = frozenset({Kind.LEASE, Kind.REPORT, Kind.DIED, Kind.ENDED, Kind.LOOK})
# So that a recurring fault does not fill the disk with log lines.
_FAULT_SECONDS = 0.5


class Callbacks(NamedTuple):
    """The driver's callbacks."""

    claim_seconds: Callable[[str], float]
    plan_of: Callable[[str], CrashPlan]
    on_death: Callable[[str, Mapping[str, RouteReport]], None]


class _Connection:
    """One connection that has the key."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = Channel(sock, _KINDS)
        self.query = ""  # whose lease it carries
        self.is_stray = False  # its query is unknown: it was asked to end, and its messages are ignored
        try:
            peer, own = sock.getpeername(), sock.getsockname()
            self.name, self.is_local = f"{peer[0]}:{peer[1]}", peer[0] == own[0]
        except OSError:  # it is gone already
            self.name, self.is_local = "a connection", False

    def receive(self) -> tuple[list[tuple[int, bytes]], ChannelError | None]:
        """The frames received, up to the end of the stream if it has ended; and the error of bytes that are not frames."""
        frames: list[tuple[int, bytes]] = []
        try:
            while received := self.channel.receive():
                frames += received
        except ChannelError as error:
            return frames, error
        return frames, None


class ControlLoop:
    """The connections of a control port.

    Args:
        door: accepts them.
        queries: the queries of the run.
        wake: readable when effects wait, or the loop has to end.
        callbacks: the driver's.
    """

    def __init__(self, door: Door, queries: Queries, wake: socket.socket, callbacks: Callbacks) -> None:
        self._door = door
        self._queries = queries
        self._wake = wake
        self._callbacks = callbacks
        self._closing = threading.Event()
        self._connections: dict[int, _Connection] = {}
        self._number = 0
        self._unknown: set[str] = set()

    def end(self) -> None:
        """Asks `run` to return; the caller wakes it."""
        self._closing.set()

    def run(self) -> None:
        """Serves until `end`, then reads all connections to their end and closes."""
        while not self._closing.is_set():
            try:
                self._serve()
            except Exception:
                log.exception("control port: a fault; it continues")
                self._closing.wait(_FAULT_SECONDS)
        self._receive(list(self._connections))
        for number in list(self._connections):
            self._drop(number, is_cut_off=True)
        self._door.close()
        self._wake.close()

    def _serve(self) -> None:
        ready = self._poll()
        if self._wake.fileno() in ready:
            self._wake.recv(4096)
        self._receive([number for number, each in self._connections.items() if each.channel.fileno() in ready])
        for sock in self._door.service(ready, time.monotonic()):
            self._number += 1
            self._connections[self._number] = _Connection(sock)
        while (effect := self._queries.take()) is not None:
            self._carry_out(*effect)
        for connection in self._connections.values():
            connection.channel.flush()

    def _poll(self) -> dict[int, int]:
        now = time.monotonic()
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        for descriptor, interest in self._door.descriptors(now):
            poll.register(descriptor, interest)
        for connection in self._connections.values():
            poll.register(connection.channel, connection.channel.interest())
        seconds = self._door.deadline(now) - now
        return dict(poll.poll(None if math.isinf(seconds) else max(0, math.ceil(seconds * 1000))))

    # ---- messages

    def _receive(self, numbers: list[int]) -> None:
        arrivals = {number: self._connections[number].receive() for number in numbers}
        begins = {number for number, (frames, _) in arrivals.items() if any(kind == Kind.LEASE for kind, _ in frames)}
        if begins:
            others = [number for number in self._connections if number not in arrivals]
            arrivals |= {number: self._connections[number].receive() for number in others}
        for number in sorted(arrivals, key=lambda each: (each in begins, each)):
            frames, fault = arrivals[number]
            connection = self._connections[number]
            try:
                for kind, payload in frames:
                    self._on_message(number, connection, message_of(kind, payload))
            except ChannelError as error:
                fault = error
            except Exception as error:  # a fault of the driver: the other messages of this round are still processed
                log.exception("control port: a message of query '%s' could not be taken in", connection.query)
                fault = ChannelError(type(error).__name__)
            if fault is not None:
                log.warning(
                    "control port: cut off %s, a reader of query '%s': %s", connection.name, connection.query, fault
                )
            if fault is not None or connection.channel.closed:
                self._drop(number, is_cut_off=fault is not None)

    def _on_message(self, number: int, connection: _Connection, message: Message) -> None:
        if connection.is_stray:
            return
        query = message.query if isinstance(message, Lease | Look) else connection.query
        if not query:
            raise ChannelError("a report before the lease began")
        if not self._queries.is_known(query):
            self._on_stray(connection, query, message)
            return
        if isinstance(message, Lease):
            if connection.query:
                raise ChannelError("a second lease on one connection")
            connection.query = query
        for grant in self._queries.on_message(query, number, message, is_local=connection.is_local):
            self._carry_out(query, grant)
            connection.channel.flush()

    def _on_stray(self, connection: _Connection, query: str, message: Message) -> None:
        """The query does not belong to this run: no lease of it may start."""
        if query not in self._unknown:
            self._unknown.add(query)
            log.warning("control port: %s asks for query '%s', which this run does not have", connection.name, query)
        if isinstance(message, Look):
            connection.channel.send(Kind.LOOKED, pack_json({"stopping": True}))
            return
        connection.is_stray = True
        connection.channel.send(Kind.ASSIGN, pack_json({"routes": [], "plans": {}}))
        connection.channel.send(Kind.STOP, f"this run has no query '{query}'".encode())

    def _drop(self, number: int, *, is_cut_off: bool) -> None:
        connection = self._connections.pop(number)
        connection.channel.close()
        if connection.query:
            self._queries.on_closed(connection.query, number, is_cut_off=is_cut_off)

    # ---- effects

    def _carry_out(self, query: str, effect: Effect) -> None:
        if isinstance(effect, Death):
            self._call(None, self._callbacks.on_death, query, effect.reports)
            return
        connection = self._connections.get(effect.reader)
        if connection is None:
            return
        match effect:
            case Assign(_, routes, lease_seconds):
                assignment: dict[str, Any] = {
                    "routes": [route.to_json() for route in routes],
                    "plans": {route.name: self._plan(route.name) for route in routes},
                }
                if lease_seconds:
                    assignment["lease_seconds"] = lease_seconds
                connection.channel.send(Kind.ASSIGN, pack_json(assignment))
            case Add(_, route):
                connection.channel.send(Kind.ADD, pack_json({**route.to_json(), "plan": self._plan(route.name)}))
            case Plan(_, name):
                connection.channel.send(Kind.PLAN, pack_json({"name": name, **self._plan(name)}))
            case Grant(_, asked, claims):
                held = {claim: self._call(0.0, self._callbacks.claim_seconds, claim) for claim in claims}
                connection.channel.send(Kind.GRANT, pack_json({"asked": asked, "claims": held}))
            case SendFrame(number, kind, payload):
                connection.channel.send(kind, payload)
                if kind == Kind.STOP:
                    self._queries.on_stop_sent(query, number)

    def _plan(self, name: str) -> dict[str, int]:
        return self._call(CrashPlan(), self._callbacks.plan_of, name)._asdict()

    @staticmethod
    def _call(default: T, callback: Callable[..., T], *args: Any) -> T:
        try:
            return callback(*args)
        except Exception:
            log.exception("control port: the driver could not tell what was asked of it; assumed %s", default)
            return default
