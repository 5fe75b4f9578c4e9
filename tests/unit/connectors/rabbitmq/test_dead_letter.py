"""isthmus.connectors.rabbitmq.dead_letter: copies of messages that are set aside."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Noted
from isthmus.connectors.amqp import copy_limit
from isthmus.connectors.rabbitmq.dead_letter import DESCRIPTION_HEADER, REASON_HEADER, SOURCE_HEADER, DeadLetters
from isthmus.connectors.rabbitmq.mapping.fingerprint import traits_of
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.option import read_source
from isthmus.connectors.rabbitmq.port.delivered import Entry
from isthmus.connectors.rabbitmq.port.end import CHANNEL
from isthmus.connectors.rabbitmq.port.pool import CLOSE_SECONDS
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS
from isthmus.errors import ConnectionLostError, IsthmusError, OperationTimeoutError

FRAME_BYTES = 4096
OPTIONS = {"host": "h", "username": "u", "password": "env:P", "entity": "q", "dead_letters": "aside"}
WHY = Disposition("dead-letter", "Bad", "y" * 1000)


class Written:
    """A connection that takes everything."""

    frame_bytes = FRAME_BYTES
    queued_bytes = arrived_bytes = 0
    error: Exception | None = None

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.user: Any = None

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def write_all(self, parts: list[bytes]) -> None:
        self.parts += parts

    def flush(self) -> None:
        pass

    @property
    def copies(self) -> int:
        """How many were published."""
        return sum(each[0] == wire.HEADER for each in self.parts)


class World:
    """Dead letters, with a pool that connects on demand, and what they report."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.requests: list[Any] = []
        self.left: list[Any] = []
        self.dropped: list[Any] = []
        self.tags: list[int] = []
        self.errors: list[IsthmusError] = []
        pool: Any = SimpleNamespace(
            connect=self._connect, leave=lambda each, _: self.left.append(each), drop=self.dropped.append
        )
        options = read_source(OPTIONS)
        self.dead = DeadLetters(options, options, pool, self._report)
        self.written = Written()

    def _connect(self, end: Any, options: Any) -> Any:
        self.requests.append(SimpleNamespace(end=end))
        return self.requests[-1]

    def _report(self, result: Sequence[int] | IsthmusError) -> None:
        if isinstance(result, IsthmusError):
            self.errors.append(result)
        else:
            self.tags += result

    def connect(self) -> None:
        self.written = Written()
        self.dead.on_connected(self.written)  # type: ignore[arg-type]

    def set_aside(self, *tags: int, header_bytes: int = 10) -> None:
        self.dead.set_aside([entry(self.dead, tag, tag, header_bytes) for tag in tags], WHY)

    def confirm(self, number: int, *, multiple: bool = True) -> None:
        self.dead.on_method(CHANNEL, M.BASIC_ACK, struct.pack(">QB", number, multiple))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def entry(dead: DeadLetters, position: int, tag: int, header_bytes: int = 10) -> Entry:
    headers = (("own", *table.field_of("x" * header_bytes)),)
    record = Record(b"body", props.write(Properties(headers=headers, delivery_mode=2, expiration=b"5")), "", "q")
    dead.keep(position, to_message(record, position))
    return Entry(position, tag, traits_of(record))


def headers_of(written: Written) -> dict[str, Any]:
    frame = next(each for each in written.parts if each[0] == wire.HEADER)
    assert len(frame) <= FRAME_BYTES
    found = props.read(frame[19:-1])
    assert found.expiration is None, "it must not expire where it is set aside"
    return {name: table.value_of(kind, raw) for name, kind, raw in found.headers}


@pytest.mark.parametrize(
    ("header_bytes", "expected"),
    [
        (10, {REASON_HEADER, SOURCE_HEADER, DESCRIPTION_HEADER}),
        (3500, {REASON_HEADER, SOURCE_HEADER}),
        (3970, set()),
    ],
)
def test_the_reason_is_told_as_far_as_a_frame_holds_it(world: World, header_bytes: int, expected: set[str]) -> None:
    """Otherwise RabbitMQ would close the connection for the copy, each time that the message comes again."""
    world.set_aside(1, header_bytes=header_bytes)
    world.connect()
    assert headers_of(world.written).keys() == {"own"} | expected
    assert world.errors == []


def test_i1_a_delivery_is_done_once_its_copy_is_confirmed(world: World) -> None:
    entries = [entry(world.dead, position, tag) for position, tag in ((1, 7), (2, 0), (3, 9))]
    world.dead.set_aside(entries, WHY)
    assert world.dead.is_waiting
    world.connect()
    assert world.tags == []
    world.confirm(2)
    assert world.tags == [7, 9], "the second comes again: it has no tag"
    assert not world.dead.is_waiting


def test_copies_wait_for_their_connection_which_later_ones_share(world: World) -> None:
    world.set_aside(1)
    world.set_aside(2)
    assert len(world.requests) == 1
    world.connect()
    world.set_aside(3)
    assert len(world.requests) == 1
    assert world.written.copies == 3
    world.confirm(1, multiple=False)
    world.confirm(3)
    assert world.tags == [1, 2, 3]


def test_i3_the_source_stops_at_so_many_unconfirmed_copies(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream would be read to its end, and each copy kept here."""
    monkeypatch.setattr(copy_limit, "MOST_COPIES", 3)
    world.set_aside(1, 2)
    assert not world.dead.is_full
    world.connect()
    world.set_aside(3)
    assert world.dead.is_full
    world.confirm(1)
    assert not world.dead.is_full


def test_i3_the_source_stops_at_so_many_bytes_of_unconfirmed_copies(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_limit, "MOST_BYTES", 3000)
    world.set_aside(1, header_bytes=2900)
    assert not world.dead.is_full
    world.set_aside(2, header_bytes=2900)
    assert world.dead.is_full
    world.dead.detach()
    assert not world.dead.is_full, "they come again"
    world.set_aside(3, 4, header_bytes=2900)
    world.connect()
    world.dead.detach()
    assert world.dead.is_full, "they are published: their confirms come"
    world.confirm(2)
    assert not world.dead.is_full
    assert world.tags == []


def test_i4_the_source_is_lost_where_no_copy_is_confirmed_for_long(world: World) -> None:
    """The queue of dead letters may have lost most of its replicas: else the messages stay unacknowledged, and nobody knows why."""
    world.set_aside(1, 2)
    world.connect()
    world.now += OUTCOME_SECONDS - 1
    world.confirm(1)
    world.now += OUTCOME_SECONDS - 1
    world.dead.check(world.now)
    assert world.errors == []
    assert world.dead.due <= world.now + 1
    world.now += 1
    world.dead.check(world.now)
    assert [type(each) for each in world.errors] == [OperationTimeoutError]
    world.confirm(2)
    assert world.tags == [1], "the second is not acknowledged: it comes again"


def test_i4_each_time_it_lasts_twice_as_long_until_a_copy_is_confirmed(world: World) -> None:
    """A quorum queue counts each end of its consumer as a delivery attempt, and drops a message after 20 of them."""
    waits: list[float] = []
    for _ in range(8):
        world.set_aside(1)
        world.connect()
        while not world.errors:
            world.now = world.dead.due
            world.dead.check(world.now)
        waits.append(float(str(world.errors.pop()).partition(" for ")[2].partition(" s")[0]))
        world.dead.lost()
    assert waits == [60, 120, 240, 480, 960, 1800, 1800, 1800]
    world.set_aside(1)
    world.connect()
    world.confirm(1)
    world.dead.lost()
    world.set_aside(1)
    world.connect()
    world.now += OUTCOME_SECONDS
    world.dead.check(world.now)
    assert len(world.errors) == 1


def test_i4_no_time_out_begins_while_the_broker_reports_that_it_is_blocked(world: World) -> None:
    """Another connection would be blocked as well, and each end of one counts for a queue's delivery limit."""
    world.set_aside(1)
    world.connect()
    world.dead.on_method(0, M.CONNECTION_BLOCKED, wire.short("low on memory"))
    [note] = world.dead.news()
    assert isinstance(note, Noted)
    assert "low on memory" in note.text
    world.now += 10 * OUTCOME_SECONDS
    world.dead.check(world.now)
    assert world.errors == []
    world.dead.on_method(0, M.CONNECTION_UNBLOCKED, b"")
    assert world.dead.news() == [Noted("")]
    world.now += OUTCOME_SECONDS - 1
    world.dead.check(world.now)
    assert world.errors == []
    world.now += 1
    world.dead.check(world.now)
    assert len(world.errors) == 1


def test_a_lost_connection_fails_the_source_only_where_copies_wait_for_it(world: World) -> None:
    world.set_aside(1)
    world.connect()
    world.confirm(1)
    world.written.error = ConnectionLostError("gone")
    world.dead.on_closed(world.written.error)
    assert world.errors == []
    lost = world.written
    world.set_aside(2)
    assert world.dropped == [lost]
    assert len(world.requests) == 2
    world.connect()
    assert world.written.copies == 1
    world.dead.on_closed(ConnectionLostError("gone"))
    assert len(world.errors) == 1


def test_after_a_failure_nothing_is_published_or_reported_as_done(world: World) -> None:
    """Another connection counts its publications from 1: a confirm would be taken for one of an earlier copy."""
    world.set_aside(1, 2)
    world.connect()
    world.written.error = ConnectionLostError("gone")
    world.dead.on_closed(world.written.error)
    world.set_aside(3)
    assert len(world.requests) == 1
    world.dead.lost()
    world.set_aside(4)
    assert len(world.requests) == 2
    world.connect()
    world.confirm(1)
    assert world.tags == [4]


def test_the_connection_ends_with_the_confirms_of_a_source_that_is_closed(world: World) -> None:
    world.set_aside(1)
    world.dead.leave()
    assert world.left == []
    world.connect()
    assert world.left == [world.written]
    world.confirm(1)
    assert world.tags == [1]
    assert world.written.user is None
    assert world.written.parts[-1] == wire.close_method(0)


def test_no_copy_is_published_for_a_source_that_has_left(world: World) -> None:
    """Its messages are with another one, which sets them aside."""
    world.set_aside(1)
    world.dead.leave()
    world.now += CLOSE_SECONDS
    world.connect()
    assert world.written.copies == 0
    assert not world.dead.is_waiting
