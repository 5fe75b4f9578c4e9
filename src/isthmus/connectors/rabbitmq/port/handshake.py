"""The opening of a connection to RabbitMQ: TCP, TLS, login, virtual host.

What it is: the handshake, which blocks and runs in a thread. What it is not: the connection after it (`connection`).
Specification: AMQP 0-9-1, 2.2.4; RabbitMQ documentation, "Access Control", "Authentication Failure Notifications".

Invariants:
    I1. A secret is resolved here, sent here, and not kept.
    I2. No step waits longer than `CONNECT_SECONDS` for the broker.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
from typing import Any

from isthmus.connectors.rabbitmq.option import BrokerOptions
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection, closed
from isthmus.connectors.rabbitmq.protocol.wire import METHOD, M
from isthmus.connectors.secret import resolve
from isthmus.errors import ConnectionLostError, IsthmusError, OperationTimeoutError, ProtocolError, UnauthorizedError

__all__ = ["dial"]

CONNECT_SECONDS = 10.0
FRAME_BYTES = 1 << 17
_HEAD = struct.Struct(">BHI").unpack_from
_IDS = struct.Struct(">HH").unpack_from
_starts = itertools.count()


def dial(options: BrokerOptions) -> Connection:
    """Connects to the first address that answers, starting with a different one each time; blocks.

    Raises:
        IsthmusError: no connection could be made.
    """
    addresses = options.addresses()
    first = next(_starts) % len(addresses)
    error: IsthmusError | None = None
    for host, port in addresses[first:] + addresses[:first]:
        address = f"{host}:{port}{'' if options.virtual_host == '/' else '/' + options.virtual_host}"
        try:
            made = _dial(options, host, port, address)
            made.broker = f"{addresses} {options.virtual_host}"
            return made
        except TimeoutError:
            error = OperationTimeoutError(f"{address}: no answer within {CONNECT_SECONDS:g} s")
        except ssl.SSLError as failed:
            error = ConnectionLostError(
                f"{address}: TLS failed: {failed.reason or failed}; check ca_file and the certificates"
            )
        except OSError as failed:
            error = ConnectionLostError(f"{address}: no connection: {failed}")
        except (struct.error, IndexError, ValueError) as failed:
            error = ProtocolError(f"{address}: the server there does not implement AMQP 0-9-1: {failed}")
    assert error is not None
    raise error


def _dial(options: BrokerOptions, host: str, port: int, address: str) -> Connection:
    response = _response(options)
    sock: socket.socket = socket.create_connection((host, port), timeout=CONNECT_SECONDS)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if options.tls:
            sock = _context(options).wrap_socket(sock, server_hostname=host)
        made = _shake_hands(_Blocking(sock, address), options, response, address)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return made


def _context(options: BrokerOptions) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=options.ca_file or None)
    if options.certificate_file:
        password = resolve(options.key_password).reveal() if options.key_password else None
        context.load_cert_chain(options.certificate_file, options.key_file, password)
    return context


def _response(options: BrokerOptions) -> bytes:
    """The answer to the SASL mechanism (RFC 4616, RFC 4422 appendix A)."""
    if options.mechanism == "EXTERNAL":
        return b""
    return f"\0{options.username}\0{resolve(options.password).reveal()}".encode()


def _shake_hands(peer: _Blocking, options: BrokerOptions, response: bytes, address: str) -> Connection:
    peer.send(wire.PROTOCOL_HEADER)
    offered = peer.expect(M.CONNECTION_START)
    properties, at = table.decode(offered, 2)
    size = int.from_bytes(offered[at : at + 4], "big")
    mechanisms = offered[at + 4 : at + 4 + size].decode(errors="replace").split()
    if options.mechanism not in mechanisms:
        raise UnauthorizedError(
            f"{address}: the broker does not accept {options.mechanism}, but {', '.join(mechanisms)}"
        )
    peer.send(wire.method(0, M.CONNECTION_START_OK, _start_ok(options.mechanism, response)))
    try:
        tune = peer.expect(M.CONNECTION_TUNE)
    except ConnectionLostError:
        # A broker without the capability closes the socket (RabbitMQ documentation, "Authentication Failure Notifications").
        raise UnauthorizedError(f"{address}: the broker refused to log in; check username and password") from None
    _, frame_bytes, heartbeat = struct.unpack_from(">HIH", tune)
    frame_bytes = min(frame_bytes or FRAME_BYTES, FRAME_BYTES)
    heartbeat = min(each for each in (heartbeat, options.heartbeat_seconds) if each)
    peer.send(wire.method(0, M.CONNECTION_TUNE_OK, struct.pack(">HIH", 8, frame_bytes, heartbeat)))
    peer.send(wire.method(0, M.CONNECTION_OPEN, wire.short(options.virtual_host) + b"\0\0"))
    peer.expect(M.CONNECTION_OPEN_OK)
    made = Connection(peer.sock, address, frame_bytes, heartbeat)
    made.cluster_name = next(
        (str(table.value_of(kind, raw)) for name, kind, raw in properties if name == "cluster_name"), ""
    )
    return made


def _start_ok(mechanism: str, response: bytes) -> bytes:
    wanted = (
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
    )
    capabilities = table.encode([(name, b"t", b"\1") for name in wanted])
    fields: list[Any] = [
        (name, *table.field_of(text)) for name, text in (("product", "isthmus"), ("platform", "Python"))
    ]
    fields.append(("capabilities", b"F", capabilities))
    return table.encode(fields) + wire.short(mechanism) + wire.long_text(response) + wire.short("en_US")


class _Blocking:
    """Methods of channel 0 over a blocking socket."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self.sock, self._address = sock, address

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def expect(self, which: tuple[int, int]) -> bytes:
        """The arguments of the next method.

        Raises:
            ClosedByBrokerError: the method is a close.
            ProtocolError: another method arrived.
        """
        while True:
            head = self._take(7)
            if head[:4] == b"AMQP":
                raise ProtocolError(f"{self._address}: the broker uses another protocol: {head!r}")
            kind, _, size = _HEAD(head)
            if size > FRAME_BYTES:
                raise ValueError(f"a frame of {size} bytes")
            payload = self._take(size + 1)
            if kind != METHOD:
                continue
            found = _IDS(payload)
            if found == which:
                return payload[4:-1]
            if found == M.CONNECTION_CLOSE:
                with contextlib.suppress(OSError):
                    self.send(wire.method(0, M.CONNECTION_CLOSE_OK))
                raise closed(self._address, payload[4:])
            raise ProtocolError(
                f"{self._address}: method {found[0]}.{found[1]} arrived instead of {which[0]}.{which[1]}"
            )

    def _take(self, size: int) -> bytes:
        parts = []
        while size:
            data = self.sock.recv(min(size, 65536))
            if not data:
                raise ConnectionLostError(f"{self._address}: the broker closed the connection")
            parts.append(data)
            size -= len(data)
        return b"".join(parts)
