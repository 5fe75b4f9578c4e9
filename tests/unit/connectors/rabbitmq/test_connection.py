"""A connection to RabbitMQ whose user raises an exception."""

from __future__ import annotations

import math
import socket
import time
from typing import Any

from isthmus.connectors.rabbitmq.port.pool import BrokerPool
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.connection import Connection
from isthmus.connectors.rabbitmq.protocol.wire import M


class User:
    """Cannot handle anything."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def on_method(self, *_: Any) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    on_content = on_method

    def on_closed(self, error: Exception) -> None:
        self.errors.append(error)


def test_i4_what_its_user_raises_ends_the_connection_and_not_the_loop() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, "broker", 4096, 0)
    user = connection.user = User()
    theirs.send(wire.method(1, M.BASIC_QOS_OK))
    connection.service(time.monotonic())
    [error] = user.errors
    assert "a received frame cannot be handled: RecursionError" in str(error)
    assert connection.error is error
    connection.abandon()
    theirs.close()


def test_a_broker_may_hold_what_it_delivered_for_a_connection_that_it_has_not_ended() -> None:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    connection = Connection(ours, "broker", 4096, 20)
    assert connection.held_seconds == 40.0
    theirs.close()
    connection.service(time.monotonic())
    assert connection.error is not None
    assert connection.held_seconds == 0.0
    connection.abandon()


def test_a_pool_knows_until_when_a_broker_may_hold_messages_for_connections_that_it_lost() -> None:
    pool = BrokerPool()
    for is_ended_by_broker in (True, False):
        ours, theirs = socket.socketpair()
        connection = Connection(ours, "broker:5672", 4096, 20)
        connection.is_ended_by_broker = is_ended_by_broker
        before = time.monotonic()
        pool.drop(connection)
        theirs.close()
        if is_ended_by_broker:
            assert pool.kept_until("broker:5672") == -math.inf
        else:
            assert before + 40.0 <= pool.kept_until("broker:5672") <= time.monotonic() + 40.0
    pool.close()
