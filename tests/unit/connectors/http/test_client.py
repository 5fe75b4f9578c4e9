"""Connections of a target by HTTP, on sockets of this machine."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from isthmus.connectors.http.client import HttpClient


@pytest.fixture(name="server")
def _server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(5.0)
        yield listening


def url(server: socket.socket, scheme: str = "http") -> str:
    return f"{scheme}://127.0.0.1:{server.getsockname()[1]}"


def test_i2_a_request_that_close_comes_before_is_not_made(server: socket.socket) -> None:
    class Closing(HttpClient):
        def _connection(self) -> http.client.HTTPConnection:
            found = super()._connection()
            self.close()
            return found

    with pytest.raises(OSError, match="NotConnected"):
        Closing(url(server), 2.0).request("POST", "/", {})
    with server.accept()[0] as first:
        assert first.recv(1) == b""
    server.settimeout(0.2)
    with pytest.raises(TimeoutError):
        server.accept()


def test_no_proxy_of_the_environment_is_asked(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/how-to/use-http.md: what is posted, and its secret, goes only to the configured address."""
    asked: list[object] = []

    def connect(address: object, *_: object, **__: object) -> None:
        asked.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, url(server))
    for address in ("http://api.test", "https://api.test"):
        with pytest.raises(ConnectionRefusedError):
            HttpClient(address, 1.0).connect()
    assert asked == [("api.test", 80), ("api.test", 443)]


@contextmanager
def serving(
    server: socket.socket, serve: Callable[[socket.socket], None], timeout_seconds: float = 2.0
) -> Iterator[HttpClient]:
    """A client of a server that serves one connection, and closes it."""

    def run() -> None:
        with server.accept()[0] as connection:
            connection.settimeout(5.0)
            serve(connection)

    thread = threading.Thread(target=run)
    thread.start()
    client = HttpClient(url(server), timeout_seconds)
    try:
        yield client
    finally:
        client.close()
        thread.join()


def read_head(connection: socket.socket) -> None:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)


def test_i3_interim_answers_are_passed_over(server: socket.socket) -> None:
    def serve(connection: socket.socket) -> None:
        for name in (b"first", b"second"):
            read_head(connection)
            connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(name), name))

    with serving(server, serve) as client:
        answers = [client.request("POST", "/", {}) for _ in range(2)]
    assert [(each.status, each.body, each.is_whole) for each in answers] == [
        (200, b"first", True),
        (200, b"second", True),
    ]


@pytest.mark.parametrize(
    "body",
    [b"Content-Length: 9\r\n\r\ntaken", b"Transfer-Encoding: chunked\r\n\r\n9\r\ntaken", b"Content-Length: 9\r\n\r\n"],
    ids=["length", "chunked", "nothing"],
)
def test_i3_a_status_is_reported_though_the_body_is_cut(server: socket.socket, body: bytes) -> None:
    """Otherwise what the receiver has is sent to it a second time."""

    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n" + body)

    with serving(server, serve) as client:
        answer = client.request("POST", "/", {})
    assert (answer.status, answer.is_whole) == (200, False)


def test_i3_a_status_is_reported_though_the_body_continues(server: socket.socket) -> None:
    """An address that answers by a stream has the message, and would be sent it again and again."""
    is_over = threading.Event()

    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        with suppress(OSError):
            while not is_over.wait(0.01):
                connection.sendall(b"1\r\n.\r\n")

    with serving(server, serve, timeout_seconds=0.2) as client:
        begun = time.monotonic()
        answer = client.request("POST", "/", {})
        is_over.set()
    assert (answer.status, answer.is_whole) == (200, False)
    assert time.monotonic() < begun + 5


def test_i3_a_refusal_is_reported_that_comes_before_the_request_is_sent(server: socket.socket) -> None:
    """A message that is too large would be sent again permanently."""

    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with serving(server, serve) as client:
        assert client.request("POST", "/", {}, bytes(32 << 20)).status == 413


def test_that_a_request_was_taken_is_not_believed_before_it_is_sent(server: socket.socket) -> None:
    def serve(connection: socket.socket) -> None:
        read_head(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with serving(server, serve) as client, pytest.raises(OSError, match=r"reset|pipe"):
        client.request("POST", "/", {}, bytes(32 << 20))


def test_i4_no_error_holds_a_header(server: socket.socket) -> None:
    client = HttpClient(url(server), 2.0)
    with pytest.raises(ValueError, match="header") as raised:
        client.request("POST", "/", {"authorization": "hunter2\n"})
    assert "hunter2" not in str(raised.value)
    client.close()


def test_a_connection_is_kept_alive(server: socket.socket) -> None:
    """A firewall in between drops one that is idle, and the next request would wait for its time-out."""
    client = HttpClient(url(server), 2.0)
    sock = client._connection().sock
    assert sock is not None
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    client.close()


def test_a_tls_handshake_that_failed_is_made_again(server: socket.socket) -> None:
    """Its connection has no socket that could be looked at."""
    client = HttpClient(url(server, "https"), 0.2)
    for _ in range(2):
        with pytest.raises((TimeoutError, ssl.SSLError)):
            client.request("POST", "/", {})
    client.close()
