"""One AMQP 1.0 connection without a socket, for both peers (spec parts 2 and 5).

What it is: bytes in, events out; calls queue bytes that `take` returns. Time is an argument. What it is not: sockets,
TLS, credentials, retries. Over 400 lines, because the handshake and the reading loop share
one state.

Invariants:
    I1. The same bytes give the same deliveries and link events however they are cut into pieces.
    I2. No input raises: a fault ends the session or the connection with the right error, and is reported.
    I3. After `Closed` nothing more is read, and nothing but the close already queued is written.
    I4. We send something at least every half of the peer's idle time-out.
"""

from __future__ import annotations

import struct
from typing import Any

from isthmus.amqp import performative
from isthmus.amqp.amqp_session import AmqpSession, AmqpSessionError
from isthmus.amqp.event import Closed, Event, Opened, SaslInit, SaslRefused, SessionBegun, SessionEnded
from isthmus.amqp.frame import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, Shape, frame
from isthmus.amqp.link import Link
from isthmus.amqp.performative import (
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from isthmus.amqp.types import Symbol, UByte
from isthmus.errors import ProtocolError

__all__ = ["Connection"]

MIN_FRAME_SIZE_BYTES = 512  # spec 2.3.1: both sides take at least this
OPEN_FRAME_LIMIT_BYTES = 65536  # before open the peer does not know our limit; SDKs' opens are far smaller

_U32 = struct.Struct(">I")
# How far the handshake has come.
_HEADER, _SASL, _SASL_WAIT, _OPEN, _RUNNING, _CLOSED = range(6)


class _ConnectionError(ProtocolError):
    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description, condition=condition)
        self.condition = condition


class Connection:
    """The protocol engine of one connection.

    Args:
        server: whether this side answers (True) or starts (False).
        container_id: our name.
        hostname: client: the host that we ask for.
        max_frame_size_bytes: the largest frame that we take.
        channel_max: highest channel number that we take.
        idle_timeout_ms: we close if nothing arrives for twice as long; None: never.
        sasl: server: mechanisms to offer. A client may also skip SASL where `require_sasl` is False.
        require_sasl: server: refuse a client that starts without SASL.
        incoming_window: transfer frames that the peer may have in flight per session.
        handle_max: highest link handle per session.
        properties: connection properties for our open.
        desired_capabilities: what our open asks of the peer.
        answers_at_once: whether the peer's Detach, End and Close are answered as they are read. Where False, the owner
            answers them by `Link.finish_detach`, `AmqpSession.finish_end` and `close`, once it has disposed of what came
            before them; links and sessions that a fault of the peer's ends wait for the same calls.

    Attributes:
        peer_max_frame_size_bytes: the largest frame that the peer takes.
        opened: whether both sides have opened.
        closed: whether the connection is over.
        partial_bytes: of incoming deliveries whose last frame has not come.
    """

    def __init__(
        self,
        *,
        server: bool,
        container_id: str,
        hostname: str | None = None,
        max_frame_size_bytes: int = 65536,
        channel_max: int = 4999,
        idle_timeout_ms: int | None = None,
        sasl: tuple[str, ...] = (),
        require_sasl: bool = True,
        incoming_window: int = 5000,
        handle_max: int = 255,
        properties: dict[Any, Any] | None = None,
        desired_capabilities: list[str] | None = None,
        answers_at_once: bool = True,
    ) -> None:
        self.answers_at_once = answers_at_once
        self.server = server
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size_bytes = max_frame_size_bytes
        self.channel_max = channel_max
        self.idle_timeout_ms = idle_timeout_ms
        self.peer_max_frame_size_bytes = MIN_FRAME_SIZE_BYTES
        self.peer_container_id = ""
        self.opened = False
        self.closed = False
        self.partial_bytes = 0
        self._sasl = sasl
        self._require_sasl = require_sasl
        self._window = incoming_window
        self._handle_max = handle_max
        self._properties = properties
        self.desired_capabilities = desired_capabilities
        self._state = _HEADER
        self._choice: tuple[str, bytes | None] | None = None
        self._sent_open = self._sent_close = False
        self._is_close_due = False  # the peer has closed, and waits for the answer
        self._buffer = b""
        self._out: list[bytes] = []
        self._by_remote: dict[int, AmqpSession] = {}
        self._by_local: dict[int, AmqpSession] = {}
        self._ended: set[int] = set()
        self._hot: Link | None = None
        self._last_in: float | None = None
        self._last_out: float | None = None
        self._wrote = False
        self._peer_idle_seconds: float | None = None

    # ---- for owners

    def start(self, mechanism: str | None = "ANONYMOUS", initial_response: bytes | None = None) -> None:
        r"""Client: queues the headers up to open.

        Args:
            mechanism: SASL mechanism; None skips the SASL layer.
            initial_response: bytes of the mechanism, e.g. for PLAIN ``\0name\0key``.
        """
        if mechanism is None:
            self._state = _OPEN
            self.write(AMQP_HEADER)
            self._write_open()
        else:
            self._choice = (mechanism, initial_response)
            self.write(SASL_HEADER)

    def sasl_outcome(self, ok: bool) -> list[Event]:
        """Server: answers SaslInit; events of bytes that had arrived behind it."""
        if self._state != _SASL_WAIT:
            raise ProtocolError("no SASL exchange waits for an outcome")
        code = UByte(0 if ok else 1)
        self.write(frame(0, SaslOutcome(code, b"Welcome!" if ok else None), kind=1))
        if not ok:
            self._state, self.closed = _CLOSED, True
            return [Closed(Error(Symbol("amqp:unauthorized-access"), "The SASL credential was refused."), False)]
        self._state = _HEADER
        self._choice = ("", None)
        return self._guarded(b"")

    def begin(self) -> AmqpSession:
        """Begins a session, once `Opened` was reported; links may be attached at once, without waiting for the answer."""
        session = self._new_session()
        self.write(frame(session.channel, session.begin_frame(None)))
        return session

    def close(self, error: Error | None = None) -> None:
        """Closes the connection; the peer answers with `Closed`."""
        if not self._sent_close and (self._state in (_OPEN, _RUNNING) or self._is_close_due):
            if not self._sent_open:
                self._write_open()
            self.write(frame(0, Close(error)))
            self._sent_close = True

    def release(self) -> None:
        """Drops the references to sessions and links once nothing is received any more, so that reference counting frees
        them without the cycle collector.
        """
        for session in {*self._by_local.values(), *self._by_remote.values()}:
            session.release()
        self._by_local.clear()
        self._by_remote.clear()
        self._hot = None

    def take(self) -> bytes:
        """The bytes to write now; each is returned once."""
        if not self._out:
            return b""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        return data

    def receive(self, data: bytes, now: float) -> list[Event]:
        """What the peer's bytes mean, in order.

        Args:
            data: bytes from the socket, cut anywhere.
            now: monotonic seconds.
        """
        self._last_in = now
        return self._guarded(data)

    def reset_idle(self, now: float) -> None:
        """Restarts the idle time-out: the peer was not read until now, so it was not silent."""
        self._last_in = now

    def tick(self, now: float) -> list[Event]:
        """Sends a heartbeat if one is due, and closes the connection to a peer that has been silent too long."""
        if self.closed or not self.opened:
            return []
        if self._wrote or self._last_out is None:
            self._last_out, self._wrote = now, False
        if self._last_in is None:
            self._last_in = now
        if self._peer_idle_seconds is not None and now - self._last_out >= self._peer_idle_seconds / 2:
            self._out.append(EMPTY_FRAME)
            self._last_out = now
        if self.idle_timeout_ms is not None and now - self._last_in >= 2 * self.idle_timeout_ms / 1000:
            error = Error(
                Symbol("amqp:resource-limit-exceeded"),
                f"Nothing arrived for {2 * self.idle_timeout_ms} milliseconds.",
            )
            return self._fail(error)
        return []

    @property
    def peer_idle_seconds(self) -> float:
        """How long the peer waits for a frame; 0 where it named no idle time-out."""
        return self._peer_idle_seconds or 0.0

    def deadline(self) -> float | None:
        """When `tick` should be called next, in monotonic seconds; None: not before something arrives."""
        due = []
        if self._peer_idle_seconds is not None:
            due.append((self._last_out or 0.0) + self._peer_idle_seconds / 2)
        if self.idle_timeout_ms is not None:
            due.append((self._last_in or 0.0) + 2 * self.idle_timeout_ms / 1000)
        return min(due) if due and not self.closed else None

    # ---- for sessions and links

    def write(self, data: bytes) -> None:
        """Queues bytes; after a close nothing more goes out."""
        if not self._sent_close:
            self._out.append(data)
            self._wrote = True

    # ---- reading

    def _guarded(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        if self.closed:
            return events
        try:
            self._read(self._buffer + data if self._buffer else data, events)
        except _ConnectionError as fault:
            events.extend(self._fail(Error(Symbol(fault.condition), str(fault))))
        except ProtocolError as fault:
            events.extend(self._fail(Error(Symbol("amqp:decode-error"), str(fault))))
        return events

    def _fail(self, error: Error) -> list[Event]:
        self.close(error)
        self._state, self.closed, self._buffer = _CLOSED, True, b""
        return [Closed(error, False)]

    def _read(self, buffer: bytes, events: list[Event]) -> None:
        at, end = 0, len(buffer)
        while end - at >= 8 and not self.closed and self._state != _SASL_WAIT:
            if self._state == _HEADER:
                self._on_header(buffer[at : at + 8], events)
                at += 8
                continue
            hot = self._hot
            if hot is not None:
                scanned = self._scan(hot, buffer, at, end, events)
                if scanned != at:
                    at = scanned
                    continue
            size = _U32.unpack_from(buffer, at)[0]
            limit = self.max_frame_size_bytes if self.opened else OPEN_FRAME_LIMIT_BYTES
            if size > max(limit, MIN_FRAME_SIZE_BYTES):
                raise _ConnectionError("amqp:connection:framing-error", f"frame of {size} bytes; the limit is {limit}")
            if size < 8 or buffer[at + 4] < 2:
                raise _ConnectionError("amqp:connection:framing-error", "frame with an impossible size or data offset")
            if end - at < size:
                break
            self._on_frame(buffer, at, at + size, events)
            at += size
        self._buffer = b"" if at == end or self.closed else buffer[at:] if at else buffer

    def _scan(self, link: Link, buffer: bytes, at: int, end: int, events: list[Event]) -> int:
        shape, session = link.shape, link.amqp_session
        if shape is None or link.partial is not None or link.detached or session.ended:
            return at
        head = shape.head
        if end - at < shape.size or buffer[at + 4 : at + 4 + len(head)] != head:
            return at
        first = _U32.unpack_from(buffer, at + 4 + len(head))[0]
        tags: list[bytes] = []
        payloads: list[bytes] = []
        after = shape.scan(buffer, at, end, self.max_frame_size_bytes, first, tags, payloads)
        if payloads:
            settled, message_format = link.shape_meaning
            session.on_scanned(link, len(payloads), first, tags, payloads, settled, message_format, events)
        return after

    def _on_frame(self, buffer: bytes, start: int, end: int, events: list[Event]) -> None:
        body = start + 4 * buffer[start + 4]
        kind = buffer[start + 5]
        if body > end:
            raise _ConnectionError("amqp:connection:framing-error", "frame whose data offset is beyond its end")
        if kind == 1:
            self._on_sasl(buffer[body:end], events)
            return
        if kind != 0 or self._state == _SASL:
            raise _ConnectionError("amqp:connection:framing-error", f"frame of type {kind} is not expected here")
        if body == end:
            return
        channel = (buffer[start + 6] << 8) | buffer[start + 7]
        if (
            buffer[body : body + 3] == b"\0S\x15"
            and self._state == _RUNNING
            and self._on_accepted(buffer, body, end, channel, events)
        ):
            return
        if end == len(buffer):
            value, payload = performative.decode(buffer, body)
        else:  # a frame must not be read beyond its end; only the frame is copied, not everything that came with it
            value, payload = performative.decode(buffer[body:end])
            payload += body
        if self._state == _OPEN or isinstance(value, Open):
            self._on_open(value, events)
        elif isinstance(value, Begin):
            self._on_begin(value, channel, events)
        elif isinstance(value, Close):
            self._on_close(value, events)
        else:
            session = self._by_remote.get(channel)
            if session is None:
                if channel in self._ended and not isinstance(value, Attach):
                    return  # one SDK detaches links after it ended their session
                raise _ConnectionError("amqp:not-allowed", f"frame on channel {channel}, which has no session")
            try:
                self._on_session_frame(session, value, buffer, start, payload, end, events)
            except AmqpSessionError as fault:
                error = Error(Symbol(fault.condition), str(fault))
                session.begin_end(error)
                if self.answers_at_once:
                    session.finish_end()
                events.append(SessionEnded(session, error))

    def _on_session_frame(
        self, session: AmqpSession, value: Any, buffer: bytes, start: int, payload: int, end: int, events: list[Event]
    ) -> None:
        if isinstance(value, End):
            self._drop(session)
            already = session.ended
            session.on_end(value, events)
            if already and value.error is None:
                events.pop()  # the answer to an end of ours that was reported when it was sent
                events.append(SessionEnded(session, None))
            return
        if session.ended:
            return
        if isinstance(value, Transfer):
            link = session.on_transfer(value, buffer[payload:end], events)
            if link is not None:
                self._learn(link, value, buffer, start, payload)
        elif isinstance(value, Flow):
            session.on_flow(value, events)
        elif isinstance(value, Disposition):
            last = value.first if value.last is None else value.last
            session.on_disposition(value.role, int(value.first), int(last), value.state, value.settled, events)
        elif isinstance(value, Attach):
            session.on_attach(value, events)
        elif isinstance(value, Detach):
            session.on_detach(value, events)
            self._hot = None
        else:
            raise _ConnectionError("amqp:not-allowed", f"{type(value).__name__} is no frame of a session")

    def _learn(self, link: Link, transfer: Transfer, buffer: bytes, start: int, payload: int) -> None:
        """Remembers how the peer writes this link's transfers, for the fast path."""
        if 0 < link.max_message_size_bytes < self.max_frame_size_bytes or buffer[start + 4] != 2:
            return
        shape = Shape.learn(buffer, start, payload)
        if shape is not None:
            link.shape = shape
            link.shape_meaning = (bool(transfer.settled), int(transfer.message_format or 0))
            self._hot = link

    def _on_accepted(self, buffer: bytes, body: int, end: int, channel: int, events: list[Event]) -> bool:
        """Fast path for disposition(role, first, last, settled, accepted); False: not of that form."""
        session = self._by_remote.get(channel)
        if session is None or session.ended or end - body < _SHORTEST_ACCEPTED:
            return False
        if buffer[body + 3] != 0xC0 or buffer[body + 4] != end - body - 5 or buffer[body + 5] < 5:
            return False
        at = body + 6
        role = buffer[at]
        numbers = []
        at += 1
        for _ in (0, 1):
            code = buffer[at]
            if code == 0x70 and at + 5 < end:
                numbers.append(_U32.unpack_from(buffer, at + 1)[0])
                at += 5
            elif code == 0x52:
                numbers.append(buffer[at + 1])
                at += 2
            elif code == 0x43:
                numbers.append(0)
                at += 1
            else:
                return False
            if at + 4 > end:  # settled, and the state's descriptor
                return False
        if buffer[at + 1 : at + 4] != b"\0S\x24" or role not in (0x41, 0x42) or buffer[at] not in (0x41, 0x42):
            return False
        session.on_disposition(role == 0x41, numbers[0], numbers[1], _ACCEPTED, buffer[at] == 0x41, events)
        return True

    # ---- handshake

    def _on_header(self, header: bytes, events: list[Event]) -> None:
        if header == AMQP_HEADER:
            if self.server:
                if self._choice is None and self._require_sasl:
                    self._out.append(SASL_HEADER)
                    self._state, self.closed = _CLOSED, True
                    events.append(Closed(Error(Symbol("amqp:unauthorized-access"), "SASL is required."), False))
                    return
                self.write(AMQP_HEADER)
            elif self._choice is not None and self._choice != ("", None):
                events.append(SaslRefused("the server does not do SASL"))
            self._state = _OPEN
        elif header == SASL_HEADER:
            if self.server:
                if self._choice is not None:
                    raise _ConnectionError("amqp:connection:framing-error", "a second SASL header")
                self.write(SASL_HEADER)
                self.write(frame(0, SaslMechanisms([Symbol(m) for m in self._sasl]), kind=1))
            self._state = _SASL
        else:
            self._out.append(SASL_HEADER if self.server and self._require_sasl else AMQP_HEADER)
            self._state, self.closed = _CLOSED, True
            error = Error(
                Symbol("amqp:connection:framing-error"), f"{header!r} is no protocol header that is spoken here"
            )
            events.append(Closed(error, False))

    def _on_sasl(self, body: bytes, events: list[Event]) -> None:
        if self._state != _SASL:
            raise _ConnectionError("amqp:connection:framing-error", "SASL frame outside the SASL exchange")
        value, _ = performative.decode(body)
        if self.server and isinstance(value, performative.SaslInit):
            self._state = _SASL_WAIT
            events.append(SaslInit(value.mechanism, value.initial_response, value.hostname))
        elif not self.server and isinstance(value, SaslMechanisms) and self._choice is not None:
            mechanism, response = self._choice
            if mechanism not in (value.sasl_server_mechanisms or ()):
                self._refused(f"the server offers {value.sasl_server_mechanisms}, not {mechanism}", events)
                return
            self.write(frame(0, performative.SaslInit(Symbol(mechanism), response, self.hostname), kind=1))
        elif not self.server and isinstance(value, SaslOutcome):
            if value.code != 0:
                self._refused(f"the server refused the credential (SASL code {value.code})", events)
                return
            self._state = _HEADER
            self._choice = ("", None)
            self.write(AMQP_HEADER)
            self._write_open()
        else:
            raise _ConnectionError("amqp:connection:framing-error", f"{type(value).__name__} is not expected here")

    def _refused(self, reason: str, events: list[Event]) -> None:
        self._state, self.closed = _CLOSED, True
        events.append(SaslRefused(reason))
        events.append(Closed(Error(Symbol("amqp:unauthorized-access"), reason), True))

    def _write_open(self) -> None:
        self._sent_open = True
        body = Open(
            self.container_id,
            self.hostname,
            self.max_frame_size_bytes,
            self.channel_max,
            self.idle_timeout_ms,
            desired_capabilities=self.desired_capabilities,
            properties=self._properties,
        )
        self.write(frame(0, body))

    def _on_open(self, value: Any, events: list[Event]) -> None:
        if isinstance(value, Close):
            self._on_close(value, events)
            return
        if not isinstance(value, Open) or self.opened:
            raise _ConnectionError("amqp:not-allowed", f"{type(value).__name__} is not expected here")
        self.opened = True
        self._state = _RUNNING
        self.peer_container_id = value.container_id
        self.peer_max_frame_size_bytes = max(MIN_FRAME_SIZE_BYTES, min(int(value.max_frame_size), 1 << 20))
        if value.idle_time_out:
            self._peer_idle_seconds = value.idle_time_out / 1000
        self.channel_max = min(self.channel_max, int(value.channel_max))
        if self.server:
            self._write_open()
        events.append(Opened(value.container_id, value.hostname, self.peer_max_frame_size_bytes, value.properties))

    def _on_begin(self, begin: Begin, channel: int, events: list[Event]) -> None:
        if channel in self._by_remote:
            raise _ConnectionError("amqp:not-allowed", f"channel {channel} has a session already")
        if channel > self.channel_max:
            raise _ConnectionError("amqp:not-allowed", f"channel {channel} is over the limit of {self.channel_max}")
        if begin.remote_channel is None:
            session = self._new_session()
            session.on_begin(begin)
            self.write(frame(session.channel, session.begin_frame(channel)))
        else:
            known = self._by_local.get(int(begin.remote_channel))
            if known is None or known.begun:
                raise _ConnectionError("amqp:not-allowed", f"channel {begin.remote_channel} waits for no begin")
            session = known
            session.on_begin(begin)
        self._by_remote[channel] = session
        events.append(SessionBegun(session))

    def _on_close(self, close: Close, events: list[Event]) -> None:
        if self.answers_at_once:
            self.close()
        self._state, self.closed, self._is_close_due = _CLOSED, True, True
        events.append(Closed(close.error, True))

    def _new_session(self) -> AmqpSession:
        channel = next(c for c in range(len(self._by_local) + 1) if c not in self._by_local)
        session = AmqpSession(self, channel, self._window, self._handle_max)
        self._by_local[channel] = session
        return session

    def _drop(self, session: AmqpSession) -> None:
        if session.end_sent:
            self.release_channel(session)
        for channel, known in list(self._by_remote.items()):
            if known is session:
                del self._by_remote[channel]
                self._ended.add(channel)
        self._hot = None

    def release_channel(self, session: AmqpSession) -> None:
        """A session's channel is free again: both sides have ended it."""
        if self._by_local.get(session.channel) is session:
            del self._by_local[session.channel]


_ACCEPTED = performative.Accepted()
# Descriptor, list head, role, two ids of a byte each, settled, the state's descriptor.
_SHORTEST_ACCEPTED = 13
