"""One client's connection: AMQP events in, effects on entities and answers out.

What it is: the bytes of one client, its connection's deadlines, and its end. What it is not: a socket (`isthmus.broker.net.shell`,
`isthmus.broker.net.websocket`), its links (`isthmus.broker.connection.link_table`, `attachment`), its authentication
(`isthmus.broker.connection.authentication`), nor any link's work.
Spec: docs/explanation/protocol.md, Connection.

Invariants:
    I1. A connection without a valid token is closed 20 s after it opened.
    I2. No input of a client raises: its faults are answered at the scope of the fault, faults of the namespace close this connection only.
    I3. Before its first token a client has only a few sessions, links and answers of bounded size, whatever it sends; all
        clients together have a bounded number of bytes of messages that are not whole yet.
    I4. A client that reads nothing is disconnected before the bytes that wait for it fill the memory.
    I5. The end of a connection is sent after its outstanding outcomes (`isthmus.broker.link.departure`); where this side ends it because of
        its client's behaviour, also after messages that were deleted for the client.
    I6. From a client whose connection is about to be closed no message or request is taken, and none is sent to it: the
        outcome of the one could not reach it, and the other would be lost. Its settlements are taken, and messages that were deleted for it are sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from isthmus.amqp import (
    Closed,
    Connection,
    CreditChanged,
    Disposed,
    Error,
    Event,
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
from isthmus.broker.connection.attachment import Attachments
from isthmus.broker.connection.authentication import MECHANISMS, Authentication
from isthmus.broker.connection.awaited import AwaitedBytes
from isthmus.broker.connection.back_pressure import BackPressure
from isthmus.broker.connection.early_access import EarlyAccess
from isthmus.broker.connection.idle import IdleWatch
from isthmus.broker.connection.link_table import LinkTable
from isthmus.broker.connection.partial_account import PartialAccount
from isthmus.broker.large import LargeDesk
from isthmus.broker.link.condition import INTERNAL_TEXT, amqp_error, refusal
from isthmus.broker.link.coordinator import Transactions
from isthmus.broker.link.request import Replies
from isthmus.broker.link.sender_link import SenderLink
from isthmus.broker.net.wire import Wire
from isthmus.broker.security.access import Access
from isthmus.errors import IsthmusError, QuotaExceededError, ServerBusyError, UnauthorizedError
from isthmus.message.name import NAMESPACE_ID

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["Peer"]

_log = logging.getLogger(__name__)

# As the service opens.
_MAX_FRAME_SIZE_BYTES = 65536
# Unread answers of a client; no client that reads at all comes near this.
_UNSENT_BYTES = 256 << 20
# After the disk refused a deletion.
_RETRY_SECONDS = 1.0
# A client that has sent nothing for so long has nothing in transit.
_BUSY_SECONDS = 1.0


class Peer:
    """One client.

    Args:
        namespace: that the client connected to.
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
            idle_timeout_ms=namespace.limits.connection_idle_timeout_ms,
            sasl=MECHANISMS,
            require_sasl=False,
            answers_at_once=False,
            properties={Symbol(NAMESPACE_ID): namespace.identity},
        )
        self._limits = namespace.limits
        now = self._clock.monotonic()
        self._early = EarlyAccess(now, self._limits.token_deadline_ms / 1000)
        self._access = Access(namespace.authority, namespace.token_clock)
        self._transactions = Transactions(namespace.engine, namespace.clock, self._access.require)
        self._pressure = BackPressure(wire, lambda: namespace.large, self.touch_awaited)
        self._links = LinkTable(wire.name, self._early, IdleWatch(namespace.limits, now), namespace, self.touch)
        self._authentication = Authentication(
            self._access,
            self._early,
            namespace.has_entity,
            now,
            on_admitted=self._admitted,
            on_lost=lambda reason: self._links.end_unauthorised(self._access, reason),
            give_up=self._give_up,
        )
        self._attachments = Attachments(
            namespace, self, self._links, self._authentication, self._access, self._transactions, self._pressure
        )
        links = self._links
        links.attach, links.on_lost = self._attachments.attach, self._transactions.lose
        self._partial = PartialAccount(namespace, self._limits.max_partial_bytes)
        self._awaited = AwaitedBytes(wire)
        self._received_at = now
        self._table: dict[type, Callable[[Any], None]] = {
            Transfers: links.on_transfers,
            TransferParts: links.on_parts,
            Disposed: links.on_disposed,
            CreditChanged: links.on_credit,
            LinkAttaching: links.on_attaching,
            LinkDetached: links.on_detached,
            Opened: self._on_opened,
            SessionBegun: links.on_session_begun,
            SessionEnded: links.on_session_ended,
            SaslInit: self._on_sasl,
            SentSettled: lambda event: None,
            Closed: self._on_closed,
        }
        namespace.peers.add(self)

    # ---- called by the wire

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._is_closing:
            return
        self._received_at = self._clock.monotonic()
        self._handle(self._connection.receive(data, self._received_at))
        if self._connection.partial_bytes != self._partial.nbytes and not self._is_closing:
            error = self._partial.update(self._connection.partial_bytes)
            if error is not None:
                self._give_up(error)
        self.flush()
        if not self._early.is_over and not self._wire.is_writable:
            # A client whose answers accumulate before the first token does not read them.
            self._give_up(ServerBusyError("Answers wait that the client does not read."))

    def lost(self) -> None:
        """The stream has ended."""
        self._finish()

    def writable(self) -> None:
        """The wire takes bytes again."""
        self._links.writable()
        self.flush()

    # ---- called by the namespace

    def tick(self) -> None:
        """Runs the timers: heartbeats, idle time-outs, the token deadline, expired tokens, deleted or disabled entities."""
        if self._is_closing:
            return
        try:
            self._tick()
        except Exception:  # noqa: BLE001 - see `end_by_fault`
            self.end_by_fault()

    def _tick(self) -> None:
        now = self._clock.monotonic()
        if self._pressure.is_paused:
            self._connection.reset_idle(now)
        self._handle(self._connection.tick(now))
        self._authentication.tick(now)
        self._links.tick(now)
        self._transactions.tick()
        self._links.end_idle(now)
        overdue = self._early.overdue(now)
        if overdue is not None:
            self._give_up(overdue)
        self.flush()

    def begin_close(self, error: Error | None = None) -> None:
        """Close the connection from this side; one whose client has just sent something stays open until the client has answered.
        Closing a socket with unread bytes would discard bytes that its client has not read yet: outcomes of stored messages.
        """
        if self._clock.monotonic() - self._received_at > _BUSY_SECONDS or not self._connection.opened:
            self.close(error)
        elif not self._is_closing:
            self._connection.close(error)
            self.flush()

    def close(self, error: Error | None = None) -> None:
        """Close the connection from this side, and its stream at once."""
        if self._links.is_over:
            return
        if self._connection.opened:
            self._connection.close(error)
            self.flush()
        self._finish()
        self._wire.close()

    def take_no_more(self) -> None:
        """The connection is about to be closed from this side, once accepted messages are durable (I6)."""
        self._links.take_no_more()

    @property
    def owes(self) -> bool:
        """Whether outcomes, replies, or messages that were deleted for the client have not left this process yet."""
        return self._links.owes or self._awaited.are_unsent

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended."""
        return self._links.is_over

    @property
    def is_writable(self) -> bool:
        """Whether the wire takes more messages now."""
        return self._wire.is_writable and not self._links.takes_no_more

    @property
    def takes_bytes(self) -> bool:
        """Whether the wire does, be it for what is left to be told."""
        return self._wire.is_writable

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait to be sent."""
        return self._wire.unsent_bytes

    def touch(self) -> None:
        """Schedules a flush at the end of the loop's iteration."""
        self._namespace.touch(self)

    def touch_awaited(self) -> None:
        """As `touch`, for what a stop waits for (`awaited`): e.g. without an outcome the client may send its messages again."""
        self._awaited.add()
        self._namespace.touch(self)

    @property
    def large(self) -> LargeDesk:
        """The handler of large messages."""
        return self._namespace.large

    def offer(self, sender_link: SenderLink) -> None:
        """A receiving link can take messages again."""
        self._namespace.offer(sender_link)

    def offer_later(self, sender_link: SenderLink) -> None:
        """As `offer`, after a pause: a disk that refuses must not be asked again at once."""
        self._namespace.call_later(_RETRY_SECONDS, sender_link.offer)

    def flush(self) -> None:
        """Sends queued bytes."""
        data = self._connection.take()
        if not data or self._wire_gone:
            return
        self._wire.write(data)
        self._awaited.wrote(len(data))
        if self._wire.unsent_bytes > _UNSENT_BYTES and not self._is_given_up:
            # Messages wait for the client to read; answers to what it sends do not.
            self._is_given_up = True
            error = ServerBusyError("Answers wait that the client does not read.")
            self._warn("connection closed", error)
            self.close(amqp_error(error))

    def statistics(self) -> dict[str, int]:
        """Links and bytes that wait for the disk."""
        return {
            "links": len(self._links.handlers),
            "waiting_bytes": self._pressure.waiting_bytes,
            **self._transactions.statistics(),
        }

    # ---- events

    _wire_gone = _is_given_up = False
    # The connection is being closed, and the Close is sent after outstanding outcomes; or it is lost.
    _is_closing = False

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
        """A fault of the namespace closes this connection, and affects no other."""
        _log.exception("connection closed by a fault: peer=%s", self._wire.name)
        self.close(Error(Symbol("amqp:internal-error"), INTERNAL_TEXT))

    def _on_sasl(self, event: SaslInit) -> None:
        ok = self._authentication.take_sasl(event)
        if not ok:
            self._warn("sasl refused", UnauthorizedError(f"mechanism {event.mechanism[:32]!r}"))
        self._handle(self._connection.sasl_outcome(ok))

    def _admitted(self) -> None:
        """The client has shown a token or a key that grants a right."""
        if self._links.is_over:
            return
        self._namespace.known_peers.add(self)
        self._wire.admit()
        if self._connection.opened:  # otherwise this is done when the client opens
            self._check_room(0)

    def _check_room(self, newcomers: int) -> None:
        """Close the connection if there are too many; those without a token do not count."""
        limit = self._limits.max_connections
        if len(self._namespace.known_peers) + newcomers > limit and not self._links.is_over:
            text = f"The maximum number of concurrent connections of the namespace, {limit}, has been reached."
            self._give_up(QuotaExceededError(text))

    def _on_opened(self, event: Opened) -> None:
        self._check_room(0 if self._early.is_over else 1)

    @property
    def name(self) -> str:
        """Address of the client, for the log."""
        return self._wire.name

    def replies(self) -> Iterable[Replies]:
        """The links on which replies of nodes go to the client."""
        return self._links.replies.values()

    @property
    def is_taking_large(self) -> bool:
        """Whether parts of a large message are coming."""
        return self._links.is_taking_large

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
        self._links.forget_all()
        self._links.departures.when_empty(self._end)

    def _end(self) -> None:
        """Closes the stream after the queued bytes."""
        self._connection.close()
        self.flush()
        self._finish()
        self._wire.close()

    # ---- inside

    def _give_up(self, error: IsthmusError) -> None:
        """Closes the connection because of its client's behaviour; nothing more is read, and outstanding outcomes are sent before (I5)."""
        if self._is_closing:
            return
        self._warn("connection closed", error)
        self._is_closing = True
        self._partial.release()
        self._links.leave(lambda: self.close(amqp_error(error)), self._namespace.call_later)

    def _finish(self) -> None:
        was_over = self._links.is_over
        self._is_closing = self._wire_gone = self._links.is_over = True
        self._partial.release()
        self._links.forget_all()
        self._namespace.forget(self)
        if was_over:
            return
        # Breaks the reference cycles of the connection: the cycle collector runs rarely.
        self._links.release()
        self._attachments.release()
        self._authentication.release()
        self._pressure.release()
        self._connection.release()
        self._table = {}

    def _warn(self, what: str, error: Exception) -> None:
        _, condition, text = refusal(error)
        _log.warning("%s: peer=%s condition=%s reason=%.300s", what, self._wire.name, condition, text)
