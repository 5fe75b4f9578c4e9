"""isthmus.connectors.iothub.target: what feedback answers."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Outcome, Send
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.iothub.option import read_target
from isthmus.connectors.iothub.pool import DevicePool
from isthmus.connectors.iothub.target import IotHubTarget
from isthmus.connectors.servicebus.port.end import Step
from isthmus.errors import ConnectionLostError


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
    client = SimpleNamespace(error="gone")
    sendable = 3

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.outcomes: deque[object] = deque()

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


def test_credit_is_told_again_where_a_message_was_refused_unsent(target: IotHubTarget) -> None:
    """The machine has counted it."""
    assert list(target.poll(0.0)) == [Granted(Sender.sendable)]
    target.send(Send([section.encode_message(b"x")]))
    outcome, granted = target.poll(0.0)
    assert isinstance(outcome, Outcome)
    assert outcome.refusal is not None
    assert granted == Granted(Sender.sendable)


def test_feedback_is_known_for_a_device_whose_id_is_percent_encoded_in_the_address(target: IotHubTarget) -> None:
    """Without it the message has no outcome, and is sent again and again."""
    for to in ("/devices/a%23b/messages/devicebound", "/devices/a#b/messages/devicebound"):
        target.send(Send([section.encode_message(b"x", properties={"message_id": "1", "to": to})]))
        receiver = Receiver({"originalMessageId": "1", "deviceId": "a#b", "statusCode": "Success"})
        target._take_feedback(receiver)  # type: ignore[arg-type]
        (outcome,) = target._flight.take()
        assert outcome.refusal is None


def test_what_was_answered_before_the_connection_was_lost_is_told(target: IotHubTarget) -> None:
    target._asks = False
    sender = target._sender
    assert sender is not None
    message = section.encode_message(b"x", properties={"to": "/devices/d1/messages/devicebound"})
    target.send(Send([message]))
    sender.outcomes = deque([(0, 0, None)])
    target.fault = ConnectionLostError("gone")
    outcome, lost = target.poll(0.0)
    assert outcome == Outcome(0, 0)
    assert isinstance(lost, Lost)
