"""The proxy between real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from isthmus.testing.proxy import Proxy, Weather, proxy

TIMEOUT = 20.0


@pytest.fixture(name="echo")
def _echo() -> Iterator[int]:
    """The port of an echo server."""
    door = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                connection, _ = door.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield door.getsockname()[1]
    door.shutdown(socket.SHUT_RDWR)
    door.close()


@pytest.fixture(name="made")
def _made(echo: int) -> Iterator[Proxy]:
    with proxy(echo) as running:
        yield running


def dial(made: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", made.port), TIMEOUT)


def first_byte(made: Proxy) -> bytes:
    with dial(made) as connection:
        return connection.recv(1)


def read(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (data := connection.recv(1 << 16)):
        found += data
    return found


def test_bytes_come_back_after_the_round_trip_however_many_they_are(made: Proxy) -> None:
    made.set_round_trip(0.1, jitter_seconds=0.01)
    data = os.urandom(4 << 20)
    with dial(made) as connection:
        began = time.monotonic()
        sending = threading.Thread(target=connection.sendall, args=(data,))
        sending.start()
        assert read(connection, len(data)) == data
        assert time.monotonic() - began >= 0.1
        sending.join()
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""  # the end passes too


def test_a_connection_that_is_cut_is_reset_and_another_can_be_made(made: Proxy) -> None:
    with dial(made) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"
        assert (made.cut(), made.accepted) == (1, 1)
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    with dial(made) as connection:
        connection.sendall(b"b")
        assert read(connection, 1) == b"b"


def test_new_connections_are_refused_while_set_so(made: Proxy) -> None:
    made.refuse()
    with pytest.raises(ConnectionResetError):
        first_byte(made)
    made.refuse(False)
    with dial(made) as connection:
        connection.sendall(b"a")
        assert read(connection, 1) == b"a"


def test_a_stalled_connection_stays_open_and_continues_afterwards(made: Proxy) -> None:
    with dial(made) as connection:
        made.set_weather(Weather(is_stalled=True), Weather())
        connection.sendall(b"a")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(TIMEOUT)
        made.set_round_trip(0.0)
        assert read(connection, 1) == b"a"


def test_a_full_buffer_stops_the_sender_i2(made: Proxy) -> None:
    made.set_weather(Weather(is_stalled=True, buffer_bytes=1 << 16))
    with dial(made) as connection:
        connection.settimeout(0.5)
        sent = 0
        with contextlib.suppress(TimeoutError):  # no more is taken
            while sent < 64 << 20:
                sent += connection.send(bytes(1 << 16))
        assert sent < 64 << 20
