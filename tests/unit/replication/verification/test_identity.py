"""A message's identity survives copying, routing and dead-lettering."""

from __future__ import annotations

import pytest

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Long
from isthmus.message import digest
from isthmus.message.name import DIGEST, HOP_PROPERTIES, OFFSET
from isthmus.replication.verification.identity import Members, identify


def copied(origin: str, namespace: str, number: str, body: bytes) -> dict[str, str]:
    """The provenance of a copy without a MessageId."""
    times = ";".join("t" for _ in namespace.split(";"))
    hops = dict(zip(HOP_PROPERTIES, (origin, namespace, number, number, times), strict=True))
    return hops | {DIGEST: digest(b"", body)}


def test_i1_a_copy_is_known_by_its_first_hop() -> None:
    message = section.encode_message(
        b"body",
        annotations={"x-opt-sequence-number": Long(7)},
        application_properties={"n": 1, **copied("ewr/flights;jfk/flights", "A;B", "42;43", b"body")},
    )
    assert identify(message)[:6] == (7, "ewr", "flights", 42, "", 0)
    # For a task, by the first hop in one of its members, by the alias that its file gives.
    assert identify(message, Members({("B", "flights"): "hub", ("C", "flights"): "lga"}))[:6] == (
        7,
        "hub",
        "flights",
        43,
        "",
        0,
    )
    assert identify(message, Members({("B", "bookings"): "hub"})).origin == ""
    assert identify(message, Members({("ewr", "flights"): "ewr"})).origin == ""


def test_i3_a_copys_properties_on_another_message_are_none() -> None:
    been = copied("ewr/flights", "A", "42", b"body")
    for body, message_id, origin in ((b"body", None, "ewr"), (b"other", None, ""), (b"body", "m", "")):
        message = section.encode_message(
            body,
            annotations={"x-opt-sequence-number": Long(7)},
            properties={"message_id": message_id},
            application_properties=been,
        )
        assert identify(message).origin == origin


def test_i2_an_original_in_a_subscription_bears_the_number_of_its_topic() -> None:
    message = section.encode_message(
        b"body", annotations={"x-opt-sequence-number": Long(7), "x-opt-enqueue-sequence-number": Long(99)}
    )
    assert identify(message)[:6] == (7, "", "", 99, "", 0)


def test_i2_an_original_in_a_queue_bears_its_own_number() -> None:
    message = section.encode_message(b"body", annotations={"x-opt-sequence-number": Long(7)})
    assert identify(message)[:6] == (7, "", "", 7, "", 0)


def test_a_dead_lettered_message_shows_why() -> None:
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


def test_provenance_that_cannot_be_read_is_none() -> None:
    message = section.encode_message(
        b"", annotations={"x-opt-sequence-number": Long(7)}, application_properties={"repl-origin": "text"}
    )
    assert identify(message.replace(b"text", b"\xff\xff\xff\xff"))[:6] == (7, "", "", 7, "", 0)


@pytest.mark.parametrize("number", ["²", "9" * 5000])
def test_a_number_that_is_none_stops_nothing(number: str) -> None:
    message = section.encode_message(
        b"",
        annotations={"x-opt-sequence-number": Long(7)},
        application_properties=copied("ewr/flights", "A", number, b""),
    )
    assert identify(message)[:6] == (7, "ewr", "flights", -1, "", 0)


def test_bytes_that_are_no_message_raise() -> None:
    with pytest.raises(CodecError):
        identify(b"no message")


@pytest.mark.parametrize(("text", "ms"), [("2026-01-01T00:00:00.250Z", 1_767_225_600_250), ("soon", 0), ("", 0)])
def test_a_copy_shows_when_its_message_entered(text: str, ms: int) -> None:
    hop = ("ewr/flights", "A", "7", "7", text)
    own = {**dict(zip(HOP_PROPERTIES, hop, strict=True)), DIGEST: digest(b"", b"")}
    message = section.encode_message(b"", application_properties=own)
    assert identify(message).entered_ms == ms


@pytest.mark.parametrize(("offset", "proof"), [("42-1f3a09c2", 0x1F3A09C2), ("42", 0), ("42-", 0), ("42-odd", 0)])
def test_a_copy_shows_the_digits_of_its_message(offset: str, proof: int) -> None:
    properties = copied("ewr/flights", "A", "42", b"body") | {OFFSET: offset}
    message = section.encode_message(
        b"body", annotations={"x-opt-sequence-number": Long(7)}, application_properties=properties
    )
    assert identify(message).proof == proof
