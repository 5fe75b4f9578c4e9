from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.client.outbox import frame
from isthmus.client.outbox.frame import Record, encode_note, encode_record, find_record, read_record
from isthmus.errors import InvalidArgumentError

PAYLOADS = st.lists(st.binary(max_size=300), min_size=1, max_size=5)


@given(PAYLOADS)
def test_a_record_is_read_as_it_was_written(payloads: list[bytes]) -> None:
    data = encode_record(payloads, 7)
    assert read_record(data) == Record(0, len(data), 7, tuple(payloads))


@given(PAYLOADS, st.randoms())
def test_a_record_that_is_cut_anywhere_asks_for_more(payloads: list[bytes], source: random.Random) -> None:
    """I1, I3."""
    data = encode_record(payloads, 7)
    cut = source.randrange(1, len(data))
    found = read_record(data[:cut])
    assert isinstance(found, int)
    assert found > cut


@given(PAYLOADS, st.randoms())
def test_a_record_with_a_changed_byte_is_never_read_as_sound(payloads: list[bytes], source: random.Random) -> None:
    """I1."""
    data = bytearray(encode_record(payloads, 7))
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    assert not isinstance(read_record(bytes(data)), Record)


@given(st.lists(PAYLOADS, min_size=3, max_size=6), st.randoms())
def test_damage_costs_the_records_that_it_touches_alone(groups: list[list[bytes]], source: random.Random) -> None:
    """I2."""
    records = [encode_record(payloads, 7) for payloads in groups]
    data = bytearray(b"".join(records))
    hit = source.randrange(len(records))
    at = sum(map(len, records[:hit])) + source.randrange(len(records[hit]))
    data[at] ^= 0x55
    found, place = [], find_record(bytes(data), 0)
    while place >= 0:
        record = read_record(bytes(data), place)
        assert isinstance(record, Record)
        found.append(list(record.payloads))
        place = find_record(bytes(data), record.end)
    assert found == groups[:hit] + groups[hit + 1 :]


def test_a_note_is_no_message() -> None:
    record = read_record(encode_note({"after": ["a"]}, 1))
    assert isinstance(record, Record)
    assert record.note == {"after": ["a"]}
    assert record.payloads == ()


def test_what_is_no_record_is_none() -> None:
    assert read_record(b"x" * 100) is None
    assert find_record(b"x" * 100, 0) == -1


def test_more_than_a_record_is_read_with_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would be acknowledged, and set aside as damaged by the drain that delivers it."""
    monkeypatch.setattr(frame, "LARGEST_BODY_BYTES", 100)
    assert isinstance(read_record(encode_record([b"x" * 46, b"y" * 46], 1)), Record)
    with pytest.raises(InvalidArgumentError, match="2 messages of 101 bytes are more than one call may send, 100"):
        encode_record([b"x" * 46, b"y" * 47], 1)
