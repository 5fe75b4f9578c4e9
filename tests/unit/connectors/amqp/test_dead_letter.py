"""isthmus.connectors.amqp.dead_letter"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.amqp.dead_letter import DeadLetters
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
    )
    for position in (5, 6):
        letters.send(position, section.encode_message(b"x"), Disposition("dead-letter", "Odd", ""))
    letters._sender = sender  # type: ignore[assignment]
    letters._sent.append(letters._waiting.popleft()[0])
    assert list(letters.stored()) == [(5, 5)]
    assert letters.link_lost() == [6]
    assert letters.link_lost() == []
