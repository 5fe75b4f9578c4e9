"""Duplicate keys read from many copies together equal those read from each alone."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from harness.bridge.route_copy import BODY, copy
from isthmus.amqp import section
from isthmus.entities.record.copy import NUMBER_BYTES, SOURCE_BYTES, KeyReader, key_of
from isthmus.entities.record.parse import HeadCache, split, split_packed
from isthmus.entities.record.record import Parts
from isthmus.message.duplicate_key import KEY_BYTES, duplicate_key
from isthmus.message.name import MOVED
from isthmus.message.provenance import encoded

NUMBERS = st.integers(0, 30) | st.sampled_from([(7 << 48) + 1, 10**19, (1 << 63) - 1])


fake = copy(99, "lga/other").rest[20:-60]
copies = st.builds(
    copy,
    NUMBERS | st.sampled_from(["007", "", "x", "1;2", "-3", "1" * 30, "²"]),
    st.sampled_from(["ewr/flights", "ewr/bookings", "jfk/flights", "none", "ewr/" + "f" * 43, "newark/" + "f" * 40]),
    st.sampled_from(["A", "B", "n" * 300]),
    st.sampled_from(
        [b"", encoded("a") + encoded("b"), encoded("fake") + b"\xb0" + struct.pack(">I", len(fake)) + fake]
    ),
    st.integers(1, 2),
    st.sampled_from(["0" * 16, "1" * 15, "\xa1" * 8]),
    st.sampled_from(["", "sender's"]),
    st.sampled_from(["id", "i" * 200, "i" * 300]),
)


@given(st.lists(copies | st.just(split(section.encode_message(BODY), HeadCache(0))), max_size=8))
def test_many_at_once_have_the_keys_of_each(messages: list[Parts]) -> None:
    for parts, keyed in zip(messages, KeyReader().with_keys(messages), strict=True):
        assert keyed == parts._replace(duplicate_key=key_of(parts.rest))
        found = section.locate(parts.rest)
        # What decides on the fragment, and is in stores of earlier releases.
        assert keyed.duplicate_key[:KEY_BYTES] == duplicate_key(parts.rest, *found.application_properties)


@given(st.lists(copies, max_size=8, min_size=1))
def test_copies_in_an_envelope_have_the_keys_of_each(messages: list[Parts]) -> None:
    data, bounds = b"", []
    for parts in messages:
        bounds.append((len(data), len(data) + len(parts.rest)))
        data += parts.rest
    for parts, keyed in zip(messages, split_packed(data, bounds, HeadCache(0), KeyReader()), strict=True):
        assert keyed[1:] == (parts.rest, parts.message_id, None, key_of(parts.rest))


def test_a_key_shows_source_and_number() -> None:
    first, second, other, several = (
        parts.duplicate_key
        for parts in KeyReader().with_keys([copy(1), copy(2), copy(1, namespace="B"), copy(1, hops=2)])
    )
    assert len(first) == KEY_BYTES + SOURCE_BYTES + NUMBER_BYTES
    assert first[KEY_BYTES:-NUMBER_BYTES] == second[KEY_BYTES:-NUMBER_BYTES] != other[KEY_BYTES:-NUMBER_BYTES]
    assert [int.from_bytes(key[-NUMBER_BYTES:], "big") for key in (first, second, other)] == [1, 2, 1]
    assert several == first  # the route does not matter


def test_the_proof_of_a_copy_is_no_part_of_its_key() -> None:
    assert key_of(copy(1, proof="a" * 16).rest) == key_of(copy(1).rest)


def test_the_alias_is_no_part_of_it_whatever_the_length_of_the_name() -> None:
    for length in (46, 47, 48):
        entity = "f" * (length - len("ewr/"))
        several = [copy(1, f"ewr/{entity}"), copy(1, f"newark/{entity}"), copy(1, f"ewr/{entity}", hops=2)]
        assert len({parts.duplicate_key for parts in KeyReader().with_keys(several)}) == 1


def test_a_forged_digest_gives_no_key() -> None:
    rest = copy(12).rest.replace(b"0" * 16, b"\xa1\x0brepl-origin\xa1\x01/")
    forged = split(rest, HeadCache(0))
    keyed = KeyReader().with_keys([copy(10), copy(11), forged])
    assert [parts.duplicate_key for parts in keyed] == [key_of(copy(10).rest), key_of(copy(11).rest), key_of(rest)]


def test_what_a_pair_moved_is_stored_as_before_in_an_envelope_too_i2() -> None:
    pairs = encoded(MOVED) + encoded("0" * 32)
    plain = split(section.encode_message(BODY, properties={"message_id": "id"}), HeadCache(0)).rest
    body = plain.index(b"\0Su")
    moved = plain[:body] + b"\0St\xd1" + struct.pack(">II", len(pairs) + 4, 2) + pairs + plain[body:]
    bounds = [(at * len(moved), (at + 1) * len(moved)) for at in range(3)]
    for parts in split_packed(moved * 3, bounds, HeadCache(0), KeyReader()):
        assert parts[1:] == (plain, b"\xa1\x02id", None, key_of(moved))
