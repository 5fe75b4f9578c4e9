"""One connection to a namespace.

What it is: a socket below an `isthmus.amqp.Connection`, with SASL, heartbeats, and the dispatch of events to the links' owners; tokens are
renewed in `shown_token`. It blocks only where its name or a time-out says so; an owner that waits on several
things polls `fileno()` for `interest()` and calls `service()` no later than `deadline()`. What it is not: safe for several
threads at once (an owner with two threads holds a lock), and no reconnect: links and locks die with a connection, so
the owner opens a new client.
Over 400 lines: opening, waiting and serving are one loop over one socket.

Invariants:
    I1. `service` never blocks and never raises for what the peer or the network did: the fault is kept in `error`, and
        every link's owner has been notified.
    I2. What was queued is written in order; nothing is written after the connection is lost.
"""

from __future__ import annotations

import contextlib
import errno
import math
import select
import socket
import ssl
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from isthmus.amqp import (
    AmqpSession,
    Closed,
    Connection,
    CreditChanged,
    Disposed,
    Event,
    Link,
    LinkAttached,
    LinkDetached,
    Opened,
    SaslRefused,
    SentSettled,
    SessionEnded,
    Transfers,
)
from isthmus.amqp.performative import Accepted, Error, Modified, Rejected, Released
from isthmus.amqp.types import Symbol
from isthmus.errors import (
    ConnectionLostError,
    IsthmusError,
    OperationTimeoutError,
    UnauthorizedError,
)
from isthmus.message.name import NAMESPACE_ID
from isthmus.transport.dial import dial, place_of
from isthmus.transport.endpoint import Endpoint
from isthmus.transport.error import error_from
from isthmus.transport.motion import LOOK_SECONDS, Motion
from isthmus.transport.request import Reply
from isthmus.transport.shown_token import ShownTokens
from isthmus.unsent import unsent_bytes

__all__ = ["Client", "LinkOwner"]

RECEIVE_BYTES = 1 << 20
# Frames, not messages: a lease's credit window must never wait for the session's.
INCOMING_WINDOW_FRAMES = 65535
MAX_FRAME_BYTES = 1 << 20
# How long a peer is taken to wait that names no idle time-out.
UNHEARD_SECONDS = 30.0
# AMQP Enforcing Connection Uniqueness 1.0: the peer refuses a connection while it has another one of the same container.
_SOLE_CONNECTION = Symbol("sole-connection-for-container")
# A property of the peer's open: its close follows, with the reason.
_REFUSED = "amqp:connection-establishment-failed"


# Terminal states (OASIS AMQP 1.0 3.4). A disposition with another one, or with none, that settles nothing is not an outcome:
# the peer reports its progress, and the outcome follows.
OUTCOMES = (Accepted, Rejected, Released, Modified)


class LinkOwner(Protocol):
    """The callbacks of a link's owner; `on_disposed` comes with a terminal state, or for settled deliveries.

    An owner that has `on_settled(first, last, state)` also gets the peer's answers to its own dispositions.
    """

    def on_attached(self, link: Link) -> None: ...
    def on_credit(self, link: Link) -> None: ...
    def on_transfers(self, event: Transfers) -> None: ...
    def on_disposed(self, first: int, last: int, state: Any) -> None: ...
    def on_lost(self, error: IsthmusError) -> None: ...


class Client:
    """A connection to `endpoint`.

    Args:
        endpoint: where to connect, and with which credential.
        name: container id, shown in the peer's logs; made up where empty.
        idle_timeout_ms: the connection is closed when the peer was silent for twice as long.
        shared: links of several owners share the connection: a token that the peer does not renew costs only the links
            that it covers, which the peer ends; otherwise it ends the connection.
        sole: asks the peer to refuse this connection while it has another one of the same container, whose deliveries it keeps.

    Attributes:
        error: why the connection can no longer be used; None while it can.
        connection: the protocol engine.
        namespace_id: what identifies the peer's namespace: the identity in its open frame, or its host's name.
        peer_properties: of the peer's open frame, e.g. `product`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        name: str = "",
        idle_timeout_ms: int = 30_000,
        shared: bool = False,
        sole: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.shared = shared
        self.error: IsthmusError | None = None
        self.namespace_id = place_of(endpoint)
        self.peer_properties: Mapping[Any, Any] = {}
        self.connection = Connection(
            server=False,
            container_id=name or f"isthmus-{uuid.uuid4().hex[:12]}",
            hostname=endpoint.virtual_host or endpoint.host,
            max_frame_size_bytes=MAX_FRAME_BYTES,
            idle_timeout_ms=idle_timeout_ms,
            incoming_window=INCOMING_WINDOW_FRAMES,
            desired_capabilities=[_SOLE_CONNECTION] if sole else None,
        )
        self._socket: socket.socket | None = None
        self._pending: deque[memoryview] = deque()
        self._opened = False
        self._closing = False
        self._tokens = ShownTokens(self)
        self._owners: dict[AmqpSession, LinkOwner] = {}
        self._want_write = False
        self._queued_bytes = 0
        self._received_bytes = 0
        self._is_ended_by_peer = False

    # ---- opening and closing

    def open(self, timeout_seconds: float = 30.0) -> Client:
        """Connects and opens; blocks.

        Raises:
            ConnectionLostError: no connection could be made, it broke, or the peer refused it.
            OperationTimeoutError: the peer did not answer in time.
            UnauthorizedError: the peer refused SASL.
        """
        where = f"{self.endpoint.host}:{self.endpoint.port}"
        limit = time.monotonic() + timeout_seconds
        if self.endpoint.websocket:
            from isthmus.transport import websocket  # loads an event loop and HTTP, which few callers need

            self._socket = websocket.dial(self.endpoint, timeout_seconds)
        else:
            self._socket = dial(self.endpoint, timeout_seconds)
        self._socket.setblocking(False)
        login = self.endpoint.login
        self.connection.start(login.mechanism or None, login.response)
        self._write()
        try:
            self.wait_until(lambda: self._opened, limit - time.monotonic(), f"{where}: no answer to open")
            if _REFUSED in self.peer_properties:
                self.wait_until(lambda: False, limit - time.monotonic(), f"{where}: a refused connection is not closed")
        except BaseException:
            self.abandon()
            raise
        return self

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Closes the connection and waits for the answer, so that everything sent before has been processed; never raises."""
        if self._socket is None:
            return
        if self.error is None:
            self._closing = True
            self.connection.close()
            with contextlib.suppress(IsthmusError):
                self.wait_until(lambda: False, timeout_seconds, "close")
        self.abandon()

    @property
    def noticed_seconds(self) -> float:
        """After how long the peer gives up a connection over which it receives nothing more."""
        return 2.0 * (self.connection.peer_idle_seconds or UNHEARD_SECONDS)

    @property
    def held_seconds(self) -> float:
        """How long the peer may consider the connection open, and keep its deliveries locked, when it receives nothing more."""
        return 0.0 if self._is_ended_by_peer or self.error is None else self.noticed_seconds

    @property
    def queued_bytes(self) -> int:
        """Bytes that it had to send so far."""
        return self._queued_bytes

    @property
    def arrived_bytes(self) -> int:
        """Of these, those that the remote machine has acknowledged; with TLS and over a WebSocket approximately."""
        unsent = self._socket is not None and unsent_bytes(self._socket)
        return self._queued_bytes - sum(map(len, self._pending)) - (unsent or 0)

    @property
    def received_bytes(self) -> int:
        """Bytes that have come from the peer so far."""
        return self._received_bytes

    def start_close(self) -> None:
        """Queues the close after what was sent; once the peer has answered, `error` is set. Then `abandon` it."""
        if self._socket is not None and self.error is None and not self._closing:
            self._closing = True
            self.connection.close()
            self._write()

    def abandon(self) -> None:
        """Closes the socket without a Close frame."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._lost(ConnectionLostError("the connection was closed"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- for owners that poll

    def fileno(self) -> int:
        """The socket's descriptor; -1 when there is none."""
        return -1 if self._socket is None else self._socket.fileno()

    def interest(self) -> int:
        """What to poll the descriptor for."""
        return select.POLLIN | (select.POLLOUT if self._pending or self._want_write else 0)

    def deadline(self) -> float | None:
        """When `service` is due even if nothing happens, in monotonic seconds."""
        due = self.connection.deadline()
        if self._tokens.due < math.inf:
            renewal = self._tokens.due - time.time() + time.monotonic()
            due = renewal if due is None else min(due, renewal)
        return due

    def service(self, *, read: bool = True) -> None:
        """Reads what has arrived, dispatches it, writes what can be written; never blocks.

        Args:
            read: False leaves what has come in the socket: the peer has to wait. Not for longer than a few seconds, since
                heartbeats and answers wait as well.
        """
        if self._socket is None or self.error is not None:
            return
        if read:
            self._read()
        self._dispatch(self.connection.tick(time.monotonic()))
        if (refused := self._tokens.renew()) is not None:
            self._lost(refused)
        self._write()

    def flush(self) -> None:
        """Writes what can be written without blocking."""
        if self._socket is not None and self.error is None:
            self._write()

    # ---- blocking

    def wait(self, timeout_seconds: float) -> None:
        """Waits until the socket has something, at most so long, and services it."""
        if self._socket is None:
            return
        due = self.deadline()
        limit = timeout_seconds if due is None else min(timeout_seconds, due - time.monotonic())
        self.flush()
        poll = select.poll()
        poll.register(self._socket, self.interest())
        poll.poll(max(0.0, limit) * 1000)
        self.service()

    def wait_until(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        """Services the connection until `condition()` holds.

        Raises:
            IsthmusError: the connection's error, if it is lost first.
            OperationTimeoutError: the time is over; the text starts with `what`.
        """
        limit = time.monotonic() + timeout_seconds
        while not condition():
            if self.error is not None:
                raise self.error
            left = limit - time.monotonic()
            if left <= 0:
                raise OperationTimeoutError(f"{what} within {timeout_seconds:g} s")
            self.wait(left)

    def wait_answer(self, condition: Callable[[], bool], timeout_seconds: float, what: str) -> None:
        """As `wait_until`, for an answer to what was queued: the time counts from when bytes of either moved last, however slow the network is.

        Raises:
            IsthmusError: the connection's error, if it is lost first.
            OperationTimeoutError: the time is over; the text starts with `what`.
        """
        self.flush()
        motion = Motion(self, time.monotonic())
        while not condition():
            if self.error is not None:
                raise self.error
            now = time.monotonic()
            motion.look(now)
            left = motion.since + timeout_seconds - now
            if left <= 0:
                raise OperationTimeoutError(f"{what} within {timeout_seconds:g} s")
            self.wait(min(left, LOOK_SECONDS))

    # ---- for links

    def begin(self, owner: LinkOwner) -> AmqpSession:
        """A new AMQP session whose links belong to `owner`: a fault of one link does not end another's session.

        Raises:
            IsthmusError: the connection is lost.
        """
        if self.error is not None:
            raise self.error
        amqp_session = self.connection.begin()
        self._owners[amqp_session] = owner
        return amqp_session

    def end(self, amqp_session: AmqpSession) -> None:
        """Ends a session that `begin` gave; its owner gets no more events of it."""
        self._owners.pop(amqp_session, None)
        amqp_session.end()

    def authorize(self, path: str, timeout_seconds: float = 30.0) -> None:
        """Shows a token for the entity at `path` and keeps renewing it; blocks.

        Raises:
            UnauthorizedError: the token was refused.
            EntityNotFoundError: there is no such entity.
            OperationTimeoutError: no answer came in time.
            TokenError: the credential has no token.
        """
        reply = self.start_authorize(path)
        if reply is None:
            return
        self.wait_until(lambda: reply.done, timeout_seconds, f"'{path}': no answer to put-token")
        self.finish_authorize(path, reply)

    def start_authorize(self, path: str) -> Reply | None:
        """Shows a token for the entity at `path` and keeps renewing it; the answer is for `finish_authorize`, once it is done.
        None: nothing has to be shown.

        Raises:
            TokenError: the credential has no token.
        """
        return self._tokens.start(path)

    def finish_authorize(self, path: str, reply: Reply) -> None:
        """Checks the answer of `start_authorize`.

        Raises:
            UnauthorizedError: the token was refused.
            EntityNotFoundError: there is no such entity.
            IsthmusError: another refusal, or the connection's error.
        """
        self._tokens.finish(path, reply)

    def withdraw(self, path: str) -> None:
        """Stops renewing the token for the entity at `path`. No error if there is none."""
        self._tokens.withdraw(path)

    # ---- socket

    def _read(self) -> None:
        sock = self._socket
        self._want_write = False
        while sock is not None and self.error is None:
            try:
                data = sock.recv(RECEIVE_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            except ssl.SSLWantWriteError:
                self._want_write = True
                return
            except OSError as error:
                self._lost(ConnectionLostError(f"{self.endpoint.host}:{self.endpoint.port}: {error.strerror or error}"))
                return
            if not data:
                self._is_ended_by_peer = True
                self._lost(
                    ConnectionLostError(f"{self.endpoint.host}:{self.endpoint.port}: the peer closed the connection")
                )
                return
            self._received_bytes += len(data)
            self._dispatch(self.connection.receive(data, time.monotonic()))
            if not (isinstance(sock, ssl.SSLSocket) and sock.pending()):
                return

    def _write(self) -> None:
        data = self.connection.take()
        if data:
            self._pending.append(memoryview(data))
            self._queued_bytes += len(data)
        sock = self._socket
        while self._pending and sock is not None:
            view = self._pending[0]
            try:
                count = sock.send(view)
            except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
                return
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.ECONNRESET) and self._read_close():
                    return
                self._lost(ConnectionLostError(f"{self.endpoint.host}:{self.endpoint.port}: {error.strerror or error}"))
                return
            if count == len(view):
                self._pending.popleft()
            else:
                self._pending[0] = view[count:]

    def _read_close(self) -> bool:
        """Reads the peer's close frame, which says why it closed, after a write has failed."""
        self._pending.clear()
        self._read()
        return self.error is not None

    # ---- events

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Transfers):
                event.link.context.on_transfers(event)
            elif isinstance(event, Disposed):
                if event.settled or isinstance(event.state, OUTCOMES):
                    event.link.context.on_disposed(event.first, event.last, event.state)
                if not event.settled and isinstance(event.state, OUTCOMES):
                    event.link.settle_sent(event.first, event.last, event.state)
            elif isinstance(event, CreditChanged):
                if event.link.context is not None:
                    event.link.context.on_credit(event.link)
            elif isinstance(event, LinkAttached):
                if event.link.context is not None:
                    event.link.context.on_attached(event.link)
            elif isinstance(event, LinkDetached):
                self._on_detached(event)
            elif isinstance(event, SessionEnded):
                owner = self._owners.pop(event.amqp_session, None)
                if owner is not None:
                    error = event.error
                    owner.on_lost(
                        ConnectionLostError("the session was ended")
                        if error is None
                        else error_from(error.condition, error.description)
                    )
            elif isinstance(event, Opened):
                self._opened = True
                self.peer_properties = event.properties or {}
                self.namespace_id = str((event.properties or {}).get(NAMESPACE_ID) or self.namespace_id)
            elif isinstance(event, SentSettled):
                on_settled = getattr(self._owners.get(event.amqp_session), "on_settled", None)
                if on_settled is not None and isinstance(event.state, OUTCOMES):
                    on_settled(event.first, event.last, event.state)
            elif isinstance(event, SaslRefused):
                self._lost(UnauthorizedError(f"{self.endpoint.host}:{self.endpoint.port}: {event.reason}"))
            elif isinstance(event, Closed):
                self._on_closed(event)

    def _on_detached(self, event: LinkDetached) -> None:
        owner = event.link.context
        if owner is None:
            return
        path = str(getattr(owner, "path", ""))
        error = event.error
        owner.on_lost(
            ConnectionLostError(f"'{path}': the link was detached")
            if error is None
            else error_from(error.condition, error.description, path=path, info=error.info)
        )

    def _on_closed(self, event: Closed) -> None:
        error = event.error
        self._is_ended_by_peer = event.by_peer
        self._write()
        self._lost(
            ConnectionLostError(f"{self.endpoint.host}:{self.endpoint.port}: the connection was closed")
            if error is None
            else ConnectionLostError(f"{self.endpoint.host}:{self.endpoint.port}: {_reason(error)} ({error.condition})")
        )

    def _lost(self, error: IsthmusError) -> None:
        if self.error is not None:
            return
        self.error = error
        self._pending.clear()
        owners, self._owners = list(self._owners.values()), {}
        for owner in owners:
            owner.on_lost(error)


def _reason(error: Error) -> str:
    """Why the peer closed."""
    if (error.info or {}).get("invalid-field") == "container-id":
        return "it has a connection of this container, whose loss it may not have noticed yet"
    return error.description or str(error.condition)
