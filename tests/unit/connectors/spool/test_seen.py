"""The messages that a spool has received."""

from __future__ import annotations

import pytest

from isthmus.connectors.spool.seen import MARKS, Seen, SeenNames, Uncompared, mark_of
from isthmus.connectors.wrap.arrival import number_of


def test_i1_a_message_that_comes_again_is_known_however_late() -> None:
    seen = Seen()
    assert all(seen.add("ewr/q", number, 1_000 + number) for number in range(1, 1000))
    assert not any(seen.add("ewr/q", number, 1_000 + number) for number in range(1, 1000))


def test_numbers_of_one_entity_say_nothing_of_another() -> None:
    seen = Seen()
    assert seen.add("ewr/q", 7, 1)
    assert seen.add("jfk/q", 7, 1)


def test_a_message_without_a_number_is_always_new() -> None:
    seen = Seen()
    assert seen.add("ewr/q", -1, 0)
    assert seen.add("ewr/q", -1, 0)


@pytest.mark.parametrize("first", [1, 3])
def test_i2_an_entity_that_was_made_again_gives_its_numbers_to_other_messages(first: int) -> None:
    seen = Seen()
    for number in range(3, 10):
        seen.add("q", number, 1_000 + number)
    assert [seen.add("q", number, 5_000) for number in range(first, 12)] == [True] * (12 - first)
    assert seen.epoch("q", 1) == 1
    assert not seen.add("q", 5, 5_000)  # of the new epoch


def test_i2_a_log_that_was_made_again_with_older_times_is_known_by_its_first_messages() -> None:
    """Producers of Kafka choose the times: what was restored into a new topic counted as come again, and was lost."""
    seen = Seen()
    assert all(seen.add("t", number, 9_000_000 + number) for number in range(3 * MARKS))
    seen = Seen.from_text(seen.to_text())
    assert all(seen.add("t", number, 5_000 + number) for number in range(2 * MARKS))
    assert seen.epoch("t", 0) == 1
    assert not any(seen.add("t", number, 5_000 + number) for number in range(2 * MARKS)), "they come again"
    assert seen.epoch("t", 0) == 1


def test_i2_a_log_that_was_made_again_and_has_no_times_is_known_by_what_it_holds() -> None:
    seen = Seen()
    first, second = ([mark_of(b"%b %d" % (name, number), 0) for number in range(5)] for name in (b"old", b"new"))
    assert all(seen.add("s", number, 0, mark) for number, mark in enumerate(first))
    assert not any(seen.add("s", number, 0, mark) for number, mark in enumerate(first)), "they come again"
    assert all(seen.add("s", number, 0, mark) for number, mark in enumerate(second))


def test_i2_a_log_that_has_lost_its_end_continues_with_other_messages() -> None:
    seen = Seen()
    assert all(seen.add("t", number, 1_000 + number) for number in range(3 * MARKS))
    assert not seen.add("t", 3 * MARKS - 2, 1_000 + 3 * MARKS - 2)
    assert seen.add("t", 3 * MARKS - 2, 1_000)
    assert seen.add("t", 3 * MARKS - 1, 1_000)


def _marks(name: bytes, count: int) -> list[int]:
    return [mark_of(b"%b %d" % (name, number), 0) for number in range(count)]


@pytest.mark.parametrize("partition", [0, 3])
@pytest.mark.parametrize("start", [0, 2 * MARKS, 2 * MARKS + 7])
def test_i3_a_log_that_has_lost_more_of_its_end_than_is_compared_is_reported(start: int, partition: int) -> None:
    """A stream without times: what it received instead of its lost end was left out without a report."""
    seen, base = Seen(), partition << 48
    stored = _marks(b"old", 5 * MARKS)
    assert all(seen.add("s", base + number, 0, mark) for number, mark in enumerate(stored))
    other = stored[: 2 * MARKS] + _marks(b"new", 5 * MARKS)[2 * MARKS :]
    for number in range(start, 4 * MARKS):
        assert not seen.add("s", base + number, 0, other[number])
    assert seen.take_uncompared() == [], "nothing shows that they are other ones"
    assert seen.add("s", base + 4 * MARKS, 0, other[4 * MARKS])
    first = max(start, MARKS)
    assert seen.take_uncompared() == [Uncompared("s", first, 4 * MARKS - 1, 4 * MARKS - first)]
    assert seen.take_uncompared() == []


def test_i3_redelivered_messages_of_a_log_are_confirmed_by_a_later_one() -> None:
    seen = Seen()
    stored = _marks(b"old", 5 * MARKS)
    assert all(seen.add("s", number, 0, mark) for number, mark in enumerate(stored))
    assert not any(seen.add("s", number, 0, stored[number]) for number in range(2 * MARKS, 4 * MARKS + 1))
    assert seen.add("s", 4 * MARKS + 1, 0, mark_of(b"another", 0))
    assert seen.take_uncompared() == []


def test_a_file_of_a_release_before_has_no_marks() -> None:
    seen = Seen.from_text('[["t",0,0,1009,9,[[0,10]]]]')
    assert not seen.add("t", 5, 7)
    assert seen.add("t", 10, 1_010)


def test_a_message_that_was_passed_over_is_new_when_it_comes() -> None:
    seen = Seen()
    seen.add("q", 1, 1_001)
    seen.add("q", 3, 1_003)
    assert seen.add("q", 2, 1_002)
    assert seen.epoch("q", 1) == 0


def test_partitions_have_numbers_of_their_own() -> None:
    seen = Seen()
    seen.add("q", (3 << 48) + 5, 2_000)
    assert seen.add("q", (1 << 48) + 9, 3_000)
    assert not seen.add("q", (3 << 48) + 5, 2_000)


def test_it_survives_being_written_and_read() -> None:
    seen = Seen()
    for number in (1, 2, 3, 7, 9):
        seen.add("q", number, 100 + number)
    seen.add("q", 1, 900)
    again = Seen.from_text(seen.to_text())
    assert again.epoch("q", 1) == 1
    assert not again.add("q", 1, 900)
    assert again.add("q", 2, 901)


def test_what_a_segment_holds_is_restored_with_its_epoch() -> None:
    seen = Seen()
    seen.restore("q", 5, 100, 0)
    seen.restore("q", 1, 500, 1)
    assert seen.epoch("q", 1) == 1
    assert not seen.add("q", 1, 500)
    assert seen.add("q", 5, 504)


def test_the_lowest_ranges_are_forgotten_first() -> None:
    seen = Seen(ranges=2)
    for number in (1, 3, 5):
        seen.add("q", number, 100 + number)
    assert not seen.add("q", 5, 105)
    assert not seen.add("q", 3, 103)
    assert seen.add("q", 1, 101)  # forgotten: it appears twice, and is not lost


def test_i1_a_message_with_a_name_is_known_though_numbers_of_names_have_no_order() -> None:
    """`Seen` takes a lower number that was enqueued later for the first one of an entity that was made again."""
    seen = SeenNames()
    names = [number_of(f"account/orders/{at}") for at in range(20_000)]
    assert len({each >> 48 for each in names}) < len(names), "numbers of one partition are among them"
    assert all(seen.add("q", each, 1_000 + at) for at, each in enumerate(names))
    assert not any(seen.add("q", each, 1_000 + at) for at, each in enumerate(names))
    assert seen.epoch("q", names[0]) == 0
    again = SeenNames.from_text(seen.to_text())
    assert not any(again.add("q", each, 0) for each in names)
    assert again.add("q", 5, 0)


def test_of_names_those_that_came_first_are_forgotten() -> None:
    seen = SeenNames(3)
    for each in (9, 7, 5, 3):
        seen.restore("q", each, 0, 0)
    assert [seen.add("q", each, 0) for each in (3, 5, 7)] == [False, False, False]
    assert seen.add("q", 9, 0)


def test_either_reads_what_the_other_has_written() -> None:
    """The source of a route may be changed to another kind of system; and files of a release before know no names."""
    seen = Seen()
    for at, each in enumerate((9 << 48 | 7, 5, 9 << 48 | 2)):
        seen.add("q", each, at)
    assert not SeenNames.from_text(seen.to_text()).add("q", 5, 0)
    names = SeenNames()
    names.add("q", 5, 0)
    assert Seen.from_text(names.to_text()).add("ewr/q", 5, 1)
