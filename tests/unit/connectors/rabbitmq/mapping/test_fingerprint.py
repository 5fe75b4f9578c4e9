"""isthmus.connectors.rabbitmq.mapping.fingerprint."""

from __future__ import annotations

import pytest

from isthmus.connectors.rabbitmq.mapping.fingerprint import KEPT_BYTES, fingerprint_of, traits_of
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record


def record(*names: str, body: bytes = b"x") -> Record:
    headers = tuple((name, *table.field_of(1)) for name in names)
    return Record(body, props.write(Properties(headers=headers, message_id=b"m")), "e", "k")


def print_of(record: Record) -> int:
    return fingerprint_of(traits_of(record))


@pytest.mark.parametrize("count", ["x-delivery-count", "x-acquired-count"])
def test_deliveries_of_one_message_are_equal(count: str) -> None:
    """I1: a quorum queue counts deliveries in a header, and sorts the headers of what it delivers again."""
    assert print_of(record("b", "a")) == print_of(record("a", "b", count))
    assert print_of(record()) == print_of(record(count)) == print_of(record("x-delivery-count", "x-acquired-count"))


def test_an_empty_table_of_headers_is_as_none() -> None:
    """I1: RabbitMQ writes no empty table behind which it removes nothing; clients do."""
    plain = record()
    flags = int.from_bytes(plain.properties[:2], "big") | 0x2000
    with_table = plain._replace(properties=flags.to_bytes(2, "big") + b"\0\0\0\0" + plain.properties[2:])
    assert print_of(with_table) == print_of(record("x-delivery-count"))


def test_messages_that_differ_are_not() -> None:
    base = record("a")
    for other in (record("a", body=b"y"), record("b"), base._replace(exchange=""), base._replace(routing_key="l")):
        assert print_of(other) != print_of(base)


def test_properties_that_cannot_be_read_have_one_as_well() -> None:
    base = Record(b"x", b"\xff\xff")
    assert print_of(base) == print_of(base)
    assert print_of(base) != print_of(base._replace(properties=b"\xff\xfe"))


def test_large_properties_are_not_kept() -> None:
    """Tens of thousands of deliveries are remembered. A count that the broker adds may make them large."""
    names = [f"name-{number}" for number in range(KEPT_BYTES)]
    while len(record(*names).properties) > KEPT_BYTES:
        names.pop()
    assert isinstance(traits_of(record(*names)).properties, bytes)
    assert isinstance(traits_of(record(*names, "x-delivery-count")).properties, int)
    assert print_of(record(*names)) == print_of(record(*names, "x-delivery-count"))
