"""Rows that wait for their target."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from harness.bridge.sender_fixture import encoded
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.host.sender.rows import JOINED_BYTES, JOINED_ROWS, Part, WaitingRows


def _messages(part: Part) -> list[bytes]:
    return [part.data[a:b] for a, b in zip(part.offsets, part.offsets[1:], strict=False)]


def _taken(rows: WaitingRows) -> list[Part]:
    found = []
    while rows:
        found.append(rows.take())
    return found


def _part(positions: Sequence[int] | None, count: int = 0, size: int = 3) -> Part:
    numbers = positions if positions is not None else range(count)
    return Part(positions, *encoded([b"%0*d" % (size, number) for number in numbers]))


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans(), st.booleans()), max_size=12))
def test_rows_come_out_in_order(parts: list[tuple[int, bool, bool]]) -> None:  # I1
    rows, expected, at = WaitingRows(), [], 0
    disposed: list[int] = []
    for count, is_range, has_disposed in parts:
        positions = range(at, at + count)
        part = _part(positions if is_range else list(positions))
        if has_disposed:
            part = part._replace(disposed=[(at + count, Disposition("defer"))])
            disposed.append(at + count)
        rows.add(part)
        expected += list(positions)
        at += count + has_disposed
    taken = _taken(rows)
    assert [position for part in taken for position in part.positions or ()] == expected
    assert [int(message) for part in taken for message in _messages(part)] == expected
    assert [position for part in taken for position, _ in part.disposed] == disposed
    assert all(part.messages == len(part.positions or ()) for part in taken)


def test_small_parts_are_joined_as_far_as_allowed() -> None:
    rows = WaitingRows()
    for start in range(0, JOINED_ROWS * 2, 10):
        rows.add(_part(range(start, start + 10)))
    taken = _taken(rows)
    assert [part.positions for part in taken] == [range(JOINED_ROWS), range(JOINED_ROWS, JOINED_ROWS * 2)]


def test_large_messages_are_not_joined() -> None:
    rows = WaitingRows()
    for start in range(3):
        rows.add(_part([start], size=JOINED_BYTES))
    assert len(_taken(rows)) == 3


def test_rows_without_positions_are_joined_among_themselves() -> None:
    rows = WaitingRows()
    rows.add(_part(None, 2))
    rows.add(_part(None, 2))
    rows.add(_part([7]))
    taken = _taken(rows)
    assert [part.positions for part in taken] == [None, [7]]
    assert _messages(taken[0]) == [b"000", b"001", b"000", b"001"]


def test_rows_by_other_clocks_are_not_joined_and_bytes_are_counted() -> None:
    rows = WaitingRows()
    for clock in (None, None, 5):
        rows.add(Part(None, b"ab", [0, 2], (), clock))
    assert rows.nbytes == 6
    assert rows.take() == Part(None, b"abab", [0, 2, 4], (), None)
    assert rows.nbytes == 2
    assert rows.take().clock_offset_ms == 5
    assert rows.nbytes == 0
