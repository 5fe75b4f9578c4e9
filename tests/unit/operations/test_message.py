"""The fields that an operator's tools read from a message with misleading contents."""

from __future__ import annotations

import pytest

from isthmus.amqp import codec, section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Int, Long, Symbol, Timestamp
from isthmus.operations.message import body_of, make_choice, read, sequence_of, state_of

FORGED = b"\xa3\x15x-opt-sequence-number\x81" + (1).to_bytes(8, "big")


def delivered(sequence: int, own: dict[Symbol, object], before: bytes = b"") -> bytes:
    """As the namespace delivers it: its own annotations come first."""
    annotations = {Symbol("x-opt-sequence-number"): Long(sequence), Symbol("x-opt-message-state"): Int(2), **own}
    return before + section.encode_message(b"body", annotations=annotations)


@pytest.mark.parametrize("size", [0, 6000])
def test_a_sender_does_not_choose_the_sequence_number_that_is_read(size: int) -> None:
    annotation = codec.encode({Symbol("own"): b"x" * size + FORGED})
    message = delivered(size + 7000, {Symbol("own"): FORGED + b"x" * size}, b"\0Sq" + annotation)
    assert (sequence_of(message), state_of(message)) == (size + 7000, 2)
    assert sequence_of(section.encode_message(b"", annotations={Symbol("own"): FORGED})) == 0


def test_the_senders_annotations_may_come_first() -> None:
    own = {Symbol("own"): FORGED, Symbol("x-opt-sequence-number"): Long(7)}
    assert sequence_of(section.encode_message(b"", annotations=own)) == 7


ODD = b"\0St\xc1\x04\x01\xa1\x01a"  # application properties without the value of their last name
NO_TEXT = b"\0Ss\xc0\x04\x01\xa1\x01\xff"  # a MessageId that is no UTF-8


@pytest.mark.parametrize(
    ("sections", "what"),
    [
        (ODD + b"\0Su\xa0\x01x", "application_properties"),
        (NO_TEXT + b"\0Su\xa0\x01x", "properties"),
        (b"\0Sw\xa1\x01\xff", "body"),
    ],
)
def test_what_cannot_be_read_of_a_message_hides_nothing_else_of_it(sections: bytes, what: str) -> None:
    """A namespace takes it; a look must not end at it, since it hides all messages behind it."""
    message = section.encode_map_section(section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-sequence-number"): Long(7)})
    seen = read(message + sections)
    assert (seen.sequence, seen.unreadable) == (7, (what,))
    assert seen.to_dict()["unreadable"] == [what]
    assert body_of(message + sections) == ("00 53 77 a1 01 ff" if what == "body" else "x")
    assert not make_choice("a = 'x' OR sys.MessageId = 'x'")(message + sections)
    assert "unreadable" not in read(section.encode_message(b"x")).to_dict()


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        (b"\0Su\xa0\x02ab" + b"\0Su\xa0\x02cd", "abcd"),
        (b"\0Sv\xc0\x03\x01\x54\x01" + b"\0Sv\xc0\x03\x01\x54\x02", "[1]\n[2]"),
        (b"\0Su\xa0\x04ab\xff\xfe", "61 62 ff fe"),
        (b"\0Su\xa0\x04a\xe2\x82\xac", "a\N{EURO SIGN}"),
    ],
)
def test_the_whole_body_is_reported_since_the_message_is_removed_then(body: bytes, reported: str) -> None:
    assert body_of(body) == reported


def test_a_preview_may_end_within_a_character() -> None:
    seen = read(section.encode_message(b"a" * 199 + "\N{EURO SIGN}".encode()))
    assert seen.body == "a" * 199


def test_the_standard_properties_of_a_message_are_read() -> None:
    annotations = {
        Symbol("x-opt-partition-key"): "key",
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1_800_000_000_000),
        Symbol("x-opt-deadletter-source"): "orders",
    }
    fields = {
        "correlation_id": "c",
        "to": "billing",
        "reply_to": "answers",
        "reply_to_group_id": "s2",
        "content_type": "application/json",
    }
    seen = read(section.encode_message(b"{}", header=Header(ttl_ms=90_000), annotations=annotations, properties=fields))
    wanted = {
        "correlation_id": "c",
        "to": "billing",
        "reply_to": "answers",
        "reply_to_session_id": "s2",
        "content_type": "application/json",
        "partition_key": "key",
        "time_to_live_ms": 90_000,
        "scheduled_at": "2027-01-15T08:00:00.000+00:00",
        "dead_letter_source": "orders",
    }
    assert seen.to_dict() | wanted == seen.to_dict()
    assert ", ".join(f"{name} {value}" for name, value in seen.others.items()) == (
        "CorrelationId c, To billing, ReplyTo answers, ReplyToSessionId s2, ContentType application/json, PartitionKey key, "
        "TimeToLive 90 s, ScheduledEnqueueTime 2027-01-15T08:00:00.000+00:00, DeadLetterSource orders"
    )


@pytest.mark.parametrize("ttl_ms", [None, 0, 0xFFFFFFFF])
def test_standard_properties_that_are_not_set_have_no_value(ttl_ms: int | None) -> None:
    seen = read(section.encode_message(b"x", header=Header(ttl_ms=ttl_ms)))
    assert seen.others == {}
    assert (seen.to_dict()["time_to_live_ms"], seen.to_dict()["scheduled_at"], seen.to_dict()["to"]) == (None, "", "")


def test_a_time_that_no_calendar_has_is_shown_as_its_number() -> None:
    """A sender may write any number there; a look must not end at it."""
    annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(1 << 60)}
    seen = read(section.encode_message(b"x", annotations=annotations))
    assert seen.to_dict()["scheduled_at"] == f"{1 << 60} ms"
