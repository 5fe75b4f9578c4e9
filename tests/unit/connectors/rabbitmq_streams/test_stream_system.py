"""isthmus.connectors.rabbitmq_streams.system: a browsed message is that of a route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq_streams import system
from isthmus.connectors.rabbitmq_streams.record import StreamReader
from isthmus.replication.verification.content import content_digest


def test_a_browsed_message_has_the_id_that_a_route_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise `verify` takes the copy of a message without MessageId for changed."""
    made: list[Callable[[Record, int], bytes]] = []
    monkeypatch.setattr(system, "StreamPeek", lambda options, stream, *read: made.extend(read))
    system.SYSTEM.peek({"host": "rabbit-1"}, "orders")
    record: Any = Record(b"body", props.write(Properties()), "", "orders")
    routed = StreamReader("orders", gives_ids=True).read(0, (7, record)).message
    assert [content_digest(read(record, 7)) for read in made] == [content_digest(routed)]
