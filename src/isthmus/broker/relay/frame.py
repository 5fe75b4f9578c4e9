"""WebSocket frames as pieces, for relaying a client's stream.

What it is: frames parsed while they arrive, without reassembling messages. What it is not: the handshake, a socket,
nor the stream of AMQP over WebSocket (`isthmus.broker.net.websocket_frame`), which knows no frames.
Spec: RFC 6455 section 5; no extension is negotiated, so that the reserved bits are 0.

Invariants:
    I1. At most a frame's head and a control frame's payload, 139 bytes, are kept between two calls, for any input.
    I2. The data of all pieces of a frame, concatenated, are its payload; the first piece has its length.
    I3. Frames that RFC 6455 forbids are refused.
"""

from __future__ import annotations

from typing import NamedTuple

from isthmus.broker.net.websocket_frame import CLOSE, PONG, FrameError, head_bytes, unmask

__all__ = ["BINARY", "CLOSE", "CONTINUATION", "PING", "PONG", "TEXT", "Piece", "PieceReader"]

CONTINUATION, TEXT, BINARY, PING = 0x0, 0x1, 0x2, 0x9
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_CONTROL_BYTES = 125


class Piece(NamedTuple):
    """A part of a frame's payload.

    Attributes:
        opcode: of the frame.
        kind: TEXT or BINARY of the message that a data frame belongs to; else the opcode.
        data: without its mask.
        length: of the frame's payload in its first piece; None in the others.
        is_final: whether the frame is its message's last.
        ends_frame: whether this is the frame's last piece.
    """

    opcode: int
    kind: int
    data: bytes
    length: int | None
    is_final: bool
    ends_frame: bool

    @property
    def ends_message(self) -> bool:
        """Whether this is the message's last piece."""
        return self.is_final and self.ends_frame


class PieceReader:
    """Parses the frames of one client; nothing is read after a close frame."""

    def __init__(self) -> None:
        self._is_closed = False
        self._head = b""
        self._control = bytearray()
        self._message = 0  # TEXT or BINARY while a message is unfinished
        # Of the frame whose payload arrives.
        self._opcode = self._kind = 0
        self._is_final = True
        self._length: int | None = None
        self._left = self._passed = 0
        self._mask = b""

    @property
    def kept_bytes(self) -> int:
        """The number of bytes kept until more arrive."""
        return len(self._head) + len(self._control)

    def feed(self, data: bytes) -> list[Piece]:
        """The pieces in the bytes that come next.

        Raises:
            FrameError: they are not a valid frame.
        """
        pieces: list[Piece] = []
        at, end = 0, len(data)
        while at < end and not self._is_closed:
            if self._left:
                part = data[at : at + self._left]
                at += len(part)
                clear = unmask(part, self._mask, self._passed)
                self._passed += len(part)
                self._left -= len(part)
                self._take(clear, pieces)
                continue
            missing = head_bytes(self._head) - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) == head_bytes(self._head):
                self._begin()
                if not self._left:
                    self._take(b"", pieces)
        return pieces

    def _begin(self) -> None:
        head, self._head = self._head, b""
        first, second = head[0], head[1]
        opcode, length = first & 0x0F, second & 0x7F
        if first & _RESERVED or not second & _MASKED:
            raise FrameError("a frame has reserved bits or no mask")
        if length == 126:
            length = int.from_bytes(head[2:4], "big")
        elif length == 127:
            length = int.from_bytes(head[2:10], "big")
        if length >> 63:
            raise FrameError("a frame's length is negative")
        final = bool(first & _FINAL)
        if opcode in (CLOSE, PING, PONG):
            if not final or length > _CONTROL_BYTES or (opcode == CLOSE and length == 1):
                raise FrameError("a control frame is long, short or fragmented")
            self._kind = opcode
        elif opcode not in (CONTINUATION, TEXT, BINARY):
            raise FrameError("a frame's opcode is not known")
        elif (opcode == CONTINUATION) is not bool(self._message):
            raise FrameError("a fragment where none is allowed")
        else:
            self._kind = self._message or opcode
            self._message = 0 if final else self._kind
        self._opcode, self._is_final = opcode, final
        self._mask, self._passed, self._left, self._length = head[-4:], 0, length, length

    def _take(self, clear: bytes, pieces: list[Piece]) -> None:
        ends = not self._left
        if self._opcode in (CLOSE, PING, PONG):
            self._control += clear
            if ends:
                payload, self._control = bytes(self._control), bytearray()
                pieces.append(Piece(self._opcode, self._kind, payload, len(payload), True, True))
                self._is_closed = self._opcode == CLOSE
            return
        length, self._length = self._length, None
        pieces.append(Piece(self._opcode, self._kind, clear, length, self._is_final, ends))
