"""One HTTP request that was sent to a listener: the state of its answer.

What it is: the answer's head and body as they arrive over the control channel or over a rendezvous, for the code that writes
them to the requester. What it is not: HTTP, nor the request.
Spec: Microsoft Learn, "Azure Relay Hybrid Connections protocol" (responding to requests, responding via rendezvous).

Invariants:
    I1. An answer has one head, from one channel; later parts from another channel are ignored.
    I2. The bytes that wait to be written are bounded: a rendezvous is not read meanwhile, and over the control channel, which
        is shared, an answer that grows beyond `CONTROL_BODY_BYTES` fails.
"""

from __future__ import annotations

import asyncio
from collections import deque

from isthmus.broker.relay.frame import BINARY, CLOSE, PING, PONG, TEXT, Piece
from isthmus.broker.relay.message import MessageError, Response, read_command
from isthmus.broker.relay.socket import GOING_AWAY, NORMAL, PROTOCOL_ERROR, TOO_BIG, RelaySocket
from isthmus.errors import IsthmusError

__all__ = ["CONTROL_BODY_BYTES", "TEXT_BYTES", "Exchange", "ExchangeError", "Rendezvous"]

# The protocol guide allows listeners 64 kB over the control channel; some clients send a little more.
CONTROL_BODY_BYTES = 1 << 20
# The head of an answer: 32 kB of header fields, as JSON.
TEXT_BYTES = 128 << 10
_HIGH_BYTES = 256 << 10


class ExchangeError(IsthmusError):
    """There is no answer to a request, or the rest of it is missing.

    Attributes:
        was_delivered: whether a listener may have the request.
    """

    code = "relay-exchange"

    def __init__(self, reason: str = "", was_delivered: bool = True) -> None:
        super().__init__("", reason=reason)
        self.reason = reason
        self.was_delivered = was_delivered

    def text(self) -> str:
        return self.reason


class Exchange:
    """The state of an answer.

    Args:
        request_id: of the request.

    Attributes:
        head: the answer's head.
        rendezvous: the listener's socket for this request alone.
        was_delivered: whether a listener may have the request.
    """

    def __init__(self, request_id: str) -> None:
        loop = asyncio.get_running_loop()
        self.request_id = request_id
        self.head: asyncio.Future[Response] = loop.create_future()
        self.rendezvous: asyncio.Future[RelaySocket] = loop.create_future()
        self.was_delivered = False
        self._body: deque[bytes] = deque()
        self._held_bytes = 0
        self._is_whole = False
        self._failure: ExchangeError | None = None
        self._news = asyncio.Event()
        self._source: RelaySocket | None = None

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete or has failed."""
        return self._is_whole or self._failure is not None

    def answer(self, head: Response, source: RelaySocket | None = None) -> bool:
        """Takes the head, over a rendezvous or over the control channel; returns whether the body after it is wanted."""
        if self.head.done() or self._failure is not None:
            return False
        if not head.status:
            self.fail(head.reason)
            return False
        self._source = source
        self._is_whole = not head.has_body
        self.head.set_result(head)
        return head.has_body

    def take(self, data: bytes, ends: bool) -> bool:
        """Takes a part of the body; returns whether more of it is wanted."""
        if self._failure is not None:
            return False
        if data:
            self._body.append(data)
            self._held_bytes += len(data)
        self._is_whole = ends
        if self._source is None and self._held_bytes > CONTROL_BODY_BYTES:
            self.fail("The listener sent a large answer over its control channel; those go over a rendezvous.")
            return False
        if self._source is not None and self._held_bytes > _HIGH_BYTES:
            self._source.pause_reading()
        self._news.set()
        return not ends

    def fail(self, reason: str, *, was_delivered: bool | None = None) -> None:
        """Fails the answer: it is missing, or its rest is."""
        if self.is_over:
            return
        delivered = self.was_delivered if was_delivered is None else was_delivered
        self._failure = ExchangeError(reason, delivered)
        for future in (self.head, self.rendezvous):
            if not future.done():
                future.set_exception(self._failure)
                future.exception()  # whether it is awaited or not
        self._news.set()

    async def next_part(self, seconds: float) -> bytes:
        """The next part of the body; b"" at its end.

        Raises:
            ExchangeError: the rest does not arrive.
            TimeoutError: nothing arrived for so long.
        """
        while not self._body:
            if self._is_whole:
                return b""
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            async with asyncio.timeout(seconds):
                await self._news.wait()
        part = self._body.popleft()
        self._held_bytes -= len(part)
        if self._source is not None and self._held_bytes <= _HIGH_BYTES // 2:
            self._source.resume_reading()
        return part


class Rendezvous:
    """The listener's side of a WebSocket for one request; a `SocketOwner`.

    Args:
        exchange: that its answer belongs to.
        socket: the listener's.
    """

    def __init__(self, exchange: Exchange, socket: RelaySocket) -> None:
        self._exchange = exchange
        self._socket = socket
        self._text = bytearray()
        self._is_answered = False
        self._wants_body = False

    def on_piece(self, piece: Piece) -> None:
        if piece.kind == TEXT:
            self._take_text(piece)
        elif piece.kind == BINARY:
            if self._wants_body:
                self._wants_body = self._exchange.take(piece.data, piece.ends_message)
        elif piece.kind == PING:
            self._socket.send_pong(piece.data)
        elif piece.kind == CLOSE:
            self._socket.finish(piece.data)
            self._exchange.fail("The listener closed the connection for the answer before the answer was whole.")
        else:
            assert piece.kind == PONG

    def _take_text(self, piece: Piece) -> None:
        self._text += piece.data
        if len(self._text) > TEXT_BYTES:
            self._socket.close(TOO_BIG, f"A text message has more than {TEXT_BYTES} bytes.")
            self._exchange.fail("The head of the listener's answer is too large.")
            return
        if not piece.ends_message:
            return
        text, self._text = bytes(self._text), bytearray()
        try:
            command = read_command(text)
        except MessageError as error:
            self._socket.close(PROTOCOL_ERROR, str(error))
            self._exchange.fail(str(error))
            return
        if isinstance(command, Response) and command.request_id == self._exchange.request_id:
            self._wants_body = self._exchange.answer(command, self._socket)

    def on_lost(self) -> None:
        self._exchange.fail("The listener is gone.")

    def on_writable(self, is_writable: bool) -> None:
        """Not used: the code that sends the request waits for the socket itself."""

    def close(self) -> None:
        """The answer has been sent to the requester, or the requester is gone."""
        self._socket.close(NORMAL if self._exchange.is_over else GOING_AWAY)
