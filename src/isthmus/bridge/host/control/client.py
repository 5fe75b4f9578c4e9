"""The reader's end of the control connection.

What it is: the blocking TCP connect and handshake (`control.handshake`), after which frames go both ways over a `Channel`, and the
orderly end of that channel. What it is not: the frames (`isthmus.bridge.frame`).

Invariants:
    I1. Every failure is a `ControlError` of one sentence that says what to do, within the time given.
    I2. Frames queued before `hang_up` reach the driver if it still reads.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time

from isthmus.bridge.host.channel import Channel, ChannelError
from isthmus.bridge.host.control.handshake import ClientHandshake, ControlError, ControlKeyError, NotControlError

__all__ = ["ControlError", "ControlKeyError", "NotControlError", "dial_control", "hang_up", "split_address", "tune"]

# The loss of the driver's machine is detected in about half a minute: the route's claim and its locks last about as long.
_KEEPALIVE_IDLE_SECONDS = 10
_KEEPALIVE_INTERVAL_SECONDS = 5
_KEEPALIVE_PROBES = 4
_UNACKNOWLEDGED_MS = 30_000
_NOT_CONTROL = "check the address, and that no other program has taken the port since the run began"


def dial_control(address: str, token: str, timeout_seconds: float) -> Channel:
    """A connection to the driver's control port.

    Args:
        address: `host:port`; an IPv6 host is in brackets.
        token: the key of the run.
        timeout_seconds: for connecting and the handshake together.

    Raises:
        ControlKeyError: the port belongs to another run.
        NotControlError: the listener there is not a control port.
        ControlError: the address cannot be reached.
    """
    until = time.monotonic() + timeout_seconds
    host, port = split_address(address)
    try:
        sock = socket.create_connection((host, port), timeout_seconds)
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise ControlError(
            f"cannot reach the driver at {address} ({why}); open the port, or set spark.driver.host / the run's control address"
        ) from None
    try:
        _shake_hands(sock, address, token, until)
        tune(sock)
        return Channel(sock)
    except BaseException:
        sock.close()
        raise


def _shake_hands(sock: socket.socket, address: str, token: str, until: float) -> None:
    handshake = ClientHandshake(token)
    data = b""
    try:
        sock.settimeout(max(0.001, until - time.monotonic()))
        sock.sendall(handshake.greeting())
        while len(data) < handshake.needed:
            sock.settimeout(max(0.001, until - time.monotonic()))
            piece = sock.recv(handshake.needed - len(data))
            if not piece:
                raise NotControlError(
                    f"{address} closed the connection before the handshake was complete: it is not an isthmus control port, or "
                    f"the run is ending; {_NOT_CONTROL}"
                )
            data += piece
        sock.sendall(handshake.receive(data))
    except ControlKeyError:
        raise ControlKeyError(
            f"the control port at {address} has another key than this reader: it belongs to another run; stop the run that "
            "this query was left over from, or start the query again with the address and key of its own run"
        ) from None
    except NotControlError as error:
        if address in error.message:
            raise
        raise NotControlError(
            f"what listens at {address} is not an isthmus control port: {error.message}; {_NOT_CONTROL}"
        ) from None
    except TimeoutError:
        raise NotControlError(
            f"{address} is open, but did not answer as an isthmus control port does in time; {_NOT_CONTROL}, and that the "
            "driver is not stopped or overloaded"
        ) from None
    except OSError as error:
        raise NotControlError(
            f"{address} broke the connection during the handshake ({error.strerror or error}): it is not an isthmus control port, "
            f"or the run is ending; {_NOT_CONTROL}"
        ) from None


def hang_up(channel: Channel, timeout_seconds: float) -> None:
    """Writes queued frames, waits until the driver has closed its end too, and closes.

    Closing a socket with unread bytes resets the connection, and the last frames (ENDED) may be lost: the driver would take a lease
    that ended in order for one that died.
    """
    until = time.monotonic() + timeout_seconds
    with contextlib.suppress(ChannelError, OSError):
        channel.flush()
        while channel.has_queued() and _wait(channel, select.POLLOUT, until):
            channel.flush()
        channel.end_writing()
        while not channel.closed and _wait(channel, select.POLLIN, until):
            channel.receive()
    channel.close()


def _wait(channel: Channel, interest: int, until: float) -> bool:
    remaining = until - time.monotonic()
    if remaining <= 0 or channel.closed:
        return False
    poll = select.poll()
    poll.register(channel, interest)
    return bool(poll.poll(remaining * 1000))


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`.

    Raises:
        ControlError: it is not an address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ControlError(f"control address '{address}' is not of the form host:port; set the run's control address")
    return host.removeprefix("[").removesuffix("]"), int(port)


def tune(sock: socket.socket) -> None:
    """Disables Nagle's algorithm, and enables keep-alive to detect a lost machine."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_SECONDS),
        ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_SECONDS),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", _UNACKNOWLEDGED_MS),
    ):
        if hasattr(socket, option):  # Linux has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
