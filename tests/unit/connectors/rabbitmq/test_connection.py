"""What a connection to RabbitMQ does with what its user raises."""

from __future__ import annotations

import socket
import time
from typing import Any

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
    assert "what came cannot be handled: RecursionError" in str(error)
    assert connection.error is error
    connection.abandon()
    theirs.close()
