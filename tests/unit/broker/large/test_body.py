"""Bodies of messages, checked while they come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import codec, section
from isthmus.amqp.types import Described, Symbol
from isthmus.broker.large.body import BodyScan, front_end
from isthmus.entities import InvalidMessageError

DATA = b"\0Su" + codec.encode(b"x" * 300)
SHORT = b"\0Su" + codec.encode(b"y")
VALUES = [1, None, True, "text", 2.5, [1, [2, b"3"]], {"a": {"b": 1}}, Described(Symbol("kind"), {"a": 1})]
BODIES = [b"\0Sw" + codec.encode(value) for value in VALUES]
FOOTER = b"\0Sx" + codec.encode({Symbol("f"): 1})


def scan(body: bytes, cuts: list[int]) -> None:
    walk = BodyScan()
    offsets = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, end in pairwise(offsets):
        walk.feed(body[start:end])
    walk.end()


@given(
    st.lists(st.sampled_from([DATA, SHORT, *BODIES]), min_size=1, max_size=5),
    st.booleans(),
    st.lists(st.integers(0, 5000), max_size=20),
)
def test_bodies_pass_however_they_are_cut(sections: list[bytes], footer: bool, cuts: list[int]) -> None:
    scan(b"".join(sections) + (FOOTER if footer else b""), cuts)


@given(st.lists(st.sampled_from([DATA, SHORT, *BODIES]), min_size=1, max_size=3), st.data())
def test_i1_what_is_no_body_is_refused_as_locate_refuses_it(sections: list[bytes], data: st.DataObject) -> None:
    body = bytearray(b"".join(sections))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] = data.draw(st.integers(0, 255))
    broken = bytes(body[: data.draw(st.integers(1, len(body)))])
    try:
        scan(broken, data.draw(st.lists(st.integers(0, 5000), max_size=5)))
    except InvalidMessageError:
        return
    assert section.locate(broken).body[1] or section.locate(broken).footer[1]


@pytest.mark.parametrize("tail", [DATA, b"\0Ss\x45", b"junk"])
def test_nothing_follows_a_footer_and_no_other_section_a_body(tail: bytes) -> None:
    with pytest.raises(InvalidMessageError, match="something else follows"):
        scan(DATA + FOOTER + tail, [])


def test_a_body_that_is_cut_off_is_refused() -> None:
    for end in (1, 2, 5, 50, len(DATA) - 1):
        with pytest.raises(InvalidMessageError):
            scan(DATA[:end], [])


def test_the_front_ends_where_the_body_begins() -> None:
    message = section.encode_message(
        b"x" * 400, header=section.Header(), annotations={"a": 1}, properties={"message_id": "m"},
        application_properties={"p": "q"},
    )  # fmt: skip
    assert front_end(message) == section.locate(message).body[0]
    assert front_end(message[:-100]) == section.locate(message).body[0]
    assert front_end(DATA) == 0
    for broken in (b"", b"\0", b"junk", message[:20], b"\0Sz" + DATA[3:]):
        with pytest.raises(InvalidMessageError, match="no body begins"):
            front_end(broken)
