"""The socket below a peer: how it is read, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time

import pytest

from harness.check.until import passes, until_async
from isthmus.broker.net import shell
from isthmus.broker.net.shell import Shell
from isthmus.broker.security.certificate import ensure_certificate, server_context


class Transport(asyncio.Transport):
    """A socket whose client reads nothing: what was written stays, and so does the connection until it is aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closing = self.aborted = False
        self.reading = True

    def set_write_buffer_limits(self, high=None, low=None) -> None:
        pass

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def open_shell(broker, monkeypatch):
    monkeypatch.setattr(shell, "CLOSE_SECONDS", 0.0)
    made, transport = Shell(broker.namespace), Transport()
    made.connection_made(transport)
    return made, transport


async def test_a_closed_connection_is_removed_soon_though_its_client_reads_nothing_i4(open_shell):
    made, transport = open_shell
    made.write(b"x" * 1000)
    assert made.unsent_bytes == 1000
    made.close()
    made.close()
    assert transport.closing
    assert not transport.aborted
    await until_async(lambda: transport.aborted)


async def test_one_that_has_ended_is_not_aborted_i4(open_shell):
    made, transport = open_shell
    made.close()
    made.connection_lost(None)
    await passes(5)
    assert not transport.aborted
    assert made.unsent_bytes == 0


async def test_what_waits_below_tls_is_unsent_too(broker, tmp_path):
    files = ensure_certificate(tmp_path, now_ms=int(time.time() * 1000))
    loop, made, (ours, theirs) = asyncio.get_running_loop(), Shell(broker.namespace), socket.socketpair()
    context = ssl.create_default_context(cafile=str(files.authority))
    client = asyncio.open_connection(sock=theirs, ssl=context, server_hostname="localhost", limit=1 << 10)
    _, (_, writer) = await asyncio.gather(
        loop.connect_accepted_socket(lambda: made, ours, ssl=server_context(files.certificate, files.key)), client
    )
    made.write(bytes(8 << 20))
    assert made.unsent_bytes > 4 << 20
    writer.transport.abort()
    await until_async(lambda: made.unsent_bytes == 0)


def read(made: Shell, count: int) -> None:
    made.get_buffer(-1)[:count] = bytes(count)
    made.buffer_updated(count)


@pytest.fixture
def large_shell(open_shell, monkeypatch):
    """A connection on which parts of a large message are coming."""
    made, transport = open_shell
    monkeypatch.setattr(made._peer, "receive", lambda data: None)
    made._peer._links.is_taking_large = True
    return made, transport


async def test_a_large_message_gets_one_read_an_iteration_i3(large_shell):
    made, transport = large_shell
    for _ in range(3):
        read(made, 1000)
        assert not transport.reading
        await asyncio.sleep(0)
        assert transport.reading
    made._peer._links.is_taking_large = False
    read(made, 1000)
    assert transport.reading


async def test_the_next_iteration_reads_on_only_if_the_peer_wants_it_i3(large_shell):
    made, transport = large_shell
    read(made, 1000)
    made.pause_reading()
    await asyncio.sleep(0)
    assert not transport.reading
    made.resume_reading()
    assert transport.reading
    read(made, 1000)
    made.pause_reading()
    made.resume_reading()
    assert not transport.reading
    await asyncio.sleep(0)
    assert transport.reading


async def test_a_connection_that_ends_between_two_iterations_is_left_alone_i3(large_shell):
    made, transport = large_shell
    read(made, 1000)
    made.connection_lost(None)
    await asyncio.sleep(0)
    assert not transport.reading
