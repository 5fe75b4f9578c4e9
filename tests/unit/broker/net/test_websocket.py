"""The WebSocket below a peer: what the HTTP server does with its requests."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import WSMsgType, web
from aiohttp.test_utils import TestServer

from harness.check.until import until_async
from isthmus.amqp import Connection, Opened
from isthmus.broker.net import shell
from isthmus.broker.net.websocket import WEBSOCKET_PATH, add_websocket

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
    ("valid", "said"),
    [("Version: 13", "Version: \udcc0"), ("websocket\r\n", "\udcc0\r\n"), ("Key: dGhl", "Key: \udc80Ghl")],
)
async def test_a_handshake_with_bytes_that_are_no_text_is_refused(broker, caplog, valid, said):
    app = web.Application()
    add_websocket(app, broker.namespace)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(HELLO.replace(valid, said).encode(errors="surrogateescape"))
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await writer.wait_closed()
    assert [record for record in caplog.records if record.exc_info] == []


@pytest.fixture
async def server(broker):
    app = web.Application()
    add_websocket(app, broker.namespace)
    async with TestServer(app) as running:
        yield running


async def test_amqp_in_fragments_and_pings(broker, server):
    connection = Connection(server=False, container_id="client", hostname="host", max_frame_size_bytes=1 << 20)
    connection.start()
    async with aiohttp.ClientSession() as http:
        socket = await http.ws_connect(server.make_url(WEBSOCKET_PATH), protocols=("AMQPWSB10",), autoping=False)
        assert socket.protocol == "AMQPWSB10"
        events = []
        while not any(isinstance(event, Opened) for event in events):
            for byte in connection.take():
                await socket.send_bytes(bytes((byte,)))
            message = await socket.receive(timeout=10)
            assert message.type is WSMsgType.BINARY
            events += connection.receive(message.data, 0.0)
        await socket.ping(b"there?")
        message = await socket.receive(timeout=10)
        assert (message.type, message.data) == (WSMsgType.PONG, b"there?")
        assert len(broker.namespace.peers) == 1
        connection.close()
        await socket.send_bytes(connection.take())
        assert (await socket.receive(timeout=10)).type is WSMsgType.BINARY
        assert (await socket.receive(timeout=10)).type is WSMsgType.CLOSE
    await until_async(lambda: not broker.namespace.peers)


async def test_a_close_of_the_client_s_ends_the_connection(broker, server, caplog):
    async with aiohttp.ClientSession() as http:
        socket = await http.ws_connect(server.make_url(WEBSOCKET_PATH))
        await until_async(lambda: broker.namespace.peers)
        await socket.close()
        assert socket.close_code == 1000
    await until_async(lambda: not broker.namespace.peers)
    assert [record for record in caplog.records if record.exc_info] == []


async def test_text_is_refused(broker, server):
    async with aiohttp.ClientSession() as http:
        socket = await http.ws_connect(server.make_url(WEBSOCKET_PATH))
        await socket.send_str("hello")
        assert (await socket.receive(timeout=10)).data == 1003
    await until_async(lambda: not broker.namespace.peers)


async def test_what_follows_the_handshake_at_once_is_read(broker, server):
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(HELLO.encode() + b"\x82\x88\0\0\0\0AMQP\0\1\0\0")
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
    assert b"transfer-encoding" not in head.lower()
    assert await asyncio.wait_for(reader.readexactly(10), 10) == b"\x82\x08AMQP\0\1\0\0"
    writer.close()
    await until_async(lambda: not broker.namespace.peers)


@pytest.mark.parametrize("lacking", ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhb"])
async def test_what_is_no_handshake_is_refused(server, lacking):
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(HELLO.replace(lacking, "X-Nothing: x").encode())
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 400 ")
    writer.close()


async def test_a_closed_connection_is_removed_soon_though_its_client_reads_nothing_i2(broker, server, monkeypatch):
    monkeypatch.setattr(shell, "CLOSE_SECONDS", 0.01)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(HELLO.encode())
    await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    writer.transport.pause_reading()
    await until_async(lambda: broker.namespace.peers)
    wire = next(iter(broker.namespace.peers))._wire
    wire.write(b"x" * (32 << 20))
    assert wire.unsent_bytes > 1 << 20
    wire.close()
    await asyncio.wait_for(wire.over.wait(), 10)
    writer.close()
