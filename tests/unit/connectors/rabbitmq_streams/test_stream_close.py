"""isthmus.connectors.rabbitmq_streams.source: the end of a source whose last messages were set aside."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived
from isthmus.connectors.rabbitmq.port.end import CHANNEL
from isthmus.connectors.rabbitmq.port.pool import CLOSE_SECONDS
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.rabbitmq_streams.option import read_source
from isthmus.connectors.rabbitmq_streams.pool import StreamPool
from isthmus.connectors.rabbitmq_streams.source import StreamSource

OPTIONS = {
    "host": "h",
    "username": "u",
    "password": "env:P",
    "checkpoints": "/none",
    "topic": "orders",
    "dead_letter_topic": "aside",
}


class FakeThread:
    """Keeps what would be written."""

    ident = None

    def __init__(self, *_: Any) -> None:
        self.written: list[dict[int, Any]] = []
        self.is_stopped = False

    def write(self, key: object, checkpoints: dict[int, Any]) -> None:
        self.written.append(checkpoints)

    def take(self) -> list[Any]:
        return []

    def stop(self) -> None:
        self.is_stopped = True

    def is_alive(self) -> bool:
        return not self.is_stopped


class FakeConnection:
    """Takes what is written."""

    frame_bytes = 4096
    cluster_name = "rabbit@a"
    held_seconds = 0.0
    queued_bytes = arrived_bytes = 0
    error = user = None
    is_paused = False

    def write(self, data: bytes) -> None: ...

    def write_all(self, parts: list[bytes]) -> None: ...

    def flush(self) -> None: ...

    def service(self, now: float) -> None: ...

    def abandon(self) -> None: ...


@pytest.fixture
def source() -> Iterator[StreamSource]:
    pool = StreamPool()
    made = StreamSource(pool, 1, read_source(OPTIONS), only_present=False, thread=FakeThread)  # type: ignore[arg-type]
    made.connection = FakeConnection()  # type: ignore[assignment]
    made._checkpoints.group = made.options.key("rabbit@a", "orders", "g")
    made._settlement.dead.begin(made.connection)  # type: ignore[arg-type]
    made._reading.assign(0, first=0)
    made.opened()
    made.grant(10)
    headers = (("x-stream-offset", *table.field_of(0)),)
    made._came.append((0, Record(b"body", props.write(Properties(headers=headers)), "", "orders")))
    events = made.poll(time.monotonic())
    assert [each.positions for each in events if isinstance(each, Arrived)] == [[0]]
    made._settlement.dead.on_connected(FakeConnection())  # type: ignore[arg-type]
    made.settle(0, 0, Disposition("dead-letter", "ValidationFailed", "why"))
    yield made
    pool._leaving.clear()
    pool.close()


def test_the_checkpoint_of_what_was_set_aside_last_is_written_after_its_confirm(source: StreamSource) -> None:
    """Otherwise each run that ends there sets it aside again."""
    thread: Any = source._checkpoints._thread
    source.close()
    assert not source.has_left
    assert not thread.is_stopped, "the confirm is to come"
    source._settlement.dead.on_method(CHANNEL, M.BASIC_ACK, struct.pack(">QB", 1, 0))
    assert [each[0].sequence for each in thread.written] == [0]
    assert source.has_left


def test_a_confirm_that_does_not_come_blocks_no_caller(source: StreamSource) -> None:
    thread: Any = source._checkpoints._thread
    source.close()
    source.pool._leave(time.monotonic() + CLOSE_SECONDS + 1)
    assert thread.is_stopped
    assert thread.written == []
    assert source.has_left


def test_a_copy_that_comes_back_ends_the_source_at_once(source: StreamSource) -> None:
    thread: Any = source._checkpoints._thread
    source.close()
    source._settlement.dead.on_method(CHANNEL, M.BASIC_NACK, struct.pack(">QB", 1, 0))
    assert thread.is_stopped
    assert thread.written == []
