"""Connections of a target by HTTP: one for each thread, kept open.

What it is: a request and its answer over `http.client`, and the delay that a server requests. What it is not: what a status means to a
kind.

Invariants:
    I1. A request is made once; the caller decides whether to repeat it.
    I2. `close` ends requests in flight; no connection is made after it.
    I3. A received status is reported, even if the body after it, or the request before it, is incomplete: within the time of the request,
        although the body continues.
    I4. No error contains the value of a header.
"""

from __future__ import annotations

import contextlib
import http
import http.client
import math
import select
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from isthmus.connectors.keep_alive import KEEP_ALIVE
from isthmus.errors import InvalidArgumentError

__all__ = ["Answer", "HttpClient", "retry_after"]

ANSWER_BYTES = 1 << 20
_PART_BYTES = 1 << 16
_TEXT_CHARACTERS = 300
# Enough that a secret at the end of the text is not cut before it is removed.
_TEXT_BYTES = 8192


class Answer(NamedTuple):
    """An answer; names of headers are in lower case.

    Attributes:
        is_whole: whether the body is complete.
    """

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes
    is_whole: bool = True

    def text(self, secret: str = "") -> str:
        """The beginning of the body, in one line, without a secret of the request."""
        decoded = self.body[:_TEXT_BYTES].decode(errors="replace")
        if secret:
            decoded = decoded.replace(secret, "***")
        return " ".join(decoded[:_TEXT_CHARACTERS].split())


class HttpClient:
    """Requests to one server.

    Args:
        url: scheme, host and port; its path is a prefix of those of requests.
        timeout_seconds: for one request.
        ca_file: CA certificates to trust instead of the system's; empty: the system's.
        certificate_file: this client's; empty: none.
        key_file: its key.
        answer_bytes: how many bytes of an answer are read at most.

    Raises:
        InvalidArgumentError: the address is invalid.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        *,
        ca_file: str = "",
        certificate_file: str = "",
        key_file: str = "",
        answer_bytes: int = ANSWER_BYTES,
    ) -> None:
        self._answer_bytes = answer_bytes
        try:
            parts = urlsplit(url)
            self._port = parts.port
        except ValueError:
            parts = None
        if parts is None or parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise InvalidArgumentError("url: write https://host or https://host:port/path, without a user")
        self._host = parts.hostname
        self._path = parts.path.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context(cafile=ca_file or None)
            if certificate_file:
                self._tls.load_cert_chain(certificate_file, key_file or None)
        self.address = f"{self._host}:{self._port or (443 if self._tls else 80)}"
        self._lock = threading.Lock()
        self._connections: dict[int, http.client.HTTPConnection] = {}
        self._is_closed = False

    def connect(self) -> None:
        """Connects.

        Raises:
            OSError: it cannot connect.
        """
        self._connection()

    def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"", *, needs_all: bool = False
    ) -> Answer:
        """Makes a request, and waits for the answer.

        Args:
            method: of the request.
            path: after the address's path.
            headers: by name.
            body: of the request.
            needs_all: whether to wait for the whole body of the answer, however long that takes.

        Raises:
            OSError: no answer, or an invalid one.
            ValueError: a header contains invalid characters.
        """
        limit = math.inf if needs_all else time.monotonic() + self._timeout_seconds
        connection = self._connection()
        sock = connection.sock
        try:
            try:
                connection.request(method, self._path + path, body=body, headers=dict(headers))
            except OSError as error:
                found = _early_answer(connection, error)
            else:
                found = connection.getresponse()
        except http.client.HTTPException as error:
            self._drop()
            raise OSError(f"{type(error).__name__}: {error}") from None
        except OSError:
            self._drop()
            raise
        except ValueError:
            self._drop()
            raise ValueError("a header contains invalid characters") from None
        content, is_whole = self._read(found, sock, limit)
        if not is_whole or found.will_close:
            self._drop()
        received = {name.lower(): value for name, value in found.getheaders()}
        return Answer(found.status, found.reason, received, content, is_whole)

    def _read(self, found: http.client.HTTPResponse, sock: Any, limit: float) -> tuple[bytes, bool]:
        """The body, as far as it arrives until `limit`, and whether it is complete."""
        parts: list[bytes] = []
        size, is_whole = 0, False
        try:
            while not found.isclosed() and found.length != 0:
                left = limit - time.monotonic()
                if left <= 0 or size > self._answer_bytes:
                    break
                sock.settimeout(min(left, self._timeout_seconds))
                part = found.read1(_PART_BYTES)
                if not part:  # where a length was given, the end of the connection does not end the body
                    is_whole = not found.length
                    break
                parts.append(part)
                size += len(part)
            else:
                is_whole = True
            sock.settimeout(self._timeout_seconds)
        except (http.client.HTTPException, OSError, ValueError):  # the last of a file that `close` has closed
            is_whole = False
        found.close()
        return b"".join(parts), is_whole

    def close(self) -> None:
        """Closes all connections."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections.values())
        for connection in connections:
            sock = connection.sock
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                connection.close()  # a read in progress ends by the shutdown

    def _connection(self) -> http.client.HTTPConnection:
        """This thread's connection, open."""
        me = threading.get_ident()
        with self._lock:
            found = self._connections.get(me)
        if found is not None and found.sock is not None:
            poller = select.poll()
            poller.register(found.sock, select.POLLIN)
            if not poller.poll(0):
                return found
            self._drop()  # the server has closed it
        made: http.client.HTTPConnection
        if self._tls is not None:
            made = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_seconds, context=self._tls)
        else:
            made = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_seconds)
        made.response_class = _FinalResponse
        made.auto_open = 0  # else a request that meets `close` would connect again, and be made
        with self._lock:
            if self._is_closed:
                raise OSError("the client is closed")
            self._connections[me] = made
        try:
            made.connect()
        except OSError:
            self._drop()  # after a failed TLS handshake the socket is unusable
            raise
        if made.sock is not None:
            made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for option in KEEP_ALIVE:
                made.sock.setsockopt(*option)
        if self._has_ended():
            made.close()
            raise OSError("the client is closed")
        return made

    def _has_ended(self) -> bool:
        with self._lock:
            return self._is_closed

    def _drop(self) -> None:
        with self._lock:
            found = self._connections.pop(threading.get_ident(), None)
        if found is not None:
            found.close()


class _FinalResponse(http.client.HTTPResponse):
    """The answer after interim ones (RFC 9110, 15.2), of which `http.client` skips only 100."""

    def _read_status(self) -> tuple[str, int, str]:
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]  # typeshed has none of it
            if not 100 < status < 200 or status == http.HTTPStatus.SWITCHING_PROTOCOLS:
                return version, status, reason
            http.client.parse_headers(self.fp)


def _early_answer(connection: http.client.HTTPConnection, error: OSError) -> http.client.HTTPResponse:
    """The refusal by a server that did not read the request to its end (RFC 9112, 9.5); without one, the error is raised."""
    sock = connection.sock
    if sock is None:
        raise error
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    if not poller.poll(0):
        raise error
    try:
        found = connection.getresponse()
    except (OSError, http.client.HTTPException):
        raise error from None
    if found.status < http.HTTPStatus.MULTIPLE_CHOICES:
        raise error  # a server that accepts a request reads it
    found.will_close = True
    return found


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float:
    """How many seconds a server asks to wait (RFC 9110, 10.2.3); 0: not given."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - (time.time() if now is None else now))
    except (TypeError, ValueError):
        return 0.0
