"""isthmus.connectors.rabbitmq.port.target: the events for the delivery machine."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Opened, Outcome, Progressed, Send, Stopped
from isthmus.connectors.rabbitmq.option import read_target
from isthmus.connectors.rabbitmq.port.flight import CREDIT
from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.port.target import RabbitTarget
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.transit import LOOK_SECONDS, Transit
from isthmus.errors import ConnectionLostError


class Connection:
    """Takes everything."""

    error = None
    frame_bytes = 131_072
    queued_bytes = arrived_bytes = 0
    held_seconds = 0.0

    def write_all(self, parts: list[bytes]) -> None:
        pass

    def abandon(self) -> None:
        pass


@pytest.fixture
def target() -> Iterator[RabbitTarget]:
    """A target that is open."""
    pool = BrokerPool()
    made = RabbitTarget(
        pool, 1, read_target({"host": "localhost", "username": "u", "password": "env:P", "entity": "q"}), ""
    )
    made.is_open = True
    made.connection = Connection()  # type: ignore[assignment]
    assert list(made.poll(0.0)) == [Opened(), Granted(CREDIT)]
    yield made
    made.connection = None
    pool.close()


def test_credit_that_came_back_is_reported_though_it_is_what_it_was_before(target: RabbitTarget) -> None:
    """The machine counts down with each delivery: without a report the credit of an idle route would be used up after so many messages."""
    target.send(Send([section.encode_message(b"x")]))
    target.on_method(1, M.BASIC_ACK, struct.pack(">QB", 1, 0))
    assert list(target.poll(0.0)) == [Outcome(0, 0), Granted(CREDIT)]
    assert list(target.poll(0.0)) == []


def test_what_was_taken_of_an_envelope_is_reported_before_the_connection_is_lost(target: RabbitTarget) -> None:
    """Sent again with the others, it would be there twice."""
    target.send(Send([section.encode_message(b"%d" % number) for number in range(3)], is_envelope=True))
    target.on_method(1, M.BASIC_ACK, struct.pack(">QB", 2, 0))
    target.connection = None
    target.fail(ConnectionLostError("gone"))
    outcome, lost = (each for each in target.poll(0.0) if not isinstance(each, Granted))
    assert isinstance(lost, Lost)
    assert outcome == Outcome(0, 0, lost.refusal, (1,))


def test_i3_no_time_out_begins_while_bytes_of_the_messages_still_arrive(
    target: RabbitTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large message over a slow network takes longer than the time-out."""
    connection = Connection()
    connection.queued_bytes, connection.arrived_bytes = 1 << 20, 0
    target._transit = Transit(connection)
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    target.send(Send([section.encode_message(b"x")]))
    now = 100.0
    for _ in range(10):
        now += LOOK_SECONDS
        connection.arrived_bytes += 1 << 10
        assert target.deadline(now - 0.1) == now
        assert list(target.poll(now)) == [Progressed()]
    silent = now + target.options.stall_seconds
    while now < silent - LOOK_SECONDS:
        now += LOOK_SECONDS
        assert list(target.poll(now)) == []
    assert isinstance(target.poll(silent)[-1], Lost)


def test_what_a_blocked_broker_says_is_reported_until_it_continues(target: RabbitTarget) -> None:
    target.on_method(0, M.CONNECTION_BLOCKED, b"\x0dlow on memory")
    assert list(target.poll(0.0)) == [Granted(0), Stopped("'q': RabbitMQ accepts no messages: low on memory")]
    assert list(target.poll(100.0)) == []
    target.on_method(0, M.CONNECTION_UNBLOCKED, b"")
    assert list(target.poll(100.0)) == [Granted(CREDIT), Stopped("")]


def test_i1_a_message_that_is_not_published_has_its_ordinal_among_the_others(target: RabbitTarget) -> None:
    good = section.encode_message(b"x")
    target.send(Send([good, b"\xff", good, good]))
    target.send(Send([good]))
    target.on_method(1, M.BASIC_ACK, struct.pack(">QB", 4, 1))  # four publications
    outcomes = [each for each in target.poll(0.0) if isinstance(each, Outcome)]
    assert [(each.first, each.last) for each in outcomes if each.refusal is None] == [(0, 0), (2, 4)]
    assert [each.first for each in outcomes if each.refusal is not None] == [1]
