"""One client's connection: AMQP events in, effects on entities and answers out.

What it is: SASL, the attach decisions, the table from links to what serves them, and the connection's deadlines. What
it is not: a socket (`isthmus.broker.net.shell`, `isthmus.broker.net.websocket`), nor any link's work.
Spec: docs/explanation/protocol.md, Connection, Tokens, Links.
It is over 400 lines since every event of a connection is decided here, and the decisions share its state.

Invariants:
    I1. A link is attached only to an entity that exists and for which the connection holds the right; every refusal has
        the service's condition, and leaves one line in the log.
    I2. A connection without a valid token is closed 20 s after it opened; a link whose token has expired is detached.
    I3. Nothing that a client sends raises: what is its fault is answered at the scope where it went wrong, what is ours
        closes this connection only.
    I4. Before its first token a client holds a few sessions, links and answers of bounded size, whatever it sends; all
        clients together hold a bounded number of bytes of messages that are not whole yet.
    I5. A link whose entity is disabled or deleted, or that was idle for as long as the namespace allows, is detached.
    I6. A client that reads nothing is closed before what waits for it fills the memory.
    I7. The end of a link, session or connection is told behind the outcomes that are owed (`isthmus.broker.link.departure`).
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
    Role,
    SaslInit,
    SentSettled,
    SessionBegun,
    SessionEnded,
    TransferParts,
    Transfers,
)
from isthmus.amqp.performative import Coordinator as CoordinatorTarget
from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Symbol, ULong
from isthmus.broker.hub import HUB_NODE, HubSenderLink
from isthmus.broker.large import LargeDesk
from isthmus.broker.link.browse import BrowseSenderLink
from isthmus.broker.link.condition import INTERNAL_TEXT, amqp_error, refusal
from isthmus.broker.link.coordinator import Coordinator, Transactions
from isthmus.broker.link.departure import Departures
from isthmus.broker.link.idle import IdleWatch
from isthmus.broker.link.incoming_link import IncomingLink
from isthmus.broker.link.node import Answer, Requests
from isthmus.broker.link.partitioned import PartitionedReceiverLink, PartitionedSenderLink
from isthmus.broker.link.receiver_link import BATCH_BYTES, ReceiverLink
from isthmus.broker.link.request import Replies, Request, Respond, Style
from isthmus.broker.link.selection import browses, check_selection
from isthmus.broker.link.sender_link import SenderLink
from isthmus.broker.link.session_attach import SessionSenderLink, SessionWait, Wanted, wait_seconds, wanted_session
from isthmus.broker.management import MANAGEMENT_STYLE, MANAGEMENT_SUFFIX, Management
from isthmus.broker.net.wire import Wire
from isthmus.broker.security import cbs
from isthmus.broker.security.access import Access
from isthmus.broker.security.keyring import Right
from isthmus.entities.port import MessageTarget, SessionLock, Sessions
from isthmus.errors import (
    InvalidArgumentError,
    IsthmusError,
    NotAllowedError,
    QuotaExceededError,
    ServerBusyError,
    SessionLockLostError,
    UnauthorizedError,
)
from isthmus.message import DUPLICATE_KEYS
from isthmus.message.name import NAMESPACE_ID

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["Peer"]

_log = logging.getLogger(__name__)

_MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS")
# As the service opens.
_MAX_FRAME_SIZE_BYTES = 65536
# Bytes of one connection that may wait for the disk before it is read no further.
_INTAKE_HIGH_BYTES = 32 << 20
_INTAKE_LOW_BYTES = 8 << 20
# The same of large messages: others wait for the disk behind what they leave to be synced. All connections together may
# have more, but with more than that each only what one read brings.
_LARGE_HIGH_BYTES = 1 << 20
_LARGE_LOW_BYTES = 256 << 10
_LARGE_TOGETHER_BYTES = 64 << 20
# By how much a message may be over the limit and still be read to its end, to be rejected.
_OVERSIZE_BYTES = 16 << 20
_TRANSFER_DESTINATION = "com.microsoft:transfer-destination-address"
_MAX_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")
_LOCAL_TRANSACTIONS = "amqp:local-transactions"
# A declare or discharge is some 60 bytes.
_DISCHARGE_BYTES = 4096
# What a client needs to show its first token, with room: SDKs open one or two sessions with two links each.
_EARLY_SESSIONS = 8
_EARLY_LINKS = 32
_EARLY_REQUESTS = 64
# Tokens in a row that open nothing. A client with many entities shows as many when its key was taken away.
_FAILURES = 100
# A token of 16 KiB and what describes it, with room for one that is told to be too long: requests that are read before
# any right is known.
_CBS_REQUEST_BYTES = 64 << 10
# Answers that a client leaves unread; nobody who reads at all comes near it.
_UNSENT_BYTES = 256 << 20
# After the disk refused a deletion.
_RETRY_SECONDS = 1.0
# How long a key that was taken away may still be of use.
_REVIEW_SECONDS = 2.0

_Handler = IncomingLink | SenderLink | HubSenderLink | Requests | Replies | Coordinator


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
        self._handlers: dict[Link, _Handler] = {}
        self._waits: dict[Link, SessionWait] = {}
        self._transactions = Transactions(namespace.engine, namespace.clock, self._access.require)
        self._limits = namespace.limits
        now = self._clock.monotonic()
        self._token_deadline: float | None = now + self._limits.token_deadline_ms / 1000
        self._early_sessions = self._early_links = self._early_requests = 0
        self._failures = 0
        self._partial_bytes = 0
        self._idle = IdleWatch(namespace.limits, now)
        self._next_review = now + _REVIEW_SECONDS
        self._waiting_bytes = self._large_bytes = 0
        self.is_taking_large = False
        self._paused = False
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
        if self._over:
            return
        self._handle(self._connection.receive(data, self._clock.monotonic()))
        if self._connection.partial_bytes != self._partial_bytes:
            self._account_partial()
        self.flush()
        if self._token_deadline is not None and not self._wire.is_writable:
            # Nobody whose answers pile up before the first token means to read them.
            self._give_up(ServerBusyError("Answers wait that the client does not read."))

    def lost(self) -> None:
        """The stream has ended."""
        self._finish()

    def writable(self) -> None:
        """The wire takes bytes again."""
        for handler in list(self._handlers.values()):
            if isinstance(handler, SenderLink):
                handler.resume()
                self.offer(handler)
            elif isinstance(handler, HubSenderLink):
                handler.offer()
            elif isinstance(handler, Replies):
                handler.resume()
        self.flush()

    # ---- called by the namespace

    def tick(self) -> None:
        """Heartbeats, idle times, the token deadline, tokens that have expired, entities that have gone or closed."""
        if self._over or self._is_closing:
            return
        try:
            self._tick()
        except Exception:  # noqa: BLE001 - see `_end_by_fault`
            self._end_by_fault()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        self._handle(self._connection.tick(now))
        if self._access.drop_expired():
            self._drop_unauthorised("ExpiredToken: The token is expired.")
        if now >= self._next_review:
            self._next_review = now + _REVIEW_SECONDS
            if self._access.drop_revoked():
                self._drop_unauthorised("InvalidSignature: The key that signed the token is no longer valid.")
        self._drop_closed()
        self._transactions.tick()
        if self._idle.is_due(now):
            for link, error in self._idle.overdue(self._handlers, now):
                self._drop(link, error)
        if self._token_deadline is not None and now >= self._token_deadline:
            seconds = self._limits.token_deadline_ms / 1000
            self._give_up(UnauthorizedError(f"No valid token was presented in {seconds:g} seconds."))
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
            self._give_up(ServerBusyError("Answers wait that the client does not read."))

    def statistics(self) -> dict[str, int]:
        """Links and bytes that wait for the disk."""
        return {
            "links": len(self._handlers),
            "waiting_bytes": self._waiting_bytes,
            **self._transactions.statistics(),
        }

    # ---- events

    _wire_gone = False
    _is_closing = False  # the client has closed, and waits for the answer
    _is_given_up = False

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
            except Exception:  # noqa: BLE001 - see `_end_by_fault`
                self._end_by_fault()
                return

    def _end_by_fault(self) -> None:
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
        if self._token_deadline is None:
            return
        self._token_deadline = None
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
        self._check_room(0 if self._token_deadline is None else 1)

    def _on_session_begun(self, event: SessionBegun) -> None:
        if self._token_deadline is not None:
            self._early_sessions += 1
            if self._early_sessions > _EARLY_SESSIONS:
                raise QuotaExceededError(f"More than {_EARLY_SESSIONS} sessions began before the first token.")

    def _on_attaching(self, event: LinkAttaching) -> None:
        link = event.link
        if link.detached or link.amqp_session.ended:
            return  # the client has given up in the same breath
        if self._token_deadline is not None:
            self._early_links += 1
            if self._early_links > _EARLY_LINKS:
                raise QuotaExceededError(f"More than {_EARLY_LINKS} links were attached before the first token.")
        if not self._departures.after(link, lambda: self._answer_attach(link)):
            self._answer_attach(link)

    def _answer_attach(self, link: Link) -> None:
        if link.detached or link.amqp_session.ended:
            return  # while it waited for another link of its name to leave
        try:
            self._attach(link)
        except IsthmusError as error:
            self._refuse(link, error)

    def _refuse(self, link: Link, error: IsthmusError) -> None:
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
        if isinstance(link.target, CoordinatorTarget):
            self._attach_coordinator(link)
            return
        address = _address(link)
        if not isinstance(address, str) or not address:
            raise InvalidArgumentError("The link names no address.")
        path = _path(address)
        if path.lower() == cbs.CBS_NODE:
            self._attach_node(link, cbs.CBS_NODE, cbs.CBS_STYLE, self._answer_cbs, _CBS_REQUEST_BYTES)
        elif path.lower() == HUB_NODE:
            self._attach_hub_management(link)
        elif self._namespace.hub_gate.claims(path):
            self._handlers[link] = self._namespace.hub_gate.attach(
                link, path, self, require=self._access.require, account=self._account, drop=self._drop
            )
        elif path.lower().endswith(MANAGEMENT_SUFFIX):
            self._attach_management(link, path)
        elif link.role is Role.RECEIVER:
            self._access.require(path, Right.SEND)
            onward = (link.properties or {}).get(_TRANSFER_DESTINATION)
            destination: MessageTarget = (
                self._namespace.engine.sender(path) if onward is None else self._transfer(path, onward)
            )
            destination.check_sendable()
            limit_bytes = destination.max_message_size_bytes
            told = {_MAX_BATCH_SIZE: ULong(BATCH_BYTES)} if limit_bytes > BATCH_BYTES else None
            takes_copies = onward is None and DUPLICATE_KEYS in link.desired_capabilities
            offered = [DUPLICATE_KEYS] if takes_copies else None
            link.accept(max_message_size=limit_bytes, properties=told, offered_capabilities=offered)
            # A message over the limit is rejected by itself; only one that is far over it costs the client its link.
            link.max_message_size_bytes = limit_bytes + _OVERSIZE_BYTES
            kind = PartitionedReceiverLink if destination.is_partitioned else ReceiverLink
            desk = self.large if destination.takes_bodies else None
            receiver_link = kind(
                link,
                path,
                destination,
                self._account,
                self._transactions,
                desk,
                self._account_large,
                batch_limit=self._limits.max_messages_per_batch,
                credit=self._limits.sender_credit,
                takes_copies=takes_copies,
            )
            if onward is not None:
                receiver_link.destinations = (_path(onward),)
            self._handlers[link] = receiver_link
            receiver_link.open()
        else:
            self._access.require(path, Right.LISTEN)
            self._attach_sender_link(link, path)

    def _transfer(self, path: str, onward: object) -> MessageTarget:
        """The way via an entity to where a link's property says."""
        if not isinstance(onward, str) or not onward:
            raise InvalidArgumentError(f"'{_TRANSFER_DESTINATION}' names no address.")
        to = _path(onward)
        self._access.require(to, Right.SEND)
        return self._namespace.engine.via(path, to)

    def _attach_coordinator(self, link: Link) -> None:
        self._namespace.engine.check_transactions()
        # The Java SDK attaches it before it shows the first token; what takes part in a transaction needs its right.
        link.accept(max_message_size=_DISCHARGE_BYTES, offered_capabilities=[_LOCAL_TRANSACTIONS])
        coordinator = Coordinator(link, self._transactions, self.touch)
        self._handlers[link] = coordinator
        coordinator.open()

    def _attach_sender_link(self, link: Link, path: str) -> None:
        queue = self._namespace.engine.receiver(path)
        check_selection(link.source)
        if browses(link.source):
            queue.check_receivable()
            link.accept()
            self._handlers[link] = BrowseSenderLink(link, path, queue, self, self._transactions)
            return
        queue.check_stays()
        wanted = wanted_session(link.source)
        if queue.sessions is not None and wanted is not None:
            self._attach_session(link, path, queue.sessions, wanted)
            return
        if queue.requires_session:
            raise NotAllowedError(
                f"It is not possible for an entity that requires sessions to create a non-sessionful message receiver: '{path}'."
            )
        if wanted is not None:
            raise NotAllowedError(
                f"A sessionful message receiver cannot be created on an entity that does not require sessions: '{path}'."
            )
        queue.check_receivable()
        limit = self._limits.max_receivers_per_entity
        if self._namespace.receivers(queue) >= limit:
            raise QuotaExceededError(f"'{path}' has {limit} receivers, as many as it may have.")
        link.accept()
        kind = PartitionedSenderLink if queue.is_partitioned else SenderLink
        sender_link = kind(link, path, queue, self, self._transactions)
        self._handlers[link] = sender_link
        self._namespace.add_sender_link(sender_link)

    def _attach_session(self, link: Link, path: str, queue: Sessions, wanted: Wanted) -> None:
        """Give a session, or wait for one; the attach is answered when there is one, or when the time is over."""

        def is_wanted() -> bool:
            """What the same read says may be known already: the link's own end, or that of its session."""
            if link.detached or link.amqp_session.ended or self._over:
                return False
            if not self._access.permits(path, Right.LISTEN):  # the token may have expired in the meantime
                raise UnauthorizedError("ExpiredToken: The token is expired.")
            return True

        def granted(hold: SessionLock) -> None:
            self._waits.pop(link, None)
            try:
                sender_link = SessionSenderLink(link, path, wanted, hold, self, self._transactions)
            except Exception:  # noqa: BLE001 - this may be another client's turn, which has no part in it
                hold.release()
                self._end_by_fault()
                return
            hold.on_lost = lambda: self._drop(link, SessionLockLostError(queue.path, hold.session_id))
            self._handlers[link] = sender_link
            self._namespace.add_sender_link(sender_link)
            self._namespace.offer(sender_link)
            self.touch()

        def refused(error: IsthmusError) -> None:
            self._waits.pop(link, None)
            self._refuse(link, error)
            self.touch()

        limit = self._limits.max_receivers_per_entity
        if queue.receiver_count >= limit:
            raise QuotaExceededError(f"'{path}' has {limit} receivers, as many as it may have.")
        if wanted.session_id is not None:
            granted(queue.open_session(wanted.session_id, self, link.name))
            return
        wait = SessionWait(queue, self, link.name, is_wanted, granted, refused)
        if not wait.look():
            self._waits[link] = wait
            wait.timer = self._namespace.call_later(wait_seconds(link), wait.time_out)

    def _attach_management(self, link: Link, path: str) -> None:
        entity = path[: -len(MANAGEMENT_SUFFIX)]
        if not any(self._access.permits(path, right) for right in Right):
            self._access.require(path, Right.LISTEN)
        management = Management(
            self._namespace.engine,
            entity,
            lambda right: self._access.require(path, right),
            self._namespace.commits.when_durable,
            self,
        )
        limit_bytes = self._namespace.max_request_bytes
        self._attach_node(link, path.lower(), MANAGEMENT_STYLE, management.answer, limit_bytes, self._transactions)

    def _attach_hub_management(self, link: Link) -> None:
        # The Java SDK attaches it before any token and shows one in each request.
        management = self._namespace.hub_gate.management(self._require_any)
        self._attach_node(link, HUB_NODE, cbs.CBS_STYLE, management.answer, _CBS_REQUEST_BYTES)

    def _require_any(self, path: str, token: str | None) -> None:
        """As `Access.require_any`; a token that is shown here counts for the connection's deadline too."""
        try:
            self._access.require_any(path, token)
        except UnauthorizedError:
            self._count_failure()
            raise
        self._admit()

    def _count_failure(self) -> None:
        """A token opened nothing; a client that only has such ones is closed."""
        self._failures += 1
        if self._failures > _FAILURES and not self._over:
            self._give_up(UnauthorizedError(f"{self._failures} tokens in a row opened nothing."))

    def _attach_node(
        self,
        link: Link,
        node: str,
        style: Style,
        answer: Answer,
        limit_bytes: int,
        transactions: Transactions | None = None,
    ) -> None:
        if link.role is Role.RECEIVER:
            link.accept(max_message_size=limit_bytes)
            requests = Requests(link, node, style, answer, self, transactions)
            self._handlers[link] = requests
            requests.open()
        else:
            link.accept()
            self._handlers[link] = Replies(link, node, self)

    def _on_transfers(self, event: Transfers) -> None:
        handler = self._handlers.get(event.link)
        if self._token_deadline is not None:
            self._early_requests += len(event.payloads)
            if self._early_requests > _EARLY_REQUESTS:
                raise QuotaExceededError(f"More than {_EARLY_REQUESTS} requests were sent before the first token.")
        if isinstance(handler, IncomingLink | Requests | Coordinator):
            handler.on_transfers(event)

    def _on_parts(self, event: TransferParts) -> None:
        handler = self._handlers.get(event.link)
        self.is_taking_large = not event.is_last
        if isinstance(handler, ReceiverLink):
            handler.on_parts(event)

    @property
    def name(self) -> str:
        """Address of the client, for the log."""
        return self._wire.name

    def replies(self) -> list[Replies]:
        """The links on which replies of nodes go to the client."""
        return [handler for handler in self._handlers.values() if isinstance(handler, Replies)]

    def _answer_cbs(self, request: Request, respond: Respond) -> None:
        reply = cbs.put_token(request, self._access, self._namespace.has_entity)
        respond(reply)
        if reply.status in (400, 401):
            self._count_failure()
        else:
            self._failures = 0
        if self._access.take_lost():
            self._drop_unauthorised("The token that replaced another one does not permit this.")
        if self._access.has_grant and not self._over:
            self._admit()

    def _on_disposed(self, event: Disposed) -> None:
        handler = self._handlers.get(event.link)
        if isinstance(handler, SenderLink):
            handler.on_disposed(event.first, event.last, event.state, event.settled)

    def _on_credit(self, event: CreditChanged) -> None:
        handler = self._handlers.get(event.link)
        if isinstance(handler, SenderLink):
            handler.grants += 1
            handler.resume()
            self.offer(handler)
        elif isinstance(handler, HubSenderLink):
            handler.grants += 1
            handler.offer()
        elif isinstance(handler, IncomingLink | Requests | Coordinator):
            handler.top_up()
        elif isinstance(handler, Replies):
            handler.resume()
            if event.link.drain and not event.link.is_sending:
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

    def _account(self, size_bytes: int) -> None:
        """Bytes began or ceased to wait for the disk; a client that is ahead of the disk is read no further."""
        self._waiting_bytes += size_bytes
        if self._paused or self._waiting_bytes > _INTAKE_HIGH_BYTES:
            self._regulate()
        if size_bytes <= 0:
            self.touch()

    def _account_large(self, size_bytes: int) -> None:
        """As `_account`, of bytes of large messages."""
        self._large_bytes += size_bytes
        self._regulate()

    def _regulate(self) -> None:
        """Read on, or read no further."""
        waiting, large = self._waiting_bytes, self._large_bytes
        if (
            waiting > _INTAKE_HIGH_BYTES
            or large > _LARGE_HIGH_BYTES
            or (large and self.large.waiting_bytes > _LARGE_TOGETHER_BYTES)
        ):
            if not self._paused:
                self._paused = True
                self._wire.pause_reading()
        elif self._paused and waiting < _INTAKE_LOW_BYTES and large < _LARGE_LOW_BYTES:
            self._paused = False
            if not self._wire_gone:
                self._wire.resume_reading()

    def _drop_unauthorised(self, reason: str) -> None:
        """Detach the links that no token permits any more."""
        for link, handler in list(self._handlers.items()):
            if isinstance(handler, IncomingLink):
                paths = (handler.path, *handler.destinations)
                ok = all(self._access.permits(path, Right.SEND) for path in paths)
            elif isinstance(handler, SenderLink | HubSenderLink):
                ok = self._access.permits(handler.path, Right.LISTEN)
            elif isinstance(handler, Coordinator) or handler.node == HUB_NODE:
                ok = self._access.has_grant
            else:
                ok = handler.node == cbs.CBS_NODE or any(self._access.permits(handler.node, right) for right in Right)
            if not ok:
                self._drop(link, UnauthorizedError(reason))

    def _drop_closed(self) -> None:
        """Detach the links whose entity was deleted or disabled."""
        for link, handler in list(self._handlers.items()):
            if isinstance(handler, IncomingLink | SenderLink | HubSenderLink):
                try:
                    handler.check_open()
                except IsthmusError as error:
                    self._drop(link, error)

    def _account_partial(self) -> None:
        """Note how much of messages that are not whole this client holds; one that makes it too much is closed."""
        now, before = self._connection.partial_bytes, self._partial_bytes
        self._partial_bytes = now
        self._namespace.partial_bytes += now - before
        if now > before and self._namespace.partial_bytes > self._limits.max_partial_bytes:
            self._give_up(ServerBusyError("Too many large messages are under way to the namespace; try again later."))

    def _give_up(self, error: IsthmusError) -> None:
        """Close the connection for what its client did."""
        self._warn("connection closed", error)
        self.close(amqp_error(error))

    def _drop(self, link: Link, error: IsthmusError) -> None:
        if not link.detached:
            self._warn("link detached", error, _address(link))
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
        if isinstance(handler, SenderLink):
            handler.close()
            self._namespace.remove_sender_link(handler)
        elif isinstance(handler, Coordinator | HubSenderLink | ReceiverLink | Replies):
            handler.close()
        self._departures.detach(
            link, handler.owed if isinstance(handler, IncomingLink | SenderLink | Coordinator) else None
        )

    def _finish(self) -> None:
        if not self._over:
            self._namespace.partial_bytes -= self._partial_bytes
        self._over = True
        self._wire_gone = True
        for link in (*self._handlers, *self._waits):
            self._forget(link)
        self._departures.clear()
        self._namespace.peers.discard(self)
        self._namespace.known_peers.discard(self)
        # The circles in which all of a connection hangs together are cut: the collector comes by seldom.
        self._connection.release()
        self._table = {}

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
