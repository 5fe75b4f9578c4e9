"""isthmus.connectors.amqp.dead_letter"""

from __future__ import annotations

import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from harness.world.still_carrier import STILL
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.amqp import copy_limit, dead_letter
from isthmus.connectors.amqp.dead_letter import DeadLetters
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS, OutcomeWait
from isthmus.errors import ConnectionLostError


@pytest.mark.parametrize("payload", [b"\xff no message", b"\0Su\xa0\x09cut", b"\0St\xc1"])
def test_i3_a_message_that_cannot_be_read_is_the_body_of_its_copy(payload: bytes) -> None:
    """It would end its link each time, and delay what is behind it for ever."""
    letters = DeadLetters("dead", lambda: None)
    letters.send(1, payload, Disposition("dead-letter", "Malformed", "no AMQP message"))
    ((position, copy),) = letters._waiting
    found = section.locate(copy)
    assert (position, section.contents(copy, *found.body)) == (1, payload)
    assert section.decode_header(copy, found.header).durable
    assert section.decode_map(copy, found.application_properties) == {
        "DeadLetterReason": "Malformed",
        "DeadLetterErrorDescription": "no AMQP message",
    }


def test_what_was_not_stored_over_a_lost_link_is_reported_once() -> None:
    """The owner does not settle it again: it comes as a new delivery."""
    letters = DeadLetters("dead", lambda: None)
    sender = SimpleNamespace(
        error=None,
        sendable=0,
        outcomes=deque([SimpleNamespace(first=0, last=0, error=None)]),
        send=lambda payloads: None,
        client=SimpleNamespace(error=ConnectionLostError("gone")),
        wait=OutcomeWait(STILL),
    )
    for position in (5, 6):
        letters.send(position, section.encode_message(b"x"), Disposition("dead-letter", "Odd", ""))
    letters._sender = sender  # type: ignore[assignment]
    letters._sent.append(letters._waiting.popleft()[0])
    assert list(letters.stored()) == [(5, 5)]
    assert letters.link_lost() == [6]
    assert letters.link_lost() == []


def test_i4_the_source_stops_where_no_copy_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has settled them: the whole backlog would be read, and each copy kept here."""
    monkeypatch.setattr(copy_limit, "MOST_COPIES", 2)
    letters = DeadLetters("dead", lambda: None)
    sender: Any = SimpleNamespace(error=None, sendable=9, outcomes=deque(), send=lambda payloads: None)
    letters._sender = sender
    for position in (5, 6):
        assert not letters.is_full
        letters.send(position, section.encode_message(b"x"), Disposition("dead-letter", "Odd", ""))
    assert letters.is_full
    assert list(letters.stored()) == []
    sender.outcomes.append(SimpleNamespace(first=0, last=0, error=None))
    assert list(letters.stored()) == [(5, 5)]
    assert not letters.is_full
    monkeypatch.setattr(copy_limit, "MOST_BYTES", 2)
    assert letters.is_full
    sender.outcomes.append(SimpleNamespace(first=1, last=1, error=None))
    assert list(letters.stored()) == [(6, 6)]
    assert not letters.is_full


def test_i4_the_wait_lasts_twice_as_long_each_time_until_a_copy_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may count each end of a link as a delivery attempt, and drop a message after some."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(dead_letter, "MarkedSender", lambda *_, **__: SimpleNamespace(client=STILL, close=lambda: None))
    monkeypatch.setattr(STILL, "error", None, raising=False)
    letters = DeadLetters("dead", lambda: None)
    waits = []
    for is_stored in (False, False, True, False):
        letters.attach(STILL)
        sender: Any = letters._sender
        sender.error, sender.sendable, sender.outcomes = None, 9, deque()
        sender.send = lambda payloads: None
        waits.append(sender.wait.seconds)
        letters.send(5, section.encode_message(b"x"), Disposition("dead-letter", "Odd", ""))
        list(letters.stored())
        sender.wait.sent(now)
        now += sender.wait.seconds
        if is_stored:
            sender.outcomes.append(SimpleNamespace(first=0, last=0, error=None))
            list(letters.stored())
            sender.wait.answered(now, is_missing=False)
        letters.link_lost()
    assert waits == [60, 120, 240, 60]


def test_i4_the_wait_begins_where_the_broker_grants_no_credit_for_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a full address of ActiveMQ Artemis: the messages would stay unsettled, and nobody would know why."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    letters = DeadLetters("dead", lambda: None)
    sender: Any = SimpleNamespace(error=None, sendable=0, outcomes=deque(), wait=OutcomeWait(STILL))
    letters._sender = sender
    list(letters.stored())
    assert not sender.wait.is_over(1e9)
    letters.send(5, section.encode_message(b"x"), Disposition("dead-letter", "Odd", ""))
    list(letters.stored())
    now += OUTCOME_SECONDS
    list(letters.stored())
    assert sender.wait.is_over(now)
    assert not sender.wait.is_over(now - 1)
