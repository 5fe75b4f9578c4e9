"""A listener's control channel.

What it is: one listener of a hybrid connection: messages to it, its answers, its token, and its keep-alive. What it is not:
the choice among listeners (`relay`), HTTP (`gate`).
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (listener protocol).

Invariants:
    I1. The body of a message follows its head at once: nothing is sent, and nothing is read, in between.
    I2. A channel whose token has expired, or whose key or right was removed, is closed with status 1008.
    I3. A listener that does not answer pings for `SILENCE_SECONDS` is dropped, and requests that wait for it fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from isthmus.broker.relay.exchange import TEXT_BYTES, Exchange
from isthmus.broker.relay.frame import BINARY, CLOSE, PING, TEXT, Piece
from isthmus.broker.relay.message import MessageError, Renewal, Response, read_command
from isthmus.broker.relay.socket import POLICY, PROTOCOL_ERROR, TOO_BIG, RelaySocket
from isthmus.broker.security.grant import Grant
from isthmus.errors import UnauthorizedError

__all__ = ["PING_SECONDS", "SILENCE_SECONDS", "Listener"]

_log = logging.getLogger(__name__)

PING_SECONDS = 20.0
SILENCE_SECONDS = 45.0
# Unread bytes of a listener above which others are chosen.
_BACKLOG_BYTES = 1 << 20


class Listener:
    """One control channel; a `SocketOwner`.

    Args:
        name: of the hybrid connection, canonical.
        socket: the listener's.
        origin: scheme and host by which it reaches the relay.
        grant: of its token.
        renew: checks a renewed token and returns its grant; raises UnauthorizedError.
        on_lost: called when the channel is gone.
        now: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        socket: RelaySocket,
        origin: str,
        grant: Grant,
        renew: Callable[[str], Grant],
        on_lost: Callable[[Listener], None],
        now: float,
    ) -> None:
        self.name = name
        self.origin = origin
        self.grant = grant
        self._socket = socket
        self._renew = renew
        self._on_lost = on_lost
        self._exchanges: dict[str, Exchange] = {}
        self._text = bytearray()
        # The exchange of the answer whose body arrives; None to ignore it.
        self._body_of: Exchange | None = None
        self._has_spoken = False
        self._received_at = self._pinged_at = now

    @property
    def is_open(self) -> bool:
        """Whether it can be given connections and requests now."""
        return not self._socket.is_closing

    @property
    def is_busy(self) -> bool:
        """Whether many bytes wait to be read by it."""
        return self._socket.unsent_bytes > _BACKLOG_BYTES

    @property
    def peer(self) -> str:
        """Its address, for the log."""
        return self._socket.name

    def send(self, message: str) -> None:
        """Send a message without a body."""
        self._socket.send_text(message)

    def give(self, exchange: Exchange, message: str, body: bytes = b"") -> None:
        """Send a request, with its body if it has one; its answer is the exchange's."""
        exchange.was_delivered = True
        self.watch(exchange)
        self._socket.send_text(message)
        if body:
            self._socket.send_binary(body)

    def watch(self, exchange: Exchange) -> None:
        """Fails an exchange if the channel ends before it is answered."""
        self._exchanges[exchange.request_id] = exchange

    def forget(self, exchange: Exchange) -> None:
        """The exchange has ended, with or without an answer."""
        self._exchanges.pop(exchange.request_id, None)

    def tick(self, now: float, now_ms: int, is_current: Callable[[Grant], bool]) -> None:
        """Checks the token and the keep-alive.

        Args:
            now: monotonic seconds.
            now_ms: wall time for the expiry of tokens.
            is_current: whether a grant is still valid with the present rules and keys.
        """
        if self._socket.is_closing:
            return
        if self._has_spoken:
            self._has_spoken, self._received_at = False, now
        if self.grant.is_expired(now_ms):
            self.close(POLICY, "The security token has expired; send a renewToken before it does.")
        elif not is_current(self.grant):
            self.close(POLICY, "The key of the security token was removed, or has Listen no more.")
        elif now - self._received_at > SILENCE_SECONDS:
            _log.warning("listener dropped: hybrid_connection=%s peer=%s reason=silent", self.name, self.peer)
            self._socket.abort()
        elif now - self._pinged_at >= PING_SECONDS:
            self._pinged_at = now
            self._socket.send_ping()

    def reset_idle(self, now: float) -> None:
        """Restarts the keep-alive: the namespace itself was stalled, and reads the listener's bytes first."""
        self._received_at = now

    def close(self, status: int, reason: str) -> None:
        """Ends the channel."""
        self._socket.close(status, reason)

    # ---- messages of the listener

    def on_piece(self, piece: Piece) -> None:
        self._has_spoken = True
        if piece.kind == TEXT:
            self._text += piece.data
            if len(self._text) > TEXT_BYTES:
                self.close(TOO_BIG, f"A text message has more than {TEXT_BYTES} bytes.")
            elif piece.ends_message:
                text, self._text = bytes(self._text), bytearray()
                self._take(text)
        elif piece.kind == BINARY:
            if self._body_of is not None and not self._body_of.take(piece.data, piece.ends_message):
                self._body_of = None
        elif piece.kind == PING:
            self._socket.send_pong(piece.data)
        elif piece.kind == CLOSE:
            self._socket.finish(piece.data)

    def _take(self, text: bytes) -> None:
        self._body_of = None
        try:
            command = read_command(text)
        except MessageError as error:
            _log.warning("listener closed: hybrid_connection=%s peer=%s reason=%s", self.name, self.peer, error)
            self.close(PROTOCOL_ERROR, str(error))
            return
        if isinstance(command, Response):
            exchange = self._exchanges.get(command.request_id)
            if exchange is not None and exchange.answer(command):
                self._body_of = exchange
        elif isinstance(command, Renewal):
            try:
                self.grant = self._renew(command.token)
            except UnauthorizedError as error:
                self.close(POLICY, str(error))

    def on_lost(self) -> None:
        exchanges, self._exchanges = list(self._exchanges.values()), {}
        for exchange in exchanges:
            if not exchange.rendezvous.done():  # an exchange with a connection of its own continues over it
                exchange.fail("The listener is gone.")
        self._on_lost(self)

    def on_writable(self, is_writable: bool) -> None:
        """Not used: unread bytes are checked when a listener is chosen."""
