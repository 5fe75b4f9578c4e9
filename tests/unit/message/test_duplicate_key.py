"""The duplicate key is the message's own, whatever route its copy took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.message import Provenance, Tail, digest, duplicate_key, made_message_id
from isthmus.message.duplicate_key import moved_from
from isthmus.message.name import DIGEST, HOP_PROPERTIES, MOVED
from isthmus.message.provenance import encoded

TIME_MS = 1_700_000_000_123


def key(tail: bytes, before: bytes = b"") -> bytes:
    whole = before + tail + encoded(DIGEST) + encoded("0" * 16)
    return duplicate_key(whole, 0, len(whole))


def single(origin: str = "ewr/flights", namespace: str = "A", sequence: int = 7, time_ms: int = TIME_MS) -> bytes:
    return Tail(origin, namespace).joined(None, sequence, time_ms)


def test_the_parts_and_the_whole_of_a_tail_agree() -> None:
    tail = Tail("ewr/flights", "A")
    assert tail.first + encoded("7") + tail.offset + encoded("7") + tail.time(TIME_MS) == single()


# Long names: in 47 the length is written as a slash is, in 59 as what joins hops; so are bytes of the length in 303 and 315.
@pytest.mark.parametrize("characters", [11, 46, 47, 48, 59, 255, 256, 303, 315])
def test_i1_the_direction_and_the_alias_do_not_matter(characters: int) -> None:
    entity = "flights".ljust(characters - len("ewr/"), "s")
    origin = f"ewr/{entity}"
    hops = dict(zip(HOP_PROPERTIES, (origin, "A", "7", "7", "2023-11-14T22:13:20.123Z"), strict=True))
    before = Provenance.read(hops | {DIGEST: digest(b"", b"")}, b"", b"")
    assert key(Tail("jfk/flights", "B").joined(before, 99, TIME_MS + 5)) == key(single(origin))
    assert key(single(f"newark/{entity}")) == key(single(origin))
    assert key(single(f"a/{entity}")) == key(single(origin)) != key(single(f"ewr/x{entity[1:]}"))


@given(
    st.sampled_from(["ewr/flights", "ewr/bookings"]),
    st.sampled_from(["A", "B"]),
    st.integers(1, 3),
    st.sampled_from([TIME_MS, TIME_MS + 1]),
)
def test_i2_namespace_entity_number_and_time_matter(origin: str, namespace: str, sequence: int, time_ms: int) -> None:
    same = (origin, namespace, sequence, time_ms) == ("ewr/flights", "A", 7, TIME_MS)
    assert (key(single(origin, namespace, sequence, time_ms)) == key(single())) is same


@given(st.text(), st.text())
def test_what_the_sender_wrote_does_not_matter(name: str, value: str) -> None:
    own = encoded(name) + encoded(value) + encoded("x") + encoded("¡\x0brepl-origin¡\x0brepl-origin")
    assert key(single(), own) == key(single())


def test_without_provenance_there_is_none() -> None:
    assert key(b"") == b""
    assert duplicate_key(b"", 0, 0) == b""


def test_hops_that_are_no_text_have_none() -> None:
    assert key(single(namespace="A;B").replace(b"A;B", b"\xff;B")) == b""


def test_a_message_that_entered_without_a_number_has_none() -> None:
    assert key(single(sequence=0)) == b""
    assert key(single(sequence=10)) != key(single(sequence=20)) != b""


def test_a_message_id_made_of_it_is_short() -> None:
    assert len(made_message_id(key(single("ewr/" + "x" * 260)))) == 40


def test_what_a_pair_moved_has_a_key_of_its_first_position_whatever_its_provenance() -> None:
    """Its provenance is the same when it is moved back and there again."""

    def moved_key(*items: object, before: bytes = b"") -> bytes:
        whole = before + encoded(MOVED) + encoded(moved_from(*items))  # type: ignore[arg-type]
        return duplicate_key(whole, 0, len(whole))

    copied = single() + encoded(DIGEST) + encoded("0" * 16)
    one = moved_key("A", "orders", 7, TIME_MS)
    assert len(one) == len(key(single()))
    assert moved_key("A", "Orders", 7, TIME_MS, before=copied) == one
    others = {
        moved_key(*items) for items in (("B", "orders", 7, TIME_MS), ("A", "x", 7, TIME_MS), ("A", "orders", 8, 0))
    }
    assert len(others | {one, key(single())}) == 5


def test_a_route_that_copies_what_was_moved_gives_it_its_own_key() -> None:
    own = encoded(MOVED) + encoded(moved_from("A", "orders", 7, TIME_MS))
    assert key(single(), own) == key(single())
