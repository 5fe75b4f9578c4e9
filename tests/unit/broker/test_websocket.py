"""The WebSocket below a peer: what the HTTP server does with its requests."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import WSMessage, WSMsgType, web
from aiohttp.test_utils import TestServer

from isthmus.broker import websocket
from isthmus.broker.websocket import WEBSOCKET_PATH, add_websocket

HELLO = (
    f"GET {WEBSOCKET_PATH} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)


async def test_a_client_that_goes_before_it_is_answered_is_no_fault(broker, caplog):
    @web.middleware
    async def go(request, handler):
        request.transport.close()
        return await handler(request)

    app = web.Application(middlewares=[go])
    add_websocket(app, broker.namespace)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(HELLO.encode())
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await writer.wait_closed()
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.mark.parametrize(
    ("standing", "said"),
    [("Version: 13", "Version: \udcc0"), ("websocket\r\n", "\udcc0\r\n"), ("Key: dGhl", "Key: \udc80Ghl")],
)
async def test_a_handshake_with_bytes_that_are_no_text_is_refused(broker, caplog, standing, said):
    app = web.Application()
    add_websocket(app, broker.namespace)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(HELLO.replace(standing, said).encode(errors="surrogateescape"))
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await writer.wait_closed()
    assert [record for record in caplog.records if record.exc_info] == []


class Socket:
    """A WebSocket whose client reads nothing."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[object] = asyncio.Queue()

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await self.messages.get()

    async def send_bytes(self, data) -> None:
        await asyncio.Event().wait()


async def test_a_closed_connection_is_gone_soon_though_its_client_reads_nothing_i2(monkeypatch):
    monkeypatch.setattr(websocket, "CLOSE_SECONDS", 0.0)
    aborted = []
    wire = websocket._Wire(Socket(), "client", lambda: aborted.append(1))
    sending = asyncio.create_task(wire.send())
    wire.write(b"x" * 1000)
    assert wire.unsent_bytes == 1000
    wire.close()
    await asyncio.sleep(0.01)
    assert aborted == [1]
    sending.cancel()
    over = websocket._Wire(Socket(), "client", lambda: aborted.append(2))
    over.close()
    over.over()
    await asyncio.sleep(0.01)
    assert aborted == [1]


async def test_who_waits_to_read_on_sees_the_end():
    """The connection may be closed while it is ahead of the disk."""

    class Taker:
        def receive(self, data) -> None:
            taken.append(data)

    taken: list[bytes] = []
    socket = Socket()
    wire = websocket._Wire(socket, "client", lambda: None)
    receiving = asyncio.create_task(wire.receive(Taker()))
    wire.pause_reading()
    socket.messages.put_nowait(WSMessage(WSMsgType.BINARY, b"x", None))
    socket.messages.put_nowait(WSMessage(WSMsgType.CLOSE, None, None))
    await asyncio.sleep(0.01)
    assert taken == []
    wire.close()
    await asyncio.wait_for(receiving, 10)
    wire.over()
    assert taken == [b"x"]
