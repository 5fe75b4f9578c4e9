"""HTTP connections that come before their server, over real loopback sockets."""

import asyncio

import pytest

from harness.check.until import until_async
from isthmus.broker.net.http_gate import HttpGate
from isthmus.broker.net.listener import Listener
from isthmus.broker.net.sniff import Speech

HEAD = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def has_waiting(gate):
    return lambda: [waiting for waiting in gate._waiting if waiting._said]


@pytest.fixture
async def gate():
    return HttpGate()


@pytest.fixture
async def port(gate):
    listener = Listener("127.0.0.1", 0, {Speech.HTTP: gate})
    listener.start()
    yield listener.port
    gate.close()
    await listener.close()


async def test_who_comes_early_is_served_with_all_that_was_said_i1(gate, port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD)
    await until_async(has_waiting(gate))
    body = bytes(range(256)) * 1024  # more than is kept: the rest waits in the socket
    writer.write(body)
    [waiting] = gate._waiting
    await until_async(lambda: not waiting._transport.is_reading())
    gate.open(Echo)
    async with asyncio.timeout(10):
        assert await reader.readexactly(len(HEAD) + len(body)) == HEAD + body
    writer.close()


async def test_who_comes_late_is_served_at_once_i1(gate, port):
    gate.open(Echo)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD)
    async with asyncio.timeout(10):
        assert await reader.readexactly(len(HEAD)) == HEAD
    writer.close()


async def test_who_went_away_is_forgotten_i1(gate, port):
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD)
    await until_async(has_waiting(gate))
    writer.transport.abort()
    await until_async(lambda: not gate._waiting)
    gate.open(lambda: pytest.fail("nothing waits"))


async def test_what_still_waits_at_the_end_is_ended(gate, port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(HEAD)
    await until_async(has_waiting(gate))
    gate.close()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await reader.readexactly(1)
    writer.close()
