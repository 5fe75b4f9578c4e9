"""AMQP over WebSocket, client side: the two directions between the socket pair and the WebSocket."""

import asyncio
import socket
import threading
from types import SimpleNamespace

import aiohttp
import pytest

from isthmus.errors import ConnectionLostError
from isthmus.transport import Endpoint, websocket


class Stream:
    """A WebSocket whose server has closed it, and whose last message is still to be read."""

    def __init__(self, *messages):
        self._messages = list(messages)

    async def send_bytes(self, data):
        raise ConnectionResetError("Cannot write to closing transport")

    def __aiter__(self):
        return self

    async def __anext__(self):
        for _ in range(5):
            await asyncio.sleep(0)
        if not self._messages:
            raise StopAsyncIteration
        return SimpleNamespace(type=aiohttp.WSMsgType.BINARY, data=self._messages.pop(0))


async def test_what_the_server_said_last_arrives_though_nothing_can_be_written_i2():
    mine, inner = socket.socketpair()
    with mine, inner:
        inner.setblocking(False)
        mine.settimeout(60)
        mine.send(b"more")
        await websocket._relay(inner, Stream(b"outcome", b"close"))
        assert mine.recv(100) == b"outcomeclose"


async def test_a_client_that_has_left_ends_both_directions_i2():
    mine, inner = socket.socketpair()
    with inner:
        inner.setblocking(False)
        mine.close()
        await asyncio.wait_for(websocket._relay(inner, Stream(*[b"x"] * 100_000)), 60)


def test_a_server_that_names_another_address_is_not_followed_i3():
    """Tokens and messages would go to a host that was not configured."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        server.settimeout(10.0)
        other.setblocking(False)

        def redirect() -> None:
            with server.accept()[0] as connection:
                connection.recv(65536)
                where = b"http://127.0.0.1:%d/" % other.getsockname()[1]
                connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % where)
                connection.recv(1)

        thread = threading.Thread(target=redirect)
        thread.start()
        with pytest.raises(ConnectionLostError, match="answered 302"):
            websocket.dial(Endpoint("127.0.0.1", server.getsockname()[1], tls=False), 5.0)
        thread.join()
        with pytest.raises(BlockingIOError):
            other.accept()


def test_the_password_of_a_proxy_is_not_shown_i4(monkeypatch):
    """aiohttp's errors contain the proxy's address as it is in the environment."""
    monkeypatch.setenv("NO_PROXY", "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10.0)

        def refuse() -> None:
            with server.accept()[0] as connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                connection.recv(1)

        thread = threading.Thread(target=refuse)
        thread.start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:hunter2@127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(ConnectionLostError, match="the proxy of the environment answered 407") as raised:
            websocket.dial(Endpoint("namespace.test", 443), 5.0)
        thread.join()
    assert "hunter2" not in str(raised.value)
    monkeypatch.setenv("HTTPS_PROXY", "user:hunter2@[127.0.0.1")
    with pytest.raises(ConnectionLostError, match="the proxy that the environment names") as raised:
        websocket.dial(Endpoint("namespace.test", 443), 5.0)
    assert "hunter2" not in str(raised.value)
