"""Provenance counts only for the message that it was written for, and hops are known by the namespace's identity."""

from __future__ import annotations

import pytest

from isthmus.message import Hop, Provenance, Tail, digest, iso
from isthmus.message.name import DIGEST, HOP_PROPERTIES, NAMESPACE, ORIGIN, SEQUENCE

VALUES = dict(zip(HOP_PROPERTIES, ("ewr/flights;jfk/flights", "A;B", "7;9", "7;9", "t1;t2"), strict=True))
PROVEN = VALUES | {DIGEST: digest(b"m", b"body")}
PROVEN_ONCE = dict(zip(HOP_PROPERTIES, ("ewr/flights", "A", "7", "7", "t1"), strict=True)) | {DIGEST: PROVEN[DIGEST]}


def test_hops_are_read_in_order() -> None:
    found = Provenance.read(PROVEN, b"m", b"body")
    assert found is not None
    assert found.hops == (Hop("ewr", "flights", "A", 7, "t1"), Hop("jfk", "flights", "B", 9, "t2"))


@pytest.mark.parametrize(
    ("values", "message_id", "body"),
    [
        (VALUES, b"m", b"body"),
        (PROVEN, b"m", b"another"),
        (PROVEN, b"n", b"body"),
        (PROVEN, b"mbody", b""),
        (PROVEN | {DIGEST: 1}, b"m", b"body"),
        (PROVEN | {ORIGIN: None}, b"m", b"body"),
        (PROVEN | {NAMESPACE: "A"}, b"m", b"body"),
        *((PROVEN_ONCE | {name: None}, b"m", b"body") for name in HOP_PROPERTIES),
        *(({name: PROVEN_ONCE[name] for name in (ORIGIN, DIGEST, each)}, b"m", b"body") for each in HOP_PROPERTIES),
        ({}, b"m", b"body"),
    ],
)
def test_i1_what_does_not_fit_the_message_is_none(values: dict[str, object], message_id: bytes, body: bytes) -> None:
    assert Provenance.read(values, message_id, body) is None


@pytest.mark.parametrize("number", ["", "-1", "²", "9" * 5000, "x"])
def test_a_number_that_is_none_is_reported(number: str) -> None:
    found = Provenance.read(PROVEN | {SEQUENCE: f"{number};9"}, b"m", b"body")
    assert found is not None
    assert [hop.sequence for hop in found.hops] == [-1, 9]


def test_i2_hops_are_known_by_identity_and_entity() -> None:
    found = Provenance.read(PROVEN, b"m", b"body")
    assert found is not None
    assert found.visited("A", "Flights")
    assert not found.visited("ewr", "flights")
    assert not found.visited("A", "bookings")


def test_a_tail_joins_hops() -> None:
    found = Provenance.read(PROVEN, b"m", b"body")
    joined = Tail("lga/flights", "C").joined(found, 11, 1_700_000_000_123)
    assert b"ewr/flights;jfk/flights;lga/flights" in joined
    assert b"7;9;11" in joined
    assert b"t1;t2;2023-11-14T22:13:20.123Z" in joined


def test_a_time_that_no_calendar_has_is_reported_as_a_number() -> None:
    assert iso(1 << 62) == str(1 << 62)
