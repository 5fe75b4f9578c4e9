"""A message with the reason for which it is diverted."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.types import Long, UByte
from isthmus.bridge.divert import explained
from isthmus.message.name import WHY_DESCRIPTION, WHY_REASON, WHY_ROUTE, WHY_SOURCE

REASON = {
    WHY_REASON: "ValidationFailed",
    WHY_DESCRIPTION: "step validate: ü",
    WHY_SOURCE: "ewr/flights",
    WHY_ROUTE: "flights.ewr.jfk",
}


def _explained(message: bytes) -> bytes:
    return explained(message, *REASON.values())


def _parts(message: bytes) -> list[bytes]:
    return [message[slice(*each)] for each in section.locate(message)]


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ({"application_properties": {"a": UByte(1), "list": [1], "none": None}}, {"a": 1, "list": [1], "none": None}),
        ({"application_properties": {}}, {}),
        ({}, {}),
        ({"application_properties": {f"p{n}": "x" * 40 for n in range(20)}}, {f"p{n}": "x" * 40 for n in range(20)}),
    ],
)
def test_everything_else_comes_out_byte_for_byte_i1(more: dict[str, Any], kept: dict[str, Any]) -> None:
    message = section.encode_message(
        b"\xffbody",
        header=section.Header(ttl_ms=5),
        properties={"message_id": "m", "subject": "s"},
        annotations={"x-opt-sequence-number": Long(7)},
        **more,
    )
    made = _explained(message)
    before, after = _parts(message), _parts(made)
    at = section.Sections._fields.index("application_properties")
    assert [each for place, each in enumerate(after) if place != at] == [
        each for place, each in enumerate(before) if place != at
    ]
    assert section.decode_map(made, section.locate(made).application_properties) == {**kept, **REASON}


def test_the_reason_of_an_earlier_time_goes() -> None:
    message = section.encode_message(b"x", application_properties={WHY_REASON: "Old", "a": 1, WHY_SOURCE: "b"})
    made = _explained(_explained(message))
    assert section.decode_map(made, section.locate(made).application_properties) == {"a": 1, **REASON}


def test_a_message_without_body_gets_it_before_its_footer() -> None:
    footer = b"\0Sx\xc1\x01\0"
    made = _explained(footer)
    assert made.endswith(footer)
    assert section.decode_map(made, section.locate(made).application_properties) == REASON
    assert section.decode_map(_explained(b""), section.locate(_explained(b"")).application_properties) == REASON


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(CodecError):
        _explained(b"unreadable")
