"""AMQP over WebSocket, client side: the two ways between the socket pair and the WebSocket."""

import asyncio
import socket
from types import SimpleNamespace

import aiohttp

from isthmus.transport import websocket


class Stream:
    """A WebSocket whose server has gone, and whose last message is still to be read."""

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


async def test_a_client_that_has_gone_ends_both_ways_i2():
    mine, inner = socket.socketpair()
    with inner:
        inner.setblocking(False)
        mine.close()
        await asyncio.wait_for(websocket._relay(inner, Stream(*[b"x"] * 100_000)), 60)
