"""One port, several protocols: over real loopback sockets, since bytes are peeked at without being read."""

import asyncio
import errno
import ssl
import time

import pytest

from isthmus.broker.net import listener as listener_module
from isthmus.broker.net.listener import Listener
from isthmus.broker.net.sniff import Speech
from isthmus.broker.security.certificate import ensure_certificate, server_context


class Named(asyncio.Protocol):
    """Answers with its name and what it got."""

    def __init__(self, name):
        self.name = name

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write((self.name + b":" if self.name else b"") + data)
        self.name = b""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return ensure_certificate(tmp_path_factory.mktemp("certificate"), now_ms=int(time.time() * 1000))


@pytest.fixture
async def serve(files):
    listeners = []

    def start(**options):
        protocols = {Speech.AMQP: lambda: Named(b"amqp"), Speech.HTTP: lambda: Named(b"http")}
        tls = server_context(files.certificate, files.key)
        listener = Listener("127.0.0.1", 0, protocols, **{"tls": tls, **options})
        listener.start()
        listeners.append(listener)
        return listener.port

    yield start
    for listener in listeners:
        await listener.close()


async def ask(port, data, tls=None, pieces=False):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    try:
        for piece in [data[i : i + 1] for i in range(len(data))] if pieces else [data]:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        async with asyncio.timeout(10):
            return await reader.readexactly(5 + len(data)) if data else await reader.read(100)
    except asyncio.IncompleteReadError as error:
        return error.partial
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("pieces", [False, True])
async def test_amqp_and_http_share_a_port_with_tls(serve, files, pieces):
    port = serve()
    context = ssl.create_default_context(cafile=str(files.authority))
    assert await ask(port, b"AMQP\0\1\0\0") == b"amqp:AMQP\0\1\0\0"
    assert await ask(port, b"GET / HTTP/1.1\r\n\r\n") == b"http:GET / HTTP/1.1\r\n\r\n"
    assert (await ask(port, b"AMQP\3\1\0\0", context, pieces)).startswith(b"amqp:AMQP\3\1")
    assert (await ask(port, b"PUT /q HTTP/1.1\r\n\r\n", context, pieces)).startswith(b"http:PUT ")


@pytest.mark.parametrize("number", [errno.EPROTO, errno.EPERM, errno.EMFILE, errno.EHOSTUNREACH, errno.ECONNABORTED])
async def test_an_accept_that_fails_ends_no_listener_i2(serve, monkeypatch, number):
    monkeypatch.setattr(listener_module, "_PAUSE_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    accept, faults = loop.sock_accept, [OSError(number, "no")] * 3

    async def failing(listening):
        if faults:
            raise faults.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", failing)
    port = serve()
    assert await ask(port, b"AMQP\0\1\0\0") == b"amqp:AMQP\0\1\0\0"
    assert not faults


async def test_an_unknown_protocol_is_dropped_and_logged_i1(serve, caplog):
    port = serve()
    assert await ask(port, b"SSH-2.0-hello") == b""
    assert await ask(port, b"GET / HTTP/1.1\r\n\r\n") == b"http:GET / HTTP/1.1\r\n\r\n"
    assert [record.message for record in caplog.records if "speaks unknown" in record.message]


async def test_a_broken_handshake_leaves_one_line_i1(serve, caplog):
    port = serve()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"\x16\x03\x01\x00\x04hell")
    async with asyncio.timeout(10):
        while await reader.read(100):
            pass
    writer.close()
    assert await ask(port, b"AMQP\0\1\0\0") == b"amqp:AMQP\0\1\0\0"
    assert len([record for record in caplog.records if record.name == "isthmus.broker.net.listener"]) == 1


async def test_where_only_tls_is_served_the_clear_is_refused(serve, files, caplog):
    port = serve(plain=False)
    assert await ask(port, b"AMQP\0\1\0\0") == b""
    context = ssl.create_default_context(cafile=str(files.authority))
    assert await ask(port, b"AMQP\0\1\0\0", context) == b"amqp:AMQP\0\1\0\0"
    assert "in the clear" in caplog.text


async def test_an_http_head_that_is_not_finished_is_dropped_i1(serve, monkeypatch, caplog):
    monkeypatch.setattr("isthmus.broker.net.listener.SILENCE_SECONDS", 0.05)
    port = serve()
    assert await ask(port, b"GET / HTTP/1.1\r\nHost: x\r\n") == b""
    assert "said nothing" in caplog.text


async def test_an_http_head_that_is_too_long_is_refused_i1(serve, caplog):
    port = serve()
    head = b"GET / HTTP/1.1\r\n" + b"X: %s\r\n" % (b"a" * 1000) * 40
    assert len(head) > 32 << 10
    assert (await ask(port, head)).startswith(b"HTTP/1.1 431 ")
    assert "http head" in caplog.text
    whole = head[: 30 << 10] + b"\r\n\r\n"
    assert await ask(port, whole) == b"http:" + whole
