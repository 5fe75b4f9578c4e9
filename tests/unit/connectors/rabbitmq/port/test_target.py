"""isthmus.connectors.rabbitmq.port.target: what it tells of its credit."""

from __future__ import annotations

import struct

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Opened, Outcome, Send
from isthmus.connectors.rabbitmq.option import read_target
from isthmus.connectors.rabbitmq.port.flight import CREDIT
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.port.target import RabbitTarget
from isthmus.connectors.rabbitmq.protocol.wire import M


class Connection:
    """Takes everything."""

    error = None
    frame_bytes = 131_072

    def write_all(self, parts: list[bytes]) -> None:
        pass


def test_credit_that_came_back_is_told_though_it_is_what_it_was_before() -> None:
    """The machine counts down with each delivery: untold, the credit of a quiet route would be used up after so many messages."""
    pool = BrokerPool()
    target = RabbitTarget(
        pool, 1, read_target({"host": "localhost", "username": "u", "password": "env:P", "entity": "q"}), ""
    )
    target.is_open = True
    target.connection = Connection()  # type: ignore[assignment]
    assert list(target.poll(0.0)) == [Opened(), Granted(CREDIT)]
    target.send(Send([section.encode_message(b"x")]))
    target.on_method(1, M.BASIC_ACK, struct.pack(">QB", 1, 0))
    assert list(target.poll(0.0)) == [Outcome(0, 0), Granted(CREDIT)]
    assert list(target.poll(0.0)) == []
    pool.close()
