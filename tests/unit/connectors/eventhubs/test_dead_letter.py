"""isthmus.connectors.eventhubs.dead_letter."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from harness.world.still_carrier import STILL
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.amqp import copy_limit
from isthmus.connectors.eventhubs.dead_letter import DeadLetterHub
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_PLACE
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS, OutcomeWait
from isthmus.errors import IsthmusError


def test_a_message_names_the_event_hub_that_the_connection_has_named() -> None:
    """Of an IoT hub that is known once it has redirected the reader."""
    path = "events"
    hub = DeadLetterHub("dead", lambda: path, lambda: None)
    path = "iothub-ehub-contoso"
    hub.add((2 << PARTITION_SHIFT) + 7, section.encode_message(b"x"), Disposition("dead-letter", "Bad", "it is"))
    event = hub._waiting[0].payload
    reported = section.decode_map(event, section.locate(event).application_properties)
    assert reported[DEAD_LETTER_PLACE] == "iothub-ehub-contoso/2/7"


class Sender:
    """A link that has credit, or has none."""

    error = None

    def __init__(self, credit: int) -> None:
        self.sendable = credit
        self.outcomes: deque[tuple[int, int, IsthmusError | None]] = deque()
        self.wait = OutcomeWait(STILL)
        self.sent = 0

    def send(self, payloads: Sequence[bytes]) -> int:
        self.sendable -= 1
        self.sent += 1
        return self.sent - 1


def dead_letters(count: int, sender: Sender) -> DeadLetterHub:
    hub = DeadLetterHub("dead", lambda: "events", lambda: None)
    hub._sender = sender  # type: ignore[assignment]
    for position in range(count):
        hub.add(position, section.encode_message(b"x"), Disposition("dead-letter", "Bad", "it is"))
    return hub


def test_i3_the_source_stops_where_no_event_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has settled them: the hub would be read to its end, and each event kept here."""
    monkeypatch.setattr(copy_limit, "MOST_COPIES", 3)
    sender = Sender(2)
    hub = dead_letters(2, sender)
    assert not hub.is_full
    hub.add(2, section.encode_message(b"x"), Disposition("dead-letter", "Bad", "it is"))
    assert hub.is_full
    client: Any = None
    assert hub.serve(client) == []
    assert hub.is_full
    sender.outcomes.append((0, 0, None))
    assert hub.serve(client) == [0]
    assert not hub.is_full
    monkeypatch.setattr(copy_limit, "MOST_BYTES", 2)
    assert hub.is_full
    hub.disown(0)
    sender.outcomes.append((1, 1, None))
    sender.sendable = 1
    assert hub.serve(client) == []
    sender.outcomes.append((2, 2, None))
    assert hub.serve(client) == []
    assert not hub.is_full, "nothing is kept, whoever the events belong to"


def test_i3_the_wait_begins_where_the_hub_grants_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service may answer no attach: the events would stay unsettled, and nobody would know why."""
    monkeypatch.setattr(time, "monotonic", lambda: 100.0)
    sender = Sender(0)
    client: Any = None
    assert dead_letters(0, sender).serve(client) == []
    assert not sender.wait.is_over(1e9)
    assert dead_letters(1, sender).serve(client) == []
    assert sender.wait.is_over(100.0 + OUTCOME_SECONDS)
