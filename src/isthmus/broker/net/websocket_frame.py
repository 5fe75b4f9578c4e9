"""WebSocket frames as a stream of bytes: the server's side.

What it is: frames parsed while they arrive, and frames made. AMQP is a stream, so messages are never reassembled: the
payload of a fragment is passed on as it arrives. What it is not: the handshake (`websocket`), a socket.
Spec: RFC 6455 section 5.

Invariants:
    I1. At most a frame's head and a control frame's payload, 139 bytes, are kept between two calls, for any input.
    I2. Frames that RFC 6455 forbids, and text, are refused with the status that the RFC gives.
"""

from __future__ import annotations

import struct

from isthmus.errors import IsthmusError

__all__ = ["CLOSE", "PONG", "FrameError", "FrameReader", "head_bytes", "make_frame", "make_head", "unmask"]

_CONTINUATION, _BINARY, CLOSE, _PING, PONG = 0x0, 0x2, 0x8, 0x9, 0xA
_FINAL, _RESERVED, _MASKED = 0x80, 0x70, 0x80
_CONTROL_BYTES = 125
_NORMAL, _PROTOCOL_ERROR, _UNSUPPORTED = 1000, 1002, 1003


class FrameError(IsthmusError):
    """The input is not a frame that this side accepts.

    Attributes:
        status: for the close frame.
    """

    code = "websocket-frame"

    def __init__(self, message: str = "", status: int = _PROTOCOL_ERROR) -> None:
        super().__init__(message, status=status)
        self.status = status


class FrameReader:
    """Parses the frames of one client.

    Attributes:
        is_closed: whether a close frame has arrived; nothing is read after it.
        ping: payload of the last ping since it was set to None.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self.ping: bytes | None = None
        self._head = b""
        self._control = bytearray()
        self._opcode = 0
        self._in_message = False
        # Of the frame whose payload arrives: the bytes left, its mask, and how many bytes have passed.
        self._left = 0
        self._mask = b""
        self._passed = 0

    @property
    def kept_bytes(self) -> int:
        """The number of bytes kept until more arrive."""
        return len(self._head) + len(self._control)

    def feed(self, data: bytes) -> bytes:
        """The payload in the next bytes.

        Raises:
            FrameError: they are not a valid frame.
        """
        said: list[bytes] = []
        at, end = 0, len(data)
        while at < end and not self.is_closed:
            if self._left:
                piece = data[at : at + self._left]
                at += len(piece)
                self._take(unmask(piece, self._mask, self._passed), said)
                self._passed += len(piece)
                self._left -= len(piece)
                if not self._left:
                    self._end_frame()
                continue
            missing = head_bytes(self._head) - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) == head_bytes(self._head):
                self._begin_frame()
        return b"".join(said)

    def _begin_frame(self) -> None:
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
        if opcode in (CLOSE, _PING, PONG):
            if not first & _FINAL or length > _CONTROL_BYTES:
                raise FrameError("a control frame is long or fragmented")
        elif opcode not in (_CONTINUATION, _BINARY):
            raise FrameError("a frame is neither binary nor control", _UNSUPPORTED)
        elif (opcode == _CONTINUATION) is not self._in_message:
            raise FrameError("a fragment where none is allowed")
        else:
            self._in_message = not first & _FINAL
        self._opcode, self._mask, self._passed, self._left = opcode, head[-4:], 0, length
        if not length:
            self._end_frame()

    def _take(self, piece: bytes, said: list[bytes]) -> None:
        if self._opcode in (_CONTINUATION, _BINARY):
            said.append(piece)
        else:
            self._control += piece

    def _end_frame(self) -> None:
        control, self._control = bytes(self._control), bytearray()
        if self._opcode == CLOSE:
            self.is_closed = True
        elif self._opcode == _PING:
            self.ping = control


def make_frame(data: bytes, opcode: int = _BINARY) -> bytes:
    """One whole frame of the server."""
    return make_head(len(data), opcode) + data


def make_head(length: int, opcode: int = _BINARY, *, is_final: bool = True) -> bytes:
    """The head of a server's frame with so many bytes of payload."""
    first = (_FINAL if is_final else 0) | opcode
    if length < 126:
        return struct.pack(">BB", first, length)
    if length < 1 << 16:
        return struct.pack(">BBH", first, 126, length)
    return struct.pack(">BBQ", first, 127, length)


def head_bytes(head: bytes) -> int:
    """The length of a frame's head, as far as its first bytes say."""
    if len(head) < 2:
        return 2
    return 6 + {126: 2, 127: 8}.get(head[1] & 0x7F, 0)


def unmask(piece: bytes, mask: bytes, passed: int) -> bytes:
    """A piece of a payload, after so many bytes of it, without its mask."""
    size = len(piece)
    at = passed % 4
    key = (mask[at:] + mask[:at]) * (size // 4 + 1)
    return (int.from_bytes(piece, "little") ^ int.from_bytes(key[:size], "little")).to_bytes(size, "little")
