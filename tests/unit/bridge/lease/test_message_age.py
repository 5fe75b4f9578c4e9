"""How old a message was when it came."""

from __future__ import annotations

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.bridge.lease.message_age import age_ms

ANNOTATIONS, PROPERTIES = 0x72, 0x73


def test_it_is_reported_by_the_broker() -> None:
    message = section.encode_map_section(ANNOTATIONS, {Symbol("x-opt-enqueued-time"): Timestamp(1_000)})
    assert age_ms(message, 1_250) == 250
    assert age_ms(message, 900) == 0


def test_it_is_reported_by_the_sender_where_no_broker_says_so() -> None:
    message = section.encode_properties({"creation_time": 1_000})
    assert age_ms(message, 1_250) == 250


@pytest.mark.parametrize("message", [b"", b"x", b"\0Sr\xc1", b"\0Ss\x45"])
def test_i1_a_message_that_shows_no_time_has_no_age(message: bytes) -> None:
    assert age_ms(message, 1_000) == 0
