"""Whether the other end of a socket has read the written bytes, with real sockets."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import pytest

from isthmus.connectors.servicebus.batch import consumption as consumption_module
from isthmus.connectors.servicebus.batch.consumption import Consumption

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the system tells what a socket holds only there")


@pytest.fixture(name="pair", params=["tcp", "unix"])
def _pair(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, socket.socket]]:
    if request.param == "unix":
        one, other = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            other, _ = server.accept()
    with one, other:
        yield one, other


def read_all(sock: socket.socket, count: int) -> None:
    while count > 0:
        count -= len(sock.recv(min(count, 65536)))


def test_it_waits_until_all_is_read_i1(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    stream = one.makefile("wb", 65536)
    consumption = Consumption(stream)
    stream.write(b"x" * 50_000)  # within the file's buffer: `wait` pushes it
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(consumption.wait()))
    thread.start()
    read_all(other, 49_999)
    thread.join(0.1)
    assert waited == []
    read_all(other, 1)
    thread.join(60)
    assert waited == [True]
    consumption.close()
    stream.close()


def test_an_end_that_closes_has_not_read(pair: tuple[socket.socket, socket.socket]) -> None:
    one, other = pair
    stream = one.makefile("wb", 65536)
    consumption = Consumption(stream)
    stream.write(b"x" * 50_000)
    stream.flush()
    other.recv(10)
    other.close()
    assert not consumption.wait()
    consumption.close()
    stream.close()


def test_where_nothing_can_be_watched_the_end_of_the_writing_counts() -> None:
    assert Consumption(None).wait()
    assert Consumption(None).filler_bytes == 0


def test_what_the_system_does_not_report_counts_as_not_read(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are settled once all is read."""
    monkeypatch.setattr(consumption_module, "unsent_bytes", lambda sock: None)
    with pair[0].makefile("wb") as stream:
        consumption = Consumption(stream)
        assert not consumption.wait()
        consumption.close()
