"""Blocks of a segment: written blocks are read, and damaged ones reported."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.spool.block import Block, Damage, Record, decode, encode, walk

RECORDS = st.lists(
    st.builds(
        Record,
        key=st.text(max_size=20),
        sequence=st.integers(-1, (1 << 63) - 1),
        enqueued_ms=st.integers(0, 1 << 45),
        message=st.binary(max_size=200),
        epoch=st.integers(0, 9),
    ),
    min_size=1,
    max_size=4,
)


def segment(groups: list[list[Record]]) -> bytes:
    parts, number = [], 0
    for records in groups:
        parts.append(encode(records, number, 1_000))
        number += len(records)
    return b"".join(parts)


@given(st.lists(RECORDS, max_size=5))
def test_what_was_written_is_read(groups: list[list[Record]]) -> None:
    data = segment(groups)
    blocks = [each for each in walk(data) if isinstance(each, Block)]
    assert [list(decode(data, each)) for each in blocks] == groups
    assert [each.first for each in blocks] == [sum(map(len, groups[:at])) for at in range(len(groups))]


@given(st.lists(RECORDS, min_size=1, max_size=4), st.data())
def test_i1_i2_a_flipped_bit_damages_one_block_only(groups: list[list[Record]], data: st.DataObject) -> None:
    whole = segment(groups)
    good = list(walk(whole))
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = bytearray(whole)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    hit = next(each for each in good if each.start <= at < each.stop)
    found = list(walk(bytes(damaged)))
    assert [each for each in found if isinstance(each, Block)] == [each for each in good if each != hit]
    assert [each for each in found if isinstance(each, Damage)] == [Damage(hit.start, hit.stop)]


@given(st.lists(RECORDS, min_size=1, max_size=3), st.data())
def test_a_torn_end_is_damage_up_to_the_end(groups: list[list[Record]], data: st.DataObject) -> None:
    whole = segment(groups)
    cut = data.draw(st.integers(1, len(whole) - 1))
    found = list(walk(whole[:cut]))
    good = [each for each in walk(whole) if each.stop <= cut]
    stop = good[-1].stop if good else 0
    assert found == good + ([Damage(stop, cut)] if stop < cut else [])
