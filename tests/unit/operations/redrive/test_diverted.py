"""A diverted message as its route received it: the route copies it as if it had never been diverted."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.bridge.divert import explained
from isthmus.connectors.servicebus.message.message_rewriter import Mark, MessageRewriter
from isthmus.message import name as names
from isthmus.message.copy_policy import CopyPolicy
from isthmus.operations.message import entered_as
from isthmus.operations.redrive.diverted import diversion_of, restored

ENQUEUED_MS = 1_800_000_000_000
ROUTE = "flights.ewr.jfk"


def received(*, number: int = 7, ttl_ms: int | None = None, **parts: Any) -> bytes:
    annotations = {
        "x-opt-sequence-number": Long(number),
        "x-opt-enqueued-time": Timestamp(ENQUEUED_MS),
        **parts.pop("annotations", {}),
    }
    return section.encode_message(
        parts.pop("body", b"late"), header=section.Header(ttl_ms=ttl_ms), annotations=annotations, **parts
    )


def copied(message: bytes, rewriter: MessageRewriter, now_ms: int) -> bytes:
    copies, refused = rewriter.copy_all(message, [0, len(message)], now_ms)
    assert not refused
    (copy,) = copies
    return copy


def divert(message: bytes, *, made: bool, now_ms: int = ENQUEUED_MS + 1000) -> bytes:
    """As it is at the divert target: copied there, and numbered there."""
    rewriter = MessageRewriter(
        "ewr/flights",
        "ops",
        origin_namespace="ewr-1",
        target_namespace="ops-1",
        entity="invalid",
        makes_message_ids=made,
        policy=CopyPolicy(dead_letters_returning=True),
    )
    reported = explained(message, "ValidationFailed", "step validate: no", "ewr/flights/Subscriptions/x", ROUTE)
    return numbered(copied(reported, rewriter, now_ms), 3, now_ms)


def numbered(copy: bytes, number: int, now_ms: int) -> bytes:
    found = section.locate(copy)
    before = section.decode_map(copy, found.message_annotations)
    annotations = section.encode_message(
        b"",
        annotations={**before, "x-opt-sequence-number": Long(number), "x-opt-enqueued-time": Timestamp(now_ms)},
    )
    reported = section.locate(annotations).message_annotations
    at = found.header[1]
    return copy[:at] + annotations[slice(*reported)] + copy[max(found.message_annotations[1], at) :]


def to_target(message: bytes, now_ms: int, *, makes: bool) -> bytes:
    rewriter = MessageRewriter(
        "ewr/flights",
        "jfk",
        origin_namespace="ewr-1",
        target_namespace="jfk-1",
        mark=Mark("isthmus-flights"),
        makes_message_ids=makes,
        trusts=True,
    )
    return copied(message, rewriter, now_ms)


def said(message: bytes) -> tuple[Any, ...]:
    where = section.locate(message)
    properties = {k: v for k, v in section.decode_properties(message, where.properties).items() if v is not None}
    own = section.decode_map(message, where.application_properties)
    if own.get(names.MESSAGE_ID) == properties.get("message_id"):  # it reports nothing
        own.pop(names.MESSAGE_ID, None)
    return (
        section.decode_header(message, where.header),
        section.decode_map(message, where.message_annotations),
        properties,
        own,
        message[slice(*where.body)],
    )


values = st.one_of(st.text(max_size=9), st.integers(-5, 5).map(Long), st.binary(max_size=5), st.booleans())
ids = st.one_of(st.none(), st.text(min_size=1, max_size=9), st.uuids(), st.binary(min_size=1, max_size=4))


@settings(max_examples=300)
@given(
    message_id=ids,
    own=st.dictionaries(st.text(min_size=1, max_size=8), values, max_size=3),
    ttl_ms=st.one_of(st.none(), st.integers(10_000, 90_000)),
    hops=st.integers(0, 2),
    made=st.booleans(),
    makes=st.booleans(),
    number=st.integers(1, 2**48),
    wait_ms=st.integers(0, 5000),
)
def test_i2_the_route_copies_it_as_if_it_had_not_been_diverted(
    message_id: Any,
    own: dict[str, Any],
    ttl_ms: int | None,
    hops: int,
    made: bool,
    makes: bool,
    number: int,
    wait_ms: int,
) -> None:
    message = received(
        number=number,
        ttl_ms=ttl_ms,
        properties={} if message_id is None else {"message_id": message_id},
        application_properties=own,
        annotations={"x-opt-partition-key": "k"},
    )
    for hop in range(hops):
        before = MessageRewriter(f"n{hop}/q", f"n{hop + 1}", origin_namespace=f"n{hop}-1", makes_message_ids=made)
        message = numbered(copied(message, before, ENQUEUED_MS), number + hop + 1, ENQUEUED_MS)
    at = divert(message, made=made)
    diversion = diversion_of(at)
    assert diversion is not None
    assert (diversion.route, diversion.hop.alias, diversion.hop.entity) == (ROUTE, "ewr", "flights")
    back = restored(at)
    assert entered_as(back) == number + hops
    now_ms = ENQUEUED_MS + 1000 + wait_ms
    expected, got = to_target(message, now_ms, makes=makes), to_target(back, now_ms, makes=makes)
    if hops and made and not makes and message_id is not None:
        # An earlier target gave it a MessageId: the copy has the sender's own again, which `repl-message-id` contains.
        assert said(got)[2] == said(expected)[2] | {"message_id": message_id}
        own_told, own_expected = said(got)[3], said(expected)[3]
        assert names.MESSAGE_ID not in own_told
        assert {n: own_told[n] for n in names.HOP_PROPERTIES} == {n: own_expected[n] for n in names.HOP_PROPERTIES}
        return
    assert said(got) == said(expected)


def test_a_mended_message_keeps_its_place_i2() -> None:
    message = received(properties={"message_id": "m"}, application_properties={"a": 1})
    at = divert(message, made=False)
    mended = at.replace(b"late", b"good")
    assert diversion_of(mended) == diversion_of(at)
    copy = to_target(restored(mended), ENQUEUED_MS + 2000, makes=False)
    found = section.decode_map(copy, section.locate(copy).application_properties)
    assert (found[names.SEQUENCE], found[names.ORIGIN], found["a"]) == ("7", "ewr/flights", 1)
    assert copy.endswith(b"good")


@pytest.mark.parametrize("made", [False, True])
def test_a_mended_message_whose_sender_gave_it_no_message_id_has_none_again_i2(made: bool) -> None:
    at = divert(received(), made=made)
    where = section.locate(at)
    own = section.decode_map(at, where.application_properties)
    given = section.decode_properties(at, where.properties)["message_id"]
    # As `isthmus.client.mended` makes it.
    mended = section.encode_message(
        b"good",
        annotations={"x-opt-sequence-number": Long(4), "x-opt-enqueued-time": Timestamp(ENQUEUED_MS + 2000)},
        properties={"message_id": "new"},
        application_properties={**own, names.MESSAGE_ID: given},
    )
    expected = to_target(received(body=b"good"), ENQUEUED_MS + 3000, makes=False)
    assert said(to_target(restored(mended), ENQUEUED_MS + 3000, makes=False))[1:] == said(expected)[1:]


@pytest.mark.parametrize("left_out", [names.WHY_ROUTE, names.SEQUENCE, names.NAMESPACE])
def test_what_has_no_known_place_has_none(left_out: str) -> None:
    at = divert(received(properties={"message_id": "m"}), made=False)
    found = section.decode_map(at, section.locate(at).application_properties)
    del found[left_out]
    assert diversion_of(section.encode_message(b"x", application_properties=found)) is None
    assert diversion_of(section.encode_message(b"x")) is None
