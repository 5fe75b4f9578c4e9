"""isthmus.connectors.amqp.dead_letter"""

from __future__ import annotations

import pytest

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.amqp.dead_letter import DeadLetters


@pytest.mark.parametrize("payload", [b"\xff no message", b"\0Su\xa0\x09cut", b"\0St\xc1"])
def test_i3_a_message_that_cannot_be_read_is_the_body_of_its_copy(payload: bytes) -> None:
    """It would end its link each time, and hold up what is behind it for ever."""
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
