"""The listener of the control port: connections until they have proved that they have the key of the run.

What it is: the listening socket and the pending handshakes (`control.handshake`), without blocking, bounded in number, bytes and
time. What it is not: the frames after that (`control.server`).

Invariants:
    I1. No connection passes without the key.
    I2. At most `GUESTS` connections are in their handshake, each for `HANDSHAKE_SECONDS` at most, and no byte beyond the handshake
        is read of any. At the limit, others wait in the system's queue until one is done, or has been there for `GRACE_SECONDS` and
        is dropped.
    I3. Refused connections are logged with address and reason, one line in `LOG_SECONDS` at most; received bytes are not logged.
"""

from __future__ import annotations

import logging
import math
import select
import socket
from collections.abc import Mapping

from isthmus.bridge.host.control.client import tune
from isthmus.bridge.host.control.handshake import ControlError, ServerHandshake

__all__ = ["GRACE_SECONDS", "GUESTS", "HANDSHAKE_SECONDS", "Door"]

log = logging.getLogger(__name__)

GUESTS = 64
HANDSHAKE_SECONDS = 10.0
# A reader needs far less time for its two answers, also on a busy machine.
GRACE_SECONDS = 1.0
LOG_SECONDS = 10.0
_BACKLOG = 512
# After the system had no descriptor left for a connection.
_RETRY_SECONDS = 0.5


class _Guest:
    """One connection in its handshake."""

    def __init__(self, sock: socket.socket, token: str, now: float) -> None:
        self.sock = sock
        self.came_at = now
        self._handshake = ServerHandshake(token)
        self._data = b""

    def advance(self) -> bool:
        """Reads the available bytes; returns whether the handshake is done.

        Raises:
            ControlError: it does not have the key.
            OSError: the connection is lost.
        """
        while not self._handshake.is_done:
            try:
                data = self.sock.recv(self._handshake.needed - len(self._data))
            except BlockingIOError:
                return False
            if not data:
                raise ConnectionResetError("it went away")
            self._data += data
            if len(self._data) == self._handshake.needed:
                answer = self._handshake.receive(self._data)
                self._data = b""
                if answer and self.sock.send(answer, socket.MSG_NOSIGNAL) < len(answer):
                    raise ConnectionResetError("it does not read")
        return True


class Door:
    """The listening socket and the connections in their handshake.

    Args:
        host: the address to listen on.
        port: 0: any that is free.
        token: the key of the run.

    Raises:
        ControlError: the address cannot be listened on.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._token = token
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            raise ControlError(
                f"the driver cannot listen on {host}:{port} ({error.strerror or error}); set the run's control address to an address "
                "of this machine and a free port, or port 0 for any"
            ) from None
        self._listener.setblocking(False)
        self._guests: dict[int, _Guest] = {}  # by descriptor, in the order of arrival
        self._accept_at = -math.inf
        self._log_at = -math.inf
        self._unlogged = 0

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._listener.getsockname()[1])

    def descriptors(self, now: float) -> list[tuple[int, int]]:
        """What to poll."""
        found = [(descriptor, select.POLLIN) for descriptor in self._guests]
        if now >= self._accept_at and self._has_room(now):
            found.append((self._listener.fileno(), select.POLLIN))
        return found

    def deadline(self, now: float) -> float:
        """When to call `service` even if no descriptor is ready."""
        until = self._accept_at if self._accept_at > now else math.inf
        if self._guests:
            oldest = next(iter(self._guests.values())).came_at
            until = min(until, oldest + HANDSHAKE_SECONDS, math.inf if self._has_room(now) else oldest + GRACE_SECONDS)
        return until

    def service(self, ready: Mapping[int, int], now: float) -> list[socket.socket]:
        """Continues handshakes; returns the connections whose other end has the key."""
        passed = []
        for descriptor, guest in list(self._guests.items()):
            try:
                if descriptor in ready and guest.advance():
                    del self._guests[descriptor]
                    tune(guest.sock)
                    passed.append(guest.sock)
                elif now >= guest.came_at + HANDSHAKE_SECONDS:
                    self._refuse(descriptor, f"its handshake took longer than {HANDSHAKE_SECONDS:.0f} s", now)
            except ControlError as error:
                self._refuse(descriptor, error.message, now)
            except OSError:  # the connection is lost already
                self._guests.pop(descriptor, None)
                guest.sock.close()
        if self._listener.fileno() in ready:
            self._accept(now)
        return passed

    def close(self) -> None:
        """Closes all."""
        self._listener.close()
        for guest in self._guests.values():
            guest.sock.close()
        self._guests.clear()

    def _has_room(self, now: float) -> bool:
        if len(self._guests) < GUESTS:
            return True
        return now >= next(iter(self._guests.values())).came_at + GRACE_SECONDS

    def _accept(self, now: float) -> None:
        while self._has_room(now):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:  # the client disconnected while it waited
                continue
            except OSError as error:  # descriptors or memory are short
                self._accept_at = now + _RETRY_SECONDS
                self._log("a connection", f"it could not be accepted ({error.strerror or error})", now)
                return
            if len(self._guests) >= GUESTS:
                self._refuse(next(iter(self._guests)), "too many connections have not finished their handshake", now)
            sock.setblocking(False)
            self._guests[sock.fileno()] = _Guest(sock, self._token, now)

    def _refuse(self, descriptor: int, why: str, now: float) -> None:
        guest = self._guests.pop(descriptor)
        try:
            host, port, *_ = guest.sock.getpeername()
            who = f"{host}:{port}"
        except OSError:
            who = "a connection"
        self._log(who, why, now)
        guest.sock.close()

    def _log(self, who: str, why: str, now: float) -> None:
        if now < self._log_at:
            self._unlogged += 1
            return
        more = f"; {self._unlogged} more since the last such line" if self._unlogged else ""
        self._log_at, self._unlogged = now + LOG_SECONDS, 0
        log.warning("control port: refused %s: %s%s", who, why, more)
