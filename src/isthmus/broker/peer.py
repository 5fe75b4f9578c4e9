"""One client's connection: AMQP events in, effects on entities and answers out.

What it is: SASL, the attach decisions, the table from links to what serves them, and the connection's deadlines. What
it is not: a socket (`isthmus.broker.shell`, `isthmus.broker.websocket`), nor any link's work.
Spec: SERVICE-BUS.md W2, W4, W5, 5.1.
It is over 400 lines since every event of a connection is decided here, and the decisions share its state.

Invariants:
    I1. A link is attached only to an entity that exists and for which the connection holds the right; every refusal has
        the service's condition, and leaves one line in the log.
    I2. A connection without a valid token is closed 20 s after it opened; a link whose token has expired is detached.
    I3. Nothing that a client sends raises: what is its fault is answered at the scope where it went wrong, what is ours
        closes this connection only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from isthmus.amqp import (
    Closed,
    Connection,
    CreditChanged,
    Disposed,
    Error,
    Event,
    Link,
    LinkAttaching,
    LinkDetached,
    Role,
    SaslInit,
    SentSettled,
    SessionEnded,
    Transfers,
)
from isthmus.amqp.performative import Coordinator, Source, Target
from isthmus.amqp.types import Symbol
from isthmus.broker import cbs
from isthmus.broker.access import Access
from isthmus.broker.condition import INTERNAL_TEXT, amqp_error, refusal
from isthmus.broker.intake import Intake
from isthmus.broker.keyring import Right
from isthmus.broker.management import MANAGEMENT_STYLE, MANAGEMENT_SUFFIX, Management
from isthmus.broker.node import Answer, Requests
from isthmus.broker.outlet import Outlet
from isthmus.broker.request import Replies, Request, Respond, Style
from isthmus.broker.wire import Wire
from isthmus.errors import EntityNotFoundError, InvalidArgumentError, IsthmusError, NotAllowedError, UnauthorizedError

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["TOKEN_DEADLINE_SECONDS", "Peer"]

_log = logging.getLogger(__name__)

# The service closes a connection that has shown no valid token for so long.
TOKEN_DEADLINE_SECONDS = 20.0
_MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS")
# As the service opens.
_MAX_FRAME_SIZE_BYTES = 65536
_IDLE_TIMEOUT_MS = 120_000
# Bytes of one connection that may wait for the disk before it is read no further.
_INTAKE_HIGH_BYTES = 32 << 20
_INTAKE_LOW_BYTES = 8 << 20
# By how much a message may be over the limit and still be read to its end, to be rejected.
_OVERSIZE_BYTES = 16 << 20
_SESSION_FILTER = "com.microsoft:session-filter"


_Handler = Intake | Outlet | Requests | Replies


class Peer:
    """One client.

    Args:
        namespace: what the client came for.
        wire: the stream to the client.
    """

    def __init__(self, namespace: Namespace, wire: Wire) -> None:
        self._namespace = namespace
        self._wire = wire
        self._clock = namespace.clock
        self._connection = Connection(
            server=True,
            container_id=namespace.name,
            max_frame_size_bytes=_MAX_FRAME_SIZE_BYTES,
            idle_timeout_ms=_IDLE_TIMEOUT_MS,
            sasl=_MECHANISMS,
            require_sasl=False,
        )
        self._access = Access(namespace.authority, namespace.token_clock)
        self._handlers: dict[Link, _Handler] = {}
        self._token_deadline: float | None = self._clock.monotonic() + TOKEN_DEADLINE_SECONDS
        self._waiting_bytes = 0
        self._paused = False
        self._over = False
        self._table: dict[type, Callable[[Any], None]] = {
            Transfers: self._on_transfers,
            Disposed: self._on_disposed,
            CreditChanged: self._on_credit,
            LinkAttaching: self._on_attaching,
            LinkDetached: self._on_detached,
            SessionEnded: self._on_session_ended,
            SaslInit: self._on_sasl,
            SentSettled: lambda event: None,
            Closed: self._on_closed,
        }
        namespace.peers.add(self)

    # ---- called by the wire

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._over:
            return
        self._handle(self._connection.receive(data, self._clock.monotonic()))
        self.flush()

    def lost(self) -> None:
        """The stream has ended."""
        self._finish()

    def writable(self) -> None:
        """The wire takes bytes again."""
        for handler in list(self._handlers.values()):
            if isinstance(handler, Outlet):
                self._namespace.offer(handler)

    # ---- called by the namespace

    def tick(self) -> None:
        """Heartbeats, the idle time-out, the token deadline, tokens that have expired, entities that have gone."""
        if self._over:
            return
        now = self._clock.monotonic()
        self._handle(self._connection.tick(now))
        if self._access.drop_expired():
            self._drop_unauthorised()
        self._drop_deleted()
        if self._token_deadline is not None and now >= self._token_deadline:
            error = UnauthorizedError(f"No valid token was presented in {TOKEN_DEADLINE_SECONDS:.0f} seconds.")
            self._warn("connection closed", error)
            self.close(amqp_error(error))
        self.flush()

    def close(self, error: Error | None = None) -> None:
        """Close the connection from this side."""
        if self._over:
            return
        if not self._connection.opened:
            self._finish()
            self._wire.close()
            return
        self._connection.close(error)
        self.flush()
        self._finish()
        self._wire.close()

    @property
    def is_writable(self) -> bool:
        """Whether the wire takes more bytes now."""
        return self._wire.is_writable

    def touch(self) -> None:
        """Flush once the turn is over."""
        self._namespace.touch(self)

    def flush(self) -> None:
        """Send what was queued."""
        data = self._connection.take()
        if data and not self._wire_gone:
            self._wire.write(data)

    def statistics(self) -> dict[str, int]:
        """Links and bytes that wait for the disk."""
        return {"links": len(self._handlers), "waiting_bytes": self._waiting_bytes}

    # ---- events

    _wire_gone = False

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            handle = self._table.get(type(event))
            if handle is None:
                continue
            try:
                handle(event)
            except IsthmusError as error:
                self._warn("connection closed", error)
                self.close(amqp_error(error))
                return
            except Exception:  # noqa: BLE001 - see below
                # A fault of ours must cost this client its connection, and nobody else anything.
                _log.exception("connection closed by a fault: peer=%s", self._wire.name)
                self.close(Error(Symbol("amqp:internal-error"), INTERNAL_TEXT))
                return

    def _on_sasl(self, event: SaslInit) -> None:
        ok = event.mechanism in _MECHANISMS
        if event.mechanism == "PLAIN":
            ok = self._present_plain(event.response or b"")
        if not ok:
            self._warn("sasl refused", UnauthorizedError(f"mechanism {event.mechanism[:32]!r}"))
        self._handle(self._connection.sasl_outcome(ok))

    def _present_plain(self, response: bytes) -> bool:
        _, _, rest = response.partition(b"\0")
        name, found, key = rest.partition(b"\0")
        if not found:
            return False
        try:
            self._access.present_key(name.decode(), key.decode())
        except (UnauthorizedError, UnicodeDecodeError):
            return False
        self._token_deadline = None
        return True

    def _on_attaching(self, event: LinkAttaching) -> None:
        link = event.link
        if link.detached or link.amqp_session.ended:
            return  # the client has given up in the same breath
        try:
            self._attach(link)
        except IsthmusError as error:
            _, condition, text = refusal(error)
            _log.warning(
                "attach refused: peer=%s address=%.300r condition=%s reason=%.300s",
                self._wire.name, _address(link), condition, text,
            )  # fmt: skip
            link.refuse(amqp_error(error))

    def _attach(self, link: Link) -> None:
        """Decide about a link that the client wants.

        Raises:
            IsthmusError: refused, and why.
        """
        if isinstance(link.target, Coordinator):
            raise NotAllowedError("Transactions are not supported by this namespace.")
        address = _address(link)
        if not isinstance(address, str) or not address:
            raise InvalidArgumentError("The link names no address.")
        path = _path(address)
        if path.lower() == cbs.CBS_NODE:
            self._attach_node(link, cbs.CBS_NODE, cbs.CBS_STYLE, self._answer_cbs)
        elif path.lower().endswith(MANAGEMENT_SUFFIX):
            self._attach_management(link, path)
        elif link.role is Role.RECEIVER:
            self._access.require(path, Right.SEND)
            destination = self._namespace.engine.sender(path)
            limit_bytes = destination.max_message_size_bytes
            link.accept(max_message_size=limit_bytes)
            # A message over the limit is rejected by itself; only one that is far over it costs the client its link.
            link.max_message_size_bytes = limit_bytes + _OVERSIZE_BYTES
            intake = Intake(link, path, destination, self._account)
            self._handlers[link] = intake
            intake.open()
        else:
            self._access.require(path, Right.LISTEN)
            self._attach_outlet(link, path)

    def _attach_outlet(self, link: Link, path: str) -> None:
        queue = self._namespace.engine.receiver(path)
        wants_session = isinstance(link.source, Source) and any(
            str(key) == _SESSION_FILTER for key in (link.source.filter or {})
        )
        if queue.requires_session and not wants_session:
            raise NotAllowedError(
                f"It is not possible for an entity that requires sessions to create a non-sessionful message receiver: '{path}'."
            )
        if wants_session:
            raise NotAllowedError(
                f"A sessionful message receiver cannot be created on an entity that does not require sessions: '{path}'."
            )
        link.accept()
        outlet = Outlet(link, path, queue, self)
        self._handlers[link] = outlet
        self._namespace.add_outlet(outlet)

    def _attach_management(self, link: Link, path: str) -> None:
        entity = path[: -len(MANAGEMENT_SUFFIX)]
        if not any(self._access.permits(path, right) for right in Right):
            self._access.require(path, Right.LISTEN)
        management = Management(
            self._namespace.engine,
            entity,
            lambda right: self._access.require(path, right),
            self._namespace.commits.when_durable,
        )
        self._attach_node(link, path.lower(), MANAGEMENT_STYLE, management.answer)

    def _attach_node(self, link: Link, node: str, style: Style, answer: Answer) -> None:
        if link.role is Role.RECEIVER:
            link.accept(max_message_size=self._namespace.max_request_bytes)
            requests = Requests(link, node, style, answer, self)
            self._handlers[link] = requests
            requests.open()
        else:
            link.accept()
            self._handlers[link] = Replies(link, node)

    def _on_transfers(self, event: Transfers) -> None:
        handler = self._handlers.get(event.link)
        if isinstance(handler, Intake | Requests):
            handler.on_transfers(event)

    @property
    def name(self) -> str:
        """Address of the client, for the log."""
        return self._wire.name

    def replies(self) -> list[Replies]:
        """The links on which replies of nodes go to the client."""
        return [handler for handler in self._handlers.values() if isinstance(handler, Replies)]

    def _answer_cbs(self, request: Request, respond: Respond) -> None:
        respond(cbs.put_token(request, self._access, self._namespace.has_entity))
        if self._access.has_grant:
            self._token_deadline = None

    def _on_disposed(self, event: Disposed) -> None:
        handler = self._handlers.get(event.link)
        if type(handler) is Outlet:
            handler.on_disposed(event.first, event.last, event.state, event.settled)

    def _on_credit(self, event: CreditChanged) -> None:
        handler = self._handlers.get(event.link)
        if isinstance(handler, Outlet):
            self._namespace.offer(handler)
        elif isinstance(handler, Replies):
            handler.flush()
            if event.link.drain:
                event.link.drained()

    def _on_detached(self, event: LinkDetached) -> None:
        if event.error is not None:
            _log.warning(
                "link detached: peer=%s address=%.300r condition=%s reason=%.300s",
                self._wire.name, _address(event.link), event.error.condition, event.error.description,
            )  # fmt: skip
        self._forget(event.link)

    def _on_session_ended(self, event: SessionEnded) -> None:
        if event.error is not None:
            _log.warning("session ended: peer=%s condition=%s", self._wire.name, event.error.condition)
        for link in [link for link in self._handlers if link.amqp_session is event.amqp_session]:
            self._forget(link)

    def _on_closed(self, event: Closed) -> None:
        if event.error is not None:
            _log.warning(
                "connection closed: peer=%s condition=%s reason=%.300s",
                self._wire.name, event.error.condition, event.error.description,
            )  # fmt: skip
        self.flush()
        self._finish()
        self._wire.close()

    # ---- inside

    def _account(self, size_bytes: int) -> None:
        """Bytes began or ceased to wait for the disk; a client that is ahead of the disk is read no further."""
        self._waiting_bytes += size_bytes
        if self._waiting_bytes > _INTAKE_HIGH_BYTES:
            if not self._paused:
                self._paused = True
                self._wire.pause_reading()
        elif self._paused and self._waiting_bytes < _INTAKE_LOW_BYTES:
            self._paused = False
            if not self._wire_gone:
                self._wire.resume_reading()
        if size_bytes < 0:
            self.touch()

    def _drop_unauthorised(self) -> None:
        """Detach the links whose token has expired."""
        for link, handler in list(self._handlers.items()):
            if isinstance(handler, Intake):
                ok = self._access.permits(handler.path, Right.SEND)
            elif isinstance(handler, Outlet):
                ok = self._access.permits(handler.path, Right.LISTEN)
            else:
                ok = handler.node == cbs.CBS_NODE or any(self._access.permits(handler.node, right) for right in Right)
            if not ok:
                self._drop(link, UnauthorizedError("ExpiredToken: The token is expired."))

    def _drop_deleted(self) -> None:
        """Detach the links whose entity was deleted."""
        for link, handler in list(self._handlers.items()):
            if isinstance(handler, Intake | Outlet) and handler.is_orphaned:
                self._drop(link, EntityNotFoundError(handler.path))

    def _drop(self, link: Link, error: IsthmusError) -> None:
        self._warn("link detached", error, _address(link))
        link.detach(amqp_error(error))
        self._forget(link)

    def _forget(self, link: Link) -> None:
        handler = self._handlers.pop(link, None)
        if isinstance(handler, Outlet):
            handler.close()
            self._namespace.remove_outlet(handler)

    def _finish(self) -> None:
        self._over = True
        self._wire_gone = True
        for link in list(self._handlers):
            self._forget(link)
        self._namespace.peers.discard(self)

    def _warn(self, what: str, error: Exception, node: object = None) -> None:
        _, condition, text = refusal(error)
        _log.warning("%s: peer=%s node=%.300r condition=%s reason=%.300s", what, self._wire.name, node, condition, text)


def _address(link: Link) -> Any:
    """What the client wants to reach: the target of its sender, the source of its receiver."""
    terminus = link.target if link.role is Role.RECEIVER else link.source
    return terminus.address if isinstance(terminus, Source | Target) else None


def _path(address: str) -> str:
    """An address without scheme and authority, in the client's spelling."""
    _, separator, rest = address.partition("://")
    path = rest.partition("/")[2] if separator else address
    return path.strip("/")
