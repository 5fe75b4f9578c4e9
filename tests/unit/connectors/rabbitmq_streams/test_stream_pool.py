"""isthmus.connectors.rabbitmq_streams.pool: closed sources that wait for confirms."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from isthmus.connectors.rabbitmq.port import pool as broker_pool
from isthmus.connectors.rabbitmq.port.pool import CLOSE_SECONDS
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.rabbitmq_streams.pool import StreamPool


class Source:
    """One that was closed."""

    def __init__(self, pool: StreamPool, connection: Connection) -> None:
        self.connection: Connection | None = connection
        self.finished = 0
        pool.leave(connection, time.monotonic())
        pool.owes(self)

    def finish(self) -> None:
        self.connection = None
        self.finished += 1


@pytest.fixture
def sockets() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield Connection(ours, "broker", 4096, 0), theirs
    ours.close()
    theirs.close()


def test_i3_a_source_is_finished_when_its_connection_is_lost(sockets: tuple[Connection, socket.socket]) -> None:
    connection, theirs = sockets
    pool = StreamPool()
    source = Source(pool, connection)
    pool.service({}, time.monotonic())
    assert source.finished == 0
    theirs.send(wire.method(0, M.CONNECTION_CLOSE_OK))
    pool.service({}, time.monotonic())
    pool.service({}, time.monotonic())
    assert source.finished == 1
    pool.close()
    assert source.finished == 1


def test_i3_a_source_is_finished_when_its_time_is_over(sockets: tuple[Connection, socket.socket]) -> None:
    connection, _ = sockets
    pool = StreamPool()
    source = Source(pool, connection)
    pool.service({}, time.monotonic() + CLOSE_SECONDS)
    assert source.finished == 1
    pool.close()


def test_i2_the_end_of_the_pool_finishes_its_sources(
    sockets: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, _ = sockets
    monkeypatch.setattr(broker_pool, "CLOSE_SECONDS", 0.0)
    pool = StreamPool()
    source = Source(pool, connection)
    pool.close()
    assert source.finished == 1
