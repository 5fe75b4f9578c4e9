"""isthmus.connectors.rabbitmq.fingerprint."""

from __future__ import annotations

from isthmus.connectors.rabbitmq import property as props
from isthmus.connectors.rabbitmq import table
from isthmus.connectors.rabbitmq.fingerprint import fingerprint_of
from isthmus.connectors.rabbitmq.property import Properties, Record


def record(count: int | None, *, body: bytes = b"x") -> Record:
    headers = [("a", *table.field_of(1))]
    if count is not None:
        headers.insert(0, ("x-delivery-count", *table.field_of(count)))
    return Record(body, props.write(Properties(headers=tuple(headers), message_id=b"m")), "e", "k")


def test_deliveries_of_one_message_are_equal() -> None:
    """I1: a quorum queue counts deliveries in a header."""
    assert fingerprint_of(record(None)) == fingerprint_of(record(1)) == fingerprint_of(record(2))


def test_messages_that_differ_are_not() -> None:
    base = record(None)
    for other in (record(None, body=b"y"), base._replace(exchange=""), base._replace(routing_key="l")):
        assert fingerprint_of(other) != fingerprint_of(base)
