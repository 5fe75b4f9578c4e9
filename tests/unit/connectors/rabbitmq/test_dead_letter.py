"""isthmus.connectors.rabbitmq.dead_letter: copies of messages that are set aside."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.rabbitmq.dead_letter import DESCRIPTION_HEADER, REASON_HEADER, SOURCE_HEADER, DeadLetters
from isthmus.connectors.rabbitmq.mapping.fingerprint import traits_of
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.option import read_source
from isthmus.connectors.rabbitmq.port.delivered import Entry
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table, wire
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.wire import M

FRAME_BYTES = 4096
OPTIONS = {"host": "h", "username": "u", "password": "env:P", "entity": "q", "dead_letters": "aside"}
WHY = Disposition("dead-letter", "Bad", "y" * 1000)


class Written:
    """Replaces a connection."""

    frame_bytes = FRAME_BYTES

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.parts.append(data)

    def write_all(self, parts: list[bytes]) -> None:
        self.parts += parts


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
def test_the_reason_is_reported_as_far_as_a_frame_holds_it(header_bytes: int, expected: set[str]) -> None:
    """Otherwise RabbitMQ would close the connection for the copy, each time that the message comes again."""
    dead, written = DeadLetters(read_source(OPTIONS)), Written()
    assert dead.set_aside(written, [entry(dead, 1, 1, header_bytes)], WHY) is None  # type: ignore[arg-type]
    assert headers_of(written).keys() == {"own"} | expected


def test_i1_a_delivery_is_done_once_its_copy_is_confirmed() -> None:
    dead, written = DeadLetters(read_source(OPTIONS)), Written()
    entries = [entry(dead, position, tag) for position, tag in ((1, 7), (2, 0), (3, 9))]
    assert dead.set_aside(written, entries, WHY) is None  # type: ignore[arg-type]
    assert dead.is_waiting
    assert dead.on_method(M.BASIC_ACK, struct.pack(">QB", 2, 1)) == [7, 9], "the second comes again: it has no tag"
    assert not dead.is_waiting
