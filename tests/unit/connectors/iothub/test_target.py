"""isthmus.connectors.iothub.target: what feedback answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Outcome, Send
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.iothub.option import read_target
from isthmus.connectors.iothub.pool import DevicePool
from isthmus.connectors.iothub.target import IotHubTarget
from isthmus.connectors.servicebus.port.end import Step


class Run(NamedTuple):
    first_id: int
    payloads: list[bytes]


class Receiver:
    """Gives feedback."""

    credit = 50

    def __init__(self, *records: dict[str, str]) -> None:
        self._runs = [Run(0, [section.encode_message(json.dumps([each]).encode())]) for each in records]
        self.disposed = 0

    def take(self) -> list[Run]:
        runs, self._runs = self._runs, []
        return runs

    def dispose(self, first: int, last: int) -> None:
        self.disposed += 1


class Sender:
    """Takes everything."""

    error = None

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, payloads: tuple[bytes, ...]) -> int:
        self.sent += payloads
        return len(self.sent) - 1


@pytest.fixture
def target() -> Iterator[IotHubTarget]:
    pool = DevicePool()
    options = read_target({"connection": "env:HUB", "acknowledged_by": "device"})
    made = IotHubTarget(pool, 1, options, "")
    made.step = Step.ATTACHED
    made._sender = Sender()  # type: ignore[assignment]
    yield made
    pool.close()


def test_i2_one_record_answers_one_message(target: IotHubTarget) -> None:
    """Two publishers may number their messages alike; what one device has completed once it has not completed twice."""
    message = section.encode_message(b"x", properties={"message_id": "1", "to": "/devices/d1/messages/devicebound"})
    target.send(Send([message, message]))
    receiver = Receiver({"originalMessageId": "1", "deviceId": "d1", "statusCode": "Success"})
    target._take_feedback(receiver)  # type: ignore[arg-type]
    assert target._flight.take() == [Outcome(0, 0)]
    receiver = Receiver({"originalMessageId": "1", "deviceId": "d1", "statusCode": "Expired"})
    target._take_feedback(receiver)  # type: ignore[arg-type]
    (outcome,) = target._flight.take()
    assert (outcome.first, outcome.last) == (1, 1)
    assert outcome.refusal is not None
    assert outcome.refusal.kind is RefusalKind.MESSAGE
    assert receiver.disposed == 1
    receiver = Receiver({"originalMessageId": "1", "deviceId": "d1", "statusCode": "Success"})
    target._take_feedback(receiver)  # type: ignore[arg-type]
    assert target._flight.take() == []
    assert receiver.disposed == 0
