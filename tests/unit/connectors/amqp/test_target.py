"""isthmus.connectors.amqp.target: outcomes of envelopes, which a broker does not support."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from harness.world.still_carrier import STILL
from isthmus.bridge.delivery_event import Lost, Outcome, Send
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.amqp.option import read_target
from isthmus.connectors.amqp.target import AmqpTarget
from isthmus.connectors.servicebus.port.end import Step
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS, OutcomeWait
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.errors import ConnectionLostError, ServerBusyError
from isthmus.transport.sender import Outcome as Sent


class _Client:
    error = ConnectionLostError("gone")  # it is not closed with a Close frame


class Sender:
    """A link that is sent to."""

    path = "q"

    def __init__(self) -> None:
        self.outcomes: deque[Sent] = deque()
        self.sent: list[bytes] = []
        self.error = None
        self.client = _Client()
        self.wait = OutcomeWait(STILL)

    @property
    def sendable(self) -> int:
        return 10 - len(self.sent)

    @property
    def outstanding(self) -> int:
        return len(self.sent)

    def send(self, payloads: list[bytes]) -> None:
        self.sent += payloads


@pytest.fixture
def target() -> Iterator[AmqpTarget]:
    """A target that was sent an envelope of three messages, and one message."""
    options = read_target({"url": "amqp://localhost", "sasl": "anonymous", "entity": "q"})
    pool = ConnectionPool()
    made = AmqpTarget(pool, 1, options, "")
    made.step = Step.ATTACHED
    made._sender = Sender()  # type: ignore[assignment]
    made.send(Send([b"a", b"b", b"c"], is_envelope=True))
    made.send(Send([b"d"]))
    yield made
    pool.close()


def test_what_was_taken_of_an_envelope_that_is_refused_is_reported(target: AmqpTarget) -> None:
    """Sent again with the others, it would be there twice."""
    assert target._sender is not None
    target._sender.outcomes += [Sent(0, 0, None), Sent(1, 1, ServerBusyError("q")), Sent(2, 3, None)]
    envelope, single = (each for each in target.poll(0.0) if isinstance(each, Outcome))
    assert envelope.refusal is not None
    assert envelope.refusal.kind is RefusalKind.BLOCKED
    assert (envelope.first, envelope.taken) == (0, (0, 2))
    assert single == Outcome(1, 1)


def test_what_was_taken_of_an_envelope_is_reported_before_the_connection_is_lost(target: AmqpTarget) -> None:
    assert target._sender is not None
    target._sender.outcomes.append(Sent(1, 1, None))
    target.fail(ConnectionLostError("gone"))
    outcome, lost = target.poll(0.0)
    assert isinstance(lost, Lost)
    assert outcome == Outcome(0, 0, lost.refusal, (1,))


def test_a_broker_that_gives_no_outcome_is_lost_and_the_messages_are_sent_again(target: AmqpTarget) -> None:
    """Its heartbeats keep the connection: the route waited until the lease ended."""
    assert target._sender is not None
    target._sender.wait.since = 5.0
    assert target.deadline(6.0) <= 5.0 + OUTCOME_SECONDS
    assert not any(isinstance(each, Lost) for each in target.poll(4.0 + OUTCOME_SECONDS))
    *_, lost = target.poll(5.0 + OUTCOME_SECONDS)
    assert isinstance(lost, Lost)
    assert lost.refusal.kind is RefusalKind.UNKNOWN
    assert "no outcome" in str(lost.refusal)
