"""isthmus.connectors.eventhubs.target: its reported credit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.world.still_carrier import STILL
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Granted, Lost, Outcome, Send
from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.eventhubs.option import read_target
from isthmus.connectors.eventhubs.pool import HubPool
from isthmus.connectors.eventhubs.target import EventHubsTarget
from isthmus.connectors.servicebus.port.end import Step
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS, OutcomeWait
from isthmus.errors import ConnectionLostError, IsthmusError, ServerBusyError
from isthmus.message import name as names
from isthmus.transport.sender import Outcome as Sent

CREDIT = 3


class Sender:
    """A link that grants so many deliveries."""

    error = None
    path = "hub"
    client = SimpleNamespace(error="gone")

    def __init__(self) -> None:
        self.sendable = CREDIT
        self.sent = 0
        self.wait = OutcomeWait(STILL)
        self.outcomes: deque[tuple[int, int, IsthmusError | None]] = deque()

    def send(self, payloads: tuple[bytes, ...], *, message_format: int = 0) -> int:
        self.sendable -= 1
        self.sent += 1
        return self.sent - 1

    def answer(self) -> None:
        """All is accepted, and the credit is there again."""
        self.outcomes.append((0, self.sent - 1, None))
        self.sendable = CREDIT


@pytest.fixture
def target() -> Iterator[EventHubsTarget]:
    pool = HubPool()
    options = read_target({"connection": "env:HUB", "topic": "t", "checkpoints": "c", "partitioning": "single"})
    made = EventHubsTarget(pool, 1, options, "")
    made.step = Step.ATTACHED
    made._senders = {0: Sender()}  # type: ignore[dict-item]
    made._ordinals = {0: {}}
    yield made
    made._senders = {}
    pool.close()


def test_credit_that_came_back_is_reported_though_it_is_what_it_was_before(target: EventHubsTarget) -> None:
    """The machine counts down with each delivery: without a report it would wait for ever for credit that is there."""
    assert list(target.poll(0.0)) == [Granted(CREDIT)]
    target.send(Send([section.encode_message(b"x")] * CREDIT))
    target._senders[0].answer()  # type: ignore[attr-defined]
    assert list(target.poll(0.0)) == [Outcome(0, CREDIT - 1), Granted(CREDIT)]
    assert list(target.poll(0.0)) == []


def test_a_hub_that_gives_no_outcome_is_lost(target: EventHubsTarget) -> None:
    (sender,) = target._senders.values()
    sender.wait.since = 5.0
    assert not any(isinstance(each, Lost) for each in target.poll(target.deadline(0.0) - 1))
    assert isinstance(target.poll(5.0 + OUTCOME_SECONDS)[-1], Lost)


def keyed(key: str) -> bytes:
    return section.encode_map_section(section.MESSAGE_ANNOTATIONS, {names.PARTITION_KEY: key}) + section.encode_message(
        b"x"
    )


@pytest.fixture
def divided(target: EventHubsTarget) -> EventHubsTarget:
    """A target that was sent an envelope for two keys, in two parts."""
    target._senders = {None: Sender()}  # type: ignore[dict-item]
    target._ordinals = {None: {}}
    target.settings = replace(target.settings, partitioning="key")
    target.send(Send([keyed("a"), keyed("b"), keyed("a")], is_envelope=True))
    return target


def test_parts_of_an_envelope_that_were_stored_are_reported_where_another_is_refused(divided: EventHubsTarget) -> None:
    """Sent again with the refused part they would be there twice."""
    divided._senders[None].outcomes += [Sent(0, 0, None), Sent(1, 1, ServerBusyError("hub"))]
    outcome = divided.poll(0.0)[0]
    assert isinstance(outcome, Outcome)
    assert outcome.refusal is not None
    assert outcome.refusal.kind is RefusalKind.BLOCKED
    assert outcome.taken == (0, 2)


def test_parts_of_an_envelope_that_were_stored_are_reported_before_the_connection_is_lost(
    divided: EventHubsTarget,
) -> None:
    divided._senders[None].outcomes.append(Sent(1, 1, None))
    divided._take_outcomes()
    divided._senders.clear()
    divided.fail(ConnectionLostError("gone"))
    outcome, lost = divided.poll(0.0)
    assert isinstance(lost, Lost)
    assert outcome == Outcome(0, 0, lost.refusal, (1,))
