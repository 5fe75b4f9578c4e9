"""The WebSocket below a peer: what the HTTP server does with its requests."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

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
