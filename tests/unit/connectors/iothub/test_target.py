"""isthmus.connectors.iothub.target: outcomes from feedback."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import NamedTuple

import pytest

from harness.world.still_carrier import STILL
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Outcome, Progressed, Send
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.iothub.option import read_target
from isthmus.connectors.iothub.pool import DevicePool
from isthmus.connectors.iothub.target import DEVICE_SECONDS, PROGRESS_SECONDS, IotHubTarget
from isthmus.connectors.servicebus.port.end import Step
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS, OutcomeWait
from isthmus.errors import ConnectionLostError, ServerBusyError


class Run(NamedTuple):
    first_id: int
    payloads: list[bytes]


class Receiver:
    """Gives feedback."""

    client = SimpleNamespace(error="gone")
    error = None
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
    path = "devices"
    client = SimpleNamespace(error="gone")
    sendable = 3

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.wait = OutcomeWait(STILL)
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


def test_credit_is_reported_again_where_a_message_was_refused_unsent(target: IotHubTarget) -> None:
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


def test_what_was_answered_before_the_connection_was_lost_is_reported(target: IotHubTarget) -> None:
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


def test_a_hub_that_gives_no_outcome_is_lost(target: IotHubTarget) -> None:
    assert target._sender is not None
    target._sender.wait.since = 5.0
    assert not any(isinstance(each, Lost) for each in target.poll(target.deadline(0.0) - 1))
    assert isinstance(target.poll(5.0 + OUTCOME_SECONDS)[-1], Lost)


def progress(target: IotHubTarget, now: float) -> bool:
    return any(isinstance(each, Progressed) for each in target.poll(now))


def test_i4_a_device_that_is_offline_is_waited_for(target: IotHubTarget) -> None:
    """The route would send the message again every 30 s, and the device would get as many as its queue holds."""
    assert not progress(target, 99.0)
    assert target.deadline(99.0) == math.inf
    target.send(Send([to_device(1), to_device(2)]))
    assert progress(target, 100.0)
    assert not progress(target, 100.0 + PROGRESS_SECONDS - 1)
    assert target.deadline(101.0) <= 100.0 + PROGRESS_SECONDS
    assert progress(target, 100.0 + PROGRESS_SECONDS)
    feedback = Receiver({"originalMessageId": "1", "deviceId": "d1", "statusCode": "Success"})
    target._take_feedback(feedback)  # type: ignore[arg-type]
    assert progress(target, 3000.0), "the second one is waited for, from now on"
    assert progress(target, 3000.0 + DEVICE_SECONDS - 1)
    assert target.deadline(3000.0 + DEVICE_SECONDS) == math.inf
    assert not progress(target, 3000.0 + DEVICE_SECONDS), "its feedback is lost"
    feedback = Receiver({"originalMessageId": "2", "deviceId": "d1", "statusCode": "Success"})
    target._take_feedback(feedback)  # type: ignore[arg-type]
    assert not progress(target, 9000.0)


def test_i4_no_device_is_waited_for_after_the_hub_was_busy(target: IotHubTarget) -> None:
    """What it refused is sent again once all others have their outcome: one device would hold up all others."""
    sender = target._sender
    assert sender is not None
    target.send(Send([to_device(1), to_device(2)]))
    assert progress(target, 100.0)
    sender.outcomes.append((0, 0, ServerBusyError("throttled")))
    assert not progress(target, 100.0 + PROGRESS_SECONDS)
    feedback = Receiver({"originalMessageId": "2", "deviceId": "d1", "statusCode": "Success"})
    target._take_feedback(feedback)  # type: ignore[arg-type]
    target.send(Send([to_device(3)]))
    assert not progress(target, 100.0 + 2 * PROGRESS_SECONDS)


def test_i4_devices_are_waited_for_again_once_what_the_hub_had_refused_has_its_outcome(target: IotHubTarget) -> None:
    """One refusal counted for as long as the connection lasted: later messages to a device that was offline were sent again and again."""
    sender = target._sender
    assert sender is not None
    target.send(Send([to_device(1), to_device(2)]))
    sender.outcomes.append((0, 0, ServerBusyError("the device's queue is full")))
    assert not progress(target, 100.0)
    _completed(target, 2)
    for ordinal in (2, 3):
        target.send(Send([to_device(1)]))
        if ordinal == 2:
            sender.outcomes.append((ordinal, ordinal, ServerBusyError("the device's queue is full")))
        assert not progress(target, 100.0 + PROGRESS_SECONDS * ordinal)
    _completed(target, 1)
    target.send(Send([to_device(4)]))
    assert target.deadline(200.0) <= 200.0
    assert progress(target, 200.0)


def _completed(target: IotHubTarget, number: int) -> None:
    feedback = Receiver({"originalMessageId": f"{number}", "deviceId": "d1", "statusCode": "Success"})
    target._take_feedback(feedback)  # type: ignore[arg-type]


def to_device(number: int) -> bytes:
    properties = {"message_id": f"{number}", "to": "/devices/d1/messages/devicebound"}
    return section.encode_message(b"x", properties=properties)


class Counting(Sender):
    """A link with so much credit."""

    def __init__(self, credit: int) -> None:
        super().__init__()
        self.credit = credit

    @property
    def sendable(self) -> int:  # type: ignore[override]
        return self.credit - len(self.sent)


def test_an_envelope_is_one_delivery_and_goes_as_far_as_there_is_credit_i1(target: IotHubTarget) -> None:
    """The outcome of one message is no other's: reported by the wrong ordinal, it would complete what the hub has not got."""
    target._asks = False
    sender = target._sender = Counting(3)  # type: ignore[assignment]
    target.send(Send([to_device(number) for number in range(4)], is_envelope=True))
    target.send(Send([to_device(4)]))
    assert len(sender.sent) == 3
    sender.outcomes.append((0, 2, None))
    sender.credit = 8
    assert list(target.poll(0.0)) == [Granted(3)]
    assert len(sender.sent) == 5
    sender.outcomes.append((4, 4, None))
    assert list(target.poll(0.0)) == [Outcome(1, 1)]
    sender.outcomes.append((3, 3, ServerBusyError("hub")))
    (outcome,) = target.poll(0.0)
    assert isinstance(outcome, Outcome)
    assert outcome.refusal is not None
    assert (outcome.first, outcome.taken) == (0, (0, 1, 2))


def test_what_was_taken_of_an_envelope_is_reported_before_the_connection_is_lost(target: IotHubTarget) -> None:
    """Sent again with the others, it would be there twice."""
    receiver = Receiver({"originalMessageId": "1", "deviceId": "d1", "statusCode": "Success"})
    target.send(Send([to_device(number) for number in range(3)], is_envelope=True))
    target._take_feedback(receiver)  # type: ignore[arg-type]
    target.fault = ConnectionLostError("gone")
    outcome, lost = target.poll(0.0)
    assert isinstance(lost, Lost)
    assert outcome == Outcome(0, 0, lost.refusal, (1,))


def test_feedback_that_arrived_before_the_connection_was_lost_counts(target: IotHubTarget) -> None:
    """Otherwise the device would get the message that it has completed once more."""
    target.send(Send([to_device(1), to_device(2)]))
    target._receiver = Receiver({"originalMessageId": "1", "deviceId": "d1", "statusCode": "Success"})  # type: ignore[assignment]
    target.fault = ConnectionLostError("gone")
    outcome, lost = target.poll(0.0)
    assert outcome == Outcome(0, 0)
    assert isinstance(lost, Lost)


def test_feedback_of_another_message_is_passed_over_where_the_hub_has_refused_ours(target: IotHubTarget) -> None:
    """Two publishers may number their messages alike."""
    sender = target._sender
    assert sender is not None
    to = "/devices/a%23b/messages/devicebound"
    target.send(Send([section.encode_message(b"x", properties={"message_id": "1", "to": to})]))
    sender.outcomes.append((0, 0, ServerBusyError("hub")))  # type: ignore[arg-type]
    assert isinstance(target.poll(0.0)[0], Outcome)
    receiver = Receiver({"originalMessageId": "1", "deviceId": "a#b", "statusCode": "Success"})
    target._take_feedback(receiver)  # type: ignore[arg-type]
    assert (target._flight.take(), receiver.disposed) == ([], 0)
