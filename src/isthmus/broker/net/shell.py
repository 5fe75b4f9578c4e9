"""The socket of a `Peer`.

What it is: an asyncio protocol that hands bytes to a `Peer` and writes the peer's bytes, with back-pressure both ways. What
it is not: aware of AMQP.

Invariants:
    I1. All connections read into one buffer, which is empty between two calls: memory does not grow with their number.
    I2. Above the high mark of unsent bytes `is_writable` is False until they have fallen below the low mark.
    I3. While a large message arrives an iteration of the loop reads it once: the loop under asyncio keeps reading from a
        socket that always has more, and others would wait some milliseconds for that.
    I4. A closed connection is gone `CLOSE_SECONDS` later, whether its client has read the remaining bytes or not.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from isthmus.broker.net.admission import admit
from isthmus.broker.net.wire import CLOSE_SECONDS
from isthmus.broker.peer import Peer

if TYPE_CHECKING:
    from isthmus.broker.namespace import Namespace

__all__ = ["Shell"]

# Bytes of one read: large reads give long runs of messages, which make each message cheap.
_READ_BYTES = 1 << 20
_HIGH_BYTES = 1 << 20
_LOW_BYTES = 256 << 10

# While a large message arrives: other connections are served after each read.
_LARGE_READ_BYTES = 128 << 10

_buffer = memoryview(bytearray(_READ_BYTES))
_large_buffer = _buffer[:_LARGE_READ_BYTES]


class Shell(asyncio.BufferedProtocol):
    """One connection's socket.

    Args:
        namespace: that the client connected to.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.name = "unknown"
        self._namespace = namespace
        self._transport: asyncio.Transport | None = None
        self._peer: Peer | None = None
        self._writable = True
        self._is_paused = False  # by the peer
        self._is_yielding = False
        self._end: asyncio.TimerHandle | None = None

    # ---- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(_HIGH_BYTES, _LOW_BYTES)
        address = self._transport.get_extra_info("peername")
        self.name = f"{address[0]}:{address[1]}" if address else "unknown"
        self._peer = Peer(self._namespace, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return _large_buffer if self._peer is not None and self._peer.is_taking_large else _buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._take(bytes(_buffer[:nbytes]))
        if self._peer is not None and self._peer.is_taking_large:
            self._yield()

    def _take(self, data: bytes) -> None:
        if self._peer is not None:
            self._peer.receive(data)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        if self._peer is not None:
            self._peer.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._end is not None:
            self._end.cancel()
        if self._peer is not None:
            self._peer.lost()
            self._peer = None

    # ---- pausing between reads

    def _yield(self) -> None:
        """Resumes reading in the next iteration of the loop."""
        if not self._is_yielding and not self._is_paused:
            self._is_yielding = True
            self._apply()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_yielding = False
        self._apply()

    def _apply(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if self._is_paused or self._is_yielding:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # ---- called by the peer

    @property
    def is_writable(self) -> bool:
        """Whether the unsent bytes are below the limit."""
        return self._writable

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes that wait to be sent."""
        count, transport = 0, self._transport
        while transport is not None:
            count += transport.get_write_buffer_size()
            # The transport below TLS has most of them, and asyncio has no other way to it.
            transport = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None)
        return count

    def write(self, data: bytes) -> None:
        """Sends bytes, or buffers them until they can be sent."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Sends the buffered bytes, then closes; see `Wire.close`."""
        if self._transport is not None and self._end is None:
            self._transport.close()
            self._end = asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._transport.abort)

    def admit(self) -> None:
        """Counts the connection as one whose client has shown a token."""
        if self._transport is not None:
            admit(self._namespace.admission, self._transport)

    def pause_reading(self) -> None:
        """Stops reading from the client."""
        self._is_paused = True
        self._apply()

    def resume_reading(self) -> None:
        """Reads again."""
        self._is_paused = False
        self._apply()
