"""isthmus.connectors.rabbitmq.port.arrival and publication: messages that are alike are the same as on the general path."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import types
from isthmus.bridge.port import Arrived
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.option import read_source
from isthmus.connectors.rabbitmq.port import arrival, source
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.port.publication import Publications
from isthmus.connectors.rabbitmq.port.source import RabbitSource
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter

OPTIONS = {"host": "localhost", "username": "u", "password": "env:P", "entity": "q"}
NOW = 1_700_000_000.0
FRAME_BYTES = 4096

# By name, values of equal length: whatever is drawn, messages have one layout, except where a value has to be mapped another way.
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "content_type": st.sampled_from([b"text/a", b"text/b"]),
    "message_id": st.sampled_from([b"m1", b"m2", b"%b", "ü".encode(), b"\xff\xfe"]),
    "correlation_id": st.sampled_from([b"c1", b"c%", b"\xff\xfe"]),
    "type": st.sampled_from([b"t", b"u"]),
    "timestamp": st.sampled_from([0, 1_700_000_000]),
    "priority": st.sampled_from([4, 5]),
    "expiration": st.just(b"10"),
}
HEADERS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.one_of(st.integers(-300, 300), st.integers(-(1 << 63), (1 << 63) - 1)),
    "i": st.one_of(st.integers(-300, 300), st.integers(-(1 << 31), (1 << 31) - 1)).map(types.Int),
    "t%": st.sampled_from(["ab", "%b", "ü"]),
    "b": st.booleans(),
    "empty": st.just(""),
    "CC": st.just("x"),
}
BODIES = st.sampled_from([b"x", b"x", b"y" * 10, b"z" * 3000, b"", b"z" * 9000])


@st.composite
def records_of_a_shape(draw: st.DrawFn) -> list[Record]:
    """Messages with the same fields and headers."""
    fields = draw(st.lists(st.sampled_from([*FIELDS][:4]), unique=True)) + draw(
        st.lists(st.sampled_from([*FIELDS][4:]), unique=True, max_size=1)
    )
    headers = draw(st.lists(st.sampled_from([*HEADERS]), unique=True, max_size=3))
    name = draw(st.sampled_from(["q", "other%"]))
    found = []
    for _ in range(draw(st.integers(1, 8))):
        table_of = tuple((key, *table.field_of(draw(HEADERS[key]))) for key in headers)
        values = {key: draw(FIELDS[key]) for key in fields}
        properties = Properties(**values, headers=table_of, delivery_mode=2)
        found.append(Record(draw(BODIES), props.write(properties), "", name))
    return found


SEQUENCES = st.lists(records_of_a_shape(), max_size=3).map(lambda parts: [record for part in parts for record in part])


class Socket:
    """Has received these bytes."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks = list(chunks)
        self.written = b""

    def recv(self, _: int) -> bytes:
        return self.chunks.pop(0)

    def send(self, data: bytes) -> int:
        self.written += data
        return len(data)

    def close(self) -> None:
        pass


def delivery(record: Record, tag: int, *, is_again: bool = False) -> bytes:
    """The frames of a delivery."""
    arguments = wire.short("isthmus") + struct.pack(">Q?", tag, is_again)
    arguments += wire.short(record.exchange) + wire.short(record.routing_key)
    frames = wire.content_frames(1, record.properties, record.body, FRAME_BYTES)
    return wire.method(1, M.BASIC_DELIVER, arguments) + b"".join(frames)


def read_by_source(chunks: Iterable[bytes], patch: pytest.MonkeyPatch) -> tuple[RabbitSource, list[bytes], list[int]]:
    """What a source delivers of received bytes: messages and positions."""
    patch.setattr("time.time", lambda: NOW)
    pool = BrokerPool()
    made = RabbitSource(pool, 1, read_source(OPTIONS), ordered=True, only_present=False)
    sock = Socket(chunks)
    connection = Connection(sock, "broker", FRAME_BYTES, 0)  # type: ignore[arg-type]  # as far as it is used
    made.connection, connection.user = connection, made
    made.begin(connection)
    made.is_open = made._is_consuming = True
    made.poll(0.0)
    made.grant(1 << 20)
    messages: list[bytes] = []
    positions: list[int] = []
    while sock.chunks:
        connection.service(0.0)
        assert connection.error is None, connection.error
        for event in made.poll(0.0):
            assert isinstance(event, Arrived)
            messages += event.payloads
            positions += event.positions
    pool.close()
    return made, messages, positions


def cut(data: bytes, at: Sequence[int]) -> list[bytes]:
    """In pieces."""
    ends = [*sorted({each % (len(data) + 1) for each in at}), len(data)]
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False) if begin < end]


@given(SEQUENCES, st.lists(st.integers(0, 100_000), max_size=6))
@settings(max_examples=150, deadline=None)
def test_i1_deliveries_that_are_alike_are_read_as_the_others_are(records: list[Record], cuts: list[int]) -> None:
    """arrival I1, I2."""
    data = b"".join(delivery(record, tag) for tag, record in enumerate(records, 1))
    with pytest.MonkeyPatch.context() as patch:
        made, messages, positions = read_by_source(cut(data, cuts), patch)
    expected = [
        to_message(record, position, int(NOW * 1000)) for record, position in zip(records, positions, strict=True)
    ]
    assert messages == expected
    assert positions == list(range(positions[0], positions[0] + len(records))) if records else not positions
    assert list(made._unacked._order) == list(range(1, len(records) + 1))


@pytest.mark.parametrize("field", ["message_id", "correlation_id"])
def test_i1_a_text_that_amqp_1_0_cannot_have_is_noted(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the general path, though its message is like the others."""
    records = [
        Record(b"x", props.write(Properties(delivery_mode=2, **{field: text}))) for text in (b"m1", b"m2", b"\xff\xfe")
    ]
    data = b"".join(delivery(record, tag) for tag, record in enumerate(records, 1))
    _, messages, positions = read_by_source([data], monkeypatch)
    assert messages[2] == to_message(records[2], positions[2], int(NOW * 1000))
    assert b"isthmus-rabbitmq" in messages[2]


def test_i1_deliveries_that_are_alike_are_known_when_they_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their traits are those of the general path, by which a redelivered message is recognised."""
    records = [Record(b"%d" % number, props.write(Properties(delivery_mode=2, message_id=b"m"))) for number in range(5)]
    calls: list[Any] = []
    monkeypatch.setattr(source, "to_message", lambda *given: calls.append(given) or to_message(*given))
    data = b"".join(delivery(record, tag) for tag, record in enumerate(records, 1))
    made, messages, _ = read_by_source([data], monkeypatch)
    assert (len(messages), len(calls)) == (5, 2)  # the layout is learned from two
    made._delivered.lost()
    assert made.connection is not None
    made.connection._parse(b"".join(delivery(each, tag, is_again=True) for tag, each in enumerate(records, 11)))
    assert list(made.poll(0.0)) == []
    assert [entry.tag for entry in made._delivered._outstanding.values()] == [11, 12, 13, 14, 15]


def test_a_source_that_is_closed_takes_nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    record = Record(b"x", props.write(Properties(delivery_mode=2)))
    made, messages, _ = read_by_source([b"".join(delivery(record, tag) for tag in (1, 2, 3))], monkeypatch)
    assert len(messages) == 3
    connection = made.connection
    assert connection is not None
    made.close()
    connection._parse(delivery(record, 4))
    assert made._unacked._order[-1] == 3


@given(SEQUENCES, st.booleans(), st.sampled_from(["", "orders"]))
@settings(max_examples=150, deadline=None)
def test_i1_messages_that_are_alike_are_published_as_the_others_are(
    records: list[Record], is_copied: bool, exchange: str
) -> None:
    """publication I1."""
    messages = [to_message(record, 1 << 40 | number, 5) for number, record in enumerate(records)]
    if is_copied:
        rewriter = MessageRewriter("lga/orders", "jfk", origin_namespace="", entity="orders")
        messages = [copy for each in messages for copy in rewriter.copy_all(each, [0, len(each)], 1)[0]]
    publications = Publications(1)
    for message in messages:
        record = to_record(message)._replace(exchange=exchange)
        expected = wire.publish_method(1, record.exchange, record.routing_key)
        expected += b"".join(wire.content_frames(1, record.properties, record.body, FRAME_BYTES))
        found = publications.frames(message, wire.largest_body(FRAME_BYTES))
        if found is None:
            publications.learn(message, record)
        else:
            assert b"".join(found) == expected


def test_the_third_of_messages_that_are_alike_is_published_in_one_step() -> None:
    rewriter = MessageRewriter("lga/orders", "jfk", origin_namespace="", entity="orders")
    publications = Publications(1)
    found = []
    for number in range(6):
        headers = (("n", *table.field_of(10_000 + number)), ("s", *table.field_of(f"text {number}")))
        fields = Properties(headers=headers, delivery_mode=2, message_id=b"m-%d" % number)
        message = to_message(Record(b"x" * 300, props.write(fields), "", "q"), 1 << 40 | number, 5)
        [copy] = rewriter.copy_all(message, [0, len(message)], 1)[0]
        found.append(publications.frames(copy, 1000) is not None)
        if not found[-1]:
            publications.learn(copy, to_record(copy))
    assert found == [False, False, True, True, True, True]
    assert publications.frames(copy, 299) is None  # too large for a frame, or for the broker


def test_layouts_cost_little_where_none_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """layout I2: after many messages without one, few are examined."""
    examined: list[bytes] = []
    slots_of = arrival.property_slots
    monkeypatch.setattr(arrival, "property_slots", lambda raw: examined.append(raw) or slots_of(raw))
    records = [Record(b"x", props.write(Properties(delivery_mode=2, message_id=b"m" * (n % 200)))) for n in range(1000)]
    data = b"".join(delivery(record, tag) for tag, record in enumerate(records, 1))
    _, messages, _ = read_by_source([data], monkeypatch)
    assert len(messages) == 1000
    assert 60 < len(examined) < 90
