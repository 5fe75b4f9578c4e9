"""One client's connection: AMQP events in, effects on entities and answers out.

What it is: SASL, the events of links, and the connection's deadlines. What it is not: a socket (`isthmus.broker.net.shell`,
`isthmus.broker.net.websocket`), the decision what a link is attached to (`isthmus.broker.attachment`), nor any link's work.
Spec: docs/explanation/protocol.md, Connection, Tokens, Links.
It is over 400 lines since every event of a connection is decided here, and the decisions share its state.

Invariants:
    I1. Every refusal of a link has the service's condition, and leaves one line in the log.
    I2. A connection without a valid token is closed 20 s after it opened; a link whose token has expired is detached.
    I3. Nothing that a client sends raises: what is its fault is answered at the scope where it went wrong, what is ours
        closes this connection only.
    I4. Before its first token a client holds a few sessions, links and answers of bounded size, whatever it sends; all
        clients together hold a bounded number of bytes of messages that are not whole yet.
    I5. A link whose entity is disabled or deleted, or that was idle for as long as the namespace allows, is detached.
    I6. A client that reads nothing is closed before what waits for it fills the memory.
    I7. The end of a link, session or connection is told behind the outcomes that are owed (`isthmus.broker.link.departure`).
    I8. Of a client that is about to be sent away no message and no request is taken, and it is given none: it could not be
        told of the one, and would lose the other. What it settles is taken.
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
    Opened,
    SaslInit,
    SentSettled,
    SessionBegun,
    SessionEnded,
    TransferParts,
    Transfers,
)
from isthmus.amqp.types import Symbol
from isthmus.broker.attachment import Attachments, address_of
from isthmus.broker.back_pressure import BackPressure
from isthmus.broker.early_access import EarlyAccess
from isthmus.broker.large import LargeDesk
from isthmus.broker.link.browse import BrowseSenderLink
from isthmus.broker.link.condition import INTERNAL_TEXT, amqp_error, refusal
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.departure import Departures
from isthmus.broker.link.idle import IdleWatch
from isthmus.broker.link.incoming_link import IncomingLink
from isthmus.broker.link.request import Replies, Request, Respond
from isthmus.broker.link.sender_link import SenderLink
from isthmus.broker.net.wire import Wire
from isthmus.broker.security import cbs
from isthmus.broker.security.access import Access
from isthmus.errors import (
    IsthmusError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)
from isthmus.message.name import NAMESPACE_ID

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["Peer"]

_log = logging.getLogger(__name__)

_MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS")
# As the service opens.
_MAX_FRAME_SIZE_BYTES = 65536
# Answers that a client leaves unread; nobody who reads at all comes near it.
_UNSENT_BYTES = 256 << 20
# After the disk refused a deletion.
_RETRY_SECONDS = 1.0
# A client that has sent nothing for so long has nothing under way.
_BUSY_SECONDS = 1.0
# How long a key that was taken away may still be of use.
_REVIEW_SECONDS = 2.0


class Peer:
    """One client.

    Args:
        namespace: what the client came for.
        wire: the stream to the client.

    Attributes:
        is_taking_large: whether parts of a large message are coming.
    """

    def __init__(self, namespace: Namespace, wire: Wire) -> None:
        self._namespace = namespace
        self._wire = wire
        self._clock = namespace.clock
        self._connection = Connection(
            server=True,
            container_id=namespace.name,
            max_frame_size_bytes=_MAX_FRAME_SIZE_BYTES,
            idle_timeout_ms=namespace.limits.connection_idle_timeout_ms,
            sasl=_MECHANISMS,
            require_sasl=False,
            answers_at_once=False,
            properties={Symbol(NAMESPACE_ID): namespace.identity},
        )
        self._departures = Departures(self.touch)
        self._access = Access(namespace.authority, namespace.token_clock)
        self._transactions = Transactions(namespace.engine, namespace.clock, self._access.require)
        self._pressure = BackPressure(wire, lambda: namespace.large, self.touch)
        self._links = Attachments(namespace, self, self._access, self._transactions, self._pressure)
        self._handlers, self._waits = self._links.handlers, self._links.waits
        self._limits = namespace.limits
        now = self._clock.monotonic()
        self._early = EarlyAccess(now, self._limits.token_deadline_ms / 1000)
        self._partial_bytes = 0
        self._idle = IdleWatch(namespace.limits, now)
        self._next_review = now + _REVIEW_SECONDS
        self._heard_at = now
        self.is_taking_large = False
        self._over = False
        self._table: dict[type, Callable[[Any], None]] = {
            Transfers: self._on_transfers,
            TransferParts: self._on_parts,
            Disposed: self._on_disposed,
            CreditChanged: self._on_credit,
            LinkAttaching: self._on_attaching,
            LinkDetached: self._on_detached,
            Opened: self._on_opened,
            SessionBegun: self._on_session_begun,
            SessionEnded: self._on_session_ended,
            SaslInit: self._on_sasl,
            SentSettled: lambda event: None,
            Closed: self._on_closed,
        }
        namespace.peers.add(self)

    # ---- called by the wire

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._over or self._is_closing:
            return
        self._heard_at = self._clock.monotonic()
        self._handle(self._connection.receive(data, self._heard_at))
        if self._connection.partial_bytes != self._partial_bytes:
            self._account_partial()
        self.flush()
        if not self._early.is_over and not self._wire.is_writable:
            # Nobody whose answers pile up before the first token means to read them.
            self._give_up(ServerBusyError("Answers wait that the client does not read."))

    def lost(self) -> None:
        """The stream has ended."""
        self._finish()

    def writable(self) -> None:
        """The wire takes bytes again."""
        for handler in list(self._handlers.values()):
            handler.on_writable()
        self.flush()

    # ---- called by the namespace

    def tick(self) -> None:
        """Heartbeats, idle times, the token deadline, tokens that have expired, entities that have gone or closed."""
        if self._over or self._is_closing:
            return
        try:
            self._tick()
        except Exception:  # noqa: BLE001 - see `end_by_fault`
            self.end_by_fault()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        if self._pressure.is_paused:
            self._connection.excuse(now)
        self._handle(self._connection.tick(now))
        if self._access.drop_expired():
            self._drop_unauthorised("ExpiredToken: The token is expired.")
        if now >= self._next_review:
            self._next_review = now + _REVIEW_SECONDS
            if self._access.drop_revoked():
                self._drop_unauthorised("InvalidSignature: The key that signed the token is no longer valid.")
        self._drop_closed()
        for handler in list(self._handlers.values()):
            handler.on_tick(now)
        self._transactions.tick()
        if self._idle.is_due(now):
            for link, error in self._idle.overdue(self._handlers, now):
                self.drop(link, error)
        overdue = self._early.overdue(now)
        if overdue is not None:
            self._give_up(overdue)
        self.flush()

    def begin_close(self, error: Error | None = None) -> None:
        """Close the connection from this side; one whose client has just sent something lasts until the client has answered.
        A stream that is ended with bytes unread takes with it what its client has not read yet: outcomes of what is stored.
        """
        if self._clock.monotonic() - self._heard_at > _BUSY_SECONDS or not self._connection.opened:
            self.close(error)
        elif not self._is_closing:
            self._connection.close(error)
            self.flush()

    def close(self, error: Error | None = None) -> None:
        """Close the connection from this side, and its stream at once."""
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

    def take_no_more(self) -> None:
        """The connection is about to be closed from this side, once what was taken is durable (I8)."""
        self._takes_no_more = True

    @property
    def owes(self) -> bool:
        """Whether outcomes of messages that were taken are still to be told."""
        return any(isinstance(each, IncomingLink) and each.owed.count > 0 for each in self._handlers.values())

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended."""
        return self._over

    @property
    def is_writable(self) -> bool:
        """Whether the wire takes more messages now."""
        return self._wire.is_writable and not self._takes_no_more

    def touch(self) -> None:
        """Flush once the turn is over."""
        self._namespace.touch(self)

    @property
    def large(self) -> LargeDesk:
        """Where large messages come from and go to."""
        return self._namespace.large

    def offer(self, sender_link: SenderLink) -> None:
        """A receiving link can take messages again."""
        if isinstance(sender_link, BrowseSenderLink):
            sender_link.offer()
        else:
            self._namespace.offer(sender_link)

    def offer_later(self, sender_link: SenderLink) -> None:
        """As `offer`, after a pause: a disk that refuses is not to be asked again at once."""
        self._namespace.call_later(_RETRY_SECONDS, lambda: self.offer(sender_link))

    def flush(self) -> None:
        """Send what was queued."""
        data = self._connection.take()
        if not data or self._wire_gone:
            return
        self._wire.write(data)
        if self._wire.unsent_bytes > _UNSENT_BYTES and not self._is_given_up:
            # Messages wait for the client to read; answers to what it sends do not.
            self._is_given_up = True
            error = ServerBusyError("Answers wait that the client does not read.")
            self._warn("connection closed", error)
            self.close(amqp_error(error))

    def statistics(self) -> dict[str, int]:
        """Links and bytes that wait for the disk."""
        return {
            "links": len(self._handlers),
            "waiting_bytes": self._pressure.waiting_bytes,
            **self._transactions.statistics(),
        }

    # ---- events

    _wire_gone = False
    _is_closing = False  # the client has closed or is sent away, and is told so behind what it is owed
    _is_given_up = False
    _takes_no_more = False

    def _handle(self, events: list[Event]) -> None:
        for event in events:
            handle = self._table.get(type(event))
            if handle is None or self._is_closing:
                continue
            try:
                handle(event)
            except IsthmusError as error:
                self._warn("connection closed", error)
                self.close(amqp_error(error))
                return
            except Exception:  # noqa: BLE001 - see `end_by_fault`
                self.end_by_fault()
                return

    def end_by_fault(self) -> None:
        """A fault of ours must cost this client its connection, and nobody else anything."""
        _log.exception("connection closed by a fault: peer=%s", self._wire.name)
        self.close(Error(Symbol("amqp:internal-error"), INTERNAL_TEXT))

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
        self._admit()
        return True

    def _admit(self) -> None:
        """The client has shown a token or a key that opens something."""
        if self._early.is_over:
            return
        self._early.is_over = True
        self._namespace.known_peers.add(self)
        self._wire.admit()
        if self._connection.opened:  # otherwise it is seen to when the client opens
            self._check_room(0)

    def _check_room(self, newcomers: int) -> None:
        """Close the connection if there are too many; those without a token do not count."""
        limit = self._limits.max_connections
        if len(self._namespace.known_peers) + newcomers > limit and not self._over:
            text = f"The maximum number of concurrent connections of the namespace, {limit}, has been reached."
            self._give_up(QuotaExceededError(text))

    def _on_opened(self, event: Opened) -> None:
        self._check_room(0 if self._early.is_over else 1)

    def _on_session_begun(self, event: SessionBegun) -> None:
        self._early.begin_session()

    def _on_attaching(self, event: LinkAttaching) -> None:
        link = event.link
        if link.detached or link.amqp_session.ended:
            return  # the client has given up in the same breath
        self._early.attach_link()
        if not self._departures.after(link, lambda: self._answer_late(link)):
            self._answer_attach(link)

    def _answer_late(self, link: Link) -> None:
        self._answer_attach(link)
        handler = self._handlers.get(link)
        if handler is not None:  # what the client has granted meanwhile had nobody to go to
            handler.on_credit()

    def _answer_attach(self, link: Link) -> None:
        if self._over or link.detached or link.amqp_session.ended:
            return  # while it waited for another link of its name to leave
        try:
            self._links.attach(link)
        except IsthmusError as error:
            self.refuse(link, error)

    def refuse(self, link: Link, error: IsthmusError) -> None:
        """Answer an attach with a refusal, and log it."""
        _, condition, text = refusal(error)
        _log.warning(
            "attach refused: peer=%s address=%.300r condition=%s reason=%.300s",
            self._wire.name, address_of(link), condition, text,
        )  # fmt: skip
        link.refuse(amqp_error(error))

    def require_any(self, path: str, token: str | None) -> None:
        """As `Access.require_any`; a token that is shown here counts for the connection's deadline too."""
        try:
            self._access.require_any(path, token)
        except UnauthorizedError:
            self._count_failure()
            raise
        self._admit()

    def _count_failure(self) -> None:
        """A token opened nothing; a client that only has such ones is closed."""
        error = self._early.fail()
        if error is not None and not self._over:
            self._give_up(error)

    def _on_transfers(self, event: Transfers) -> None:
        handler = self._handlers.get(event.link)
        self._early.request(len(event.payloads))
        if handler is not None and not self._takes_no_more:
            handler.on_transfers(event)

    def _on_parts(self, event: TransferParts) -> None:
        handler = self._handlers.get(event.link)
        self.is_taking_large = not event.is_last
        if handler is not None and not self._takes_no_more:
            handler.on_parts(event)

    @property
    def name(self) -> str:
        """Address of the client, for the log."""
        return self._wire.name

    def replies(self) -> list[Replies]:
        """The links on which replies of nodes go to the client."""
        return [handler for handler in self._handlers.values() if isinstance(handler, Replies)]

    def answer_cbs(self, request: Request, respond: Respond) -> None:
        """The client shows a token."""
        reply = cbs.put_token(request, self._access, self._namespace.has_entity)
        respond(reply)
        if reply.status in (400, 401):
            self._count_failure()
        else:
            self._early.succeed()
        if self._access.take_lost():
            self._drop_unauthorised("The token that replaced another one does not permit this.")
        if self._access.has_grant and not self._over:
            self._admit()

    def _on_disposed(self, event: Disposed) -> None:
        handler = self._handlers.get(event.link)
        if handler is not None:
            handler.on_disposed(event.first, event.last, event.state, event.settled)

    def _on_credit(self, event: CreditChanged) -> None:
        handler = self._handlers.get(event.link)
        if handler is not None:
            handler.on_credit()

    def _on_detached(self, event: LinkDetached) -> None:
        if event.error is not None:
            _log.warning(
                "link detached: peer=%s address=%.300r condition=%s reason=%.300s",
                self._wire.name, address_of(event.link), event.error.condition, event.error.description,
            )  # fmt: skip
        self._forget(event.link)

    def _on_session_ended(self, event: SessionEnded) -> None:
        if event.error is not None:
            _log.warning("session ended: peer=%s condition=%s", self._wire.name, event.error.condition)
        for link in [link for link in (*self._handlers, *self._waits) if link.amqp_session is event.amqp_session]:
            self._forget(link)
        self._departures.end(event.amqp_session)

    def _on_closed(self, event: Closed) -> None:
        if event.error is not None:
            _log.warning(
                "connection closed: peer=%s condition=%s reason=%.300s",
                self._wire.name, event.error.condition, event.error.description,
            )  # fmt: skip
        if not event.by_peer:
            self._end()
            return
        self._is_closing = True
        for link in (*self._handlers, *self._waits):
            self._forget(link)
        self._departures.when_empty(self._end)

    def _end(self) -> None:
        """Close the stream behind what was said."""
        self._connection.close()
        self.flush()
        self._finish()
        self._wire.close()

    # ---- inside

    def _drop_unauthorised(self, reason: str) -> None:
        """Detach the links that no token permits any more."""
        for link, handler in list(self._handlers.items()):
            if not handler.is_permitted(self._access):
                self.drop(link, UnauthorizedError(reason))

    def _drop_closed(self) -> None:
        """Detach the links whose entity was deleted or disabled."""
        for link, handler in list(self._handlers.items()):
            try:
                handler.check_open()
            except IsthmusError as error:
                self.drop(link, error)

    def _account_partial(self) -> None:
        """Note how much of messages that are not whole this client holds; one that makes it too much is closed."""
        if self._over or self._is_closing:
            return
        now, before = self._connection.partial_bytes, self._partial_bytes
        self._partial_bytes = now
        self._namespace.partial_bytes += now - before
        if now > before and self._namespace.partial_bytes > self._limits.max_partial_bytes:
            self._give_up(ServerBusyError("Too many large messages are under way to the namespace; try again later."))

    def _give_up(self, error: IsthmusError) -> None:
        """Close the connection for what its client did; nothing more is read, and what was taken is told before (I7)."""
        if self._over or self._is_closing:
            return
        self._warn("connection closed", error)
        self._is_closing = True
        self._namespace.partial_bytes -= self._partial_bytes
        self._partial_bytes = 0
        for link in (*self._handlers, *self._waits):
            self._forget(link)
        self._departures.when_empty(lambda: self.close(amqp_error(error)))

    def drop(self, link: Link, error: IsthmusError) -> None:
        """Detach a link from this side, once what is on its way on it has been sent."""
        handler = self._handlers.get(link)
        if handler is None:
            self._drop(link, error)
        else:
            handler.when_sent(lambda: self._drop(link, error))

    def _drop(self, link: Link, error: IsthmusError) -> None:
        if not link.detached:
            self._warn("link detached", error, address_of(link))
            link.begin_detach(amqp_error(error))
        self._forget(link)
        self.touch()

    def _forget(self, link: Link) -> None:
        wait = self._waits.pop(link, None)
        if wait is not None:
            wait.cancel()
        handler = self._handlers.pop(link, None)
        self._idle.forget(link)
        self.is_taking_large = False
        if handler is not None:
            handler.close()
        if isinstance(handler, SenderLink):
            self._namespace.remove_sender_link(handler)
        self._departures.detach(link, None if handler is None else handler.owed)

    def _finish(self) -> None:
        was_over = self._over
        if not was_over:
            self._namespace.partial_bytes -= self._partial_bytes
        self._over = True
        self._wire_gone = True
        for link in (*self._handlers, *self._waits):
            self._forget(link)
        self._departures.clear()
        if not was_over:
            self._links.release()
            self._pressure.release()
        self._namespace.forget(self)
        # The circles in which all of a connection hangs together are cut: the collector comes by seldom.
        self._connection.release()
        self._table = {}

    def _warn(self, what: str, error: Exception, node: object = None) -> None:
        _, condition, text = refusal(error)
        _log.warning("%s: peer=%s node=%.300r condition=%s reason=%.300s", what, self._wire.name, node, condition, text)
