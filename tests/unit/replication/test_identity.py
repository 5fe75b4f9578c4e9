"""A message's identity survives copying, routing and dead-lettering."""

from __future__ import annotations

import pytest

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Long
from isthmus.replication.identity import identify


def test_i1_a_copy_is_known_by_its_first_hop() -> None:
    message = section.encode_message(
        b"body",
        annotations={"x-opt-sequence-number": Long(7)},
        application_properties={"n": 1, "repl-origin": "ewr/flights;jfk/flights", "repl-sequence": "42;43"},
    )
    assert identify(message) == (7, "ewr", "flights", 42, "")


def test_i2_an_original_in_a_subscription_bears_the_number_of_its_topic() -> None:
    message = section.encode_message(
        b"body", annotations={"x-opt-sequence-number": Long(7), "x-opt-enqueue-sequence-number": Long(99)}
    )
    assert identify(message) == (7, "", "", 99, "")


def test_i2_an_original_in_a_queue_bears_its_own_number() -> None:
    message = section.encode_message(b"body", annotations={"x-opt-sequence-number": Long(7)})
    assert identify(message) == (7, "", "", 7, "")


def test_a_dead_lettered_message_tells_why() -> None:
    message = section.encode_message(
        b"body",
        annotations={"x-opt-sequence-number": Long(7)},
        application_properties={"DeadLetterReason": "TTLExpiredException"},
    )
    assert identify(message).reason == "TTLExpiredException"


def test_i3_an_undecodable_body_does_not_matter() -> None:
    message = section.encode_message(b"x" * 300, annotations={"x-opt-sequence-number": Long(1)})
    start = section.locate(message).body[0]
    assert identify(message[: start + 8] + b"\xff" * (len(message) - start - 8)).sequence == 1


def test_provenance_that_nobody_can_read_is_none() -> None:
    message = section.encode_message(
        b"", annotations={"x-opt-sequence-number": Long(7)}, application_properties={"repl-origin": "text"}
    )
    assert identify(message.replace(b"text", b"\xff\xff\xff\xff")) == (7, "", "", 7, "")


@pytest.mark.parametrize("number", ["²", "9" * 5000])
def test_a_number_that_is_none_stops_nobody(number: str) -> None:
    message = section.encode_message(
        b"",
        annotations={"x-opt-sequence-number": Long(7)},
        application_properties={"repl-origin": "ewr/flights", "repl-sequence": number},
    )
    assert identify(message) == (7, "ewr", "flights", -1, "")


def test_bytes_that_are_no_message_raise() -> None:
    with pytest.raises(CodecError):
        identify(b"no message")
