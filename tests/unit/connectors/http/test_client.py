"""Connections of a target by HTTP, on sockets of this machine."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator

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


def test_a_tls_handshake_that_failed_is_made_again(server: socket.socket) -> None:
    """Its connection has no socket that could be looked at."""
    client = HttpClient(url(server, "https"), 0.2)
    for _ in range(2):
        with pytest.raises((TimeoutError, ssl.SSLError)):
            client.request("POST", "/", {})
    client.close()
