"""The guard of a source's order, with delayed peeks."""

import math
from typing import Any

import pytest

from isthmus.connectors.servicebus.port.peek.head_guard import RETRY_SECONDS, HeadGuard, Run


def run(*sequences: int) -> Run:
    consecutive = list(sequences) == list(range(sequences[0], sequences[0] + len(sequences)))
    numbers = range(sequences[0], sequences[-1] + 1) if consecutive else sequences
    return Run(sequences[0], numbers, [b"t%d" % n for n in sequences], [b"p%d" % n for n in sequences])


def given(guard: HeadGuard) -> list[int]:
    found = [sequence for each in guard.ready for sequence in each.sequences]
    guard.ready.clear()
    return found


def refused(guard: HeadGuard) -> list[int]:
    found = [sequence for each in guard.refused for sequence in each.sequences]
    guard.refused.clear()
    return found


@pytest.fixture
def guard() -> HeadGuard:
    made = HeadGuard()
    made.until = 100.0
    return made


def query(guard: HeadGuard, entity: Any, now: float = 1.0) -> None:
    """Serves looks until there is none."""
    while guard.query is not None:
        entity.serve(guard.query)
        guard.peeked(now, 0)


def test_what_follows_on_needs_no_look(guard: HeadGuard) -> None:
    guard.take(run(1, 2, 3), 1.0, 0)
    guard.take(run(4, 5), 1.0, 0)
    assert given(guard) == [1, 2, 3, 4, 5]
    assert guard.query is None


def test_runs_wait_for_a_look_and_keep_their_order_i2(guard: HeadGuard, entity_of: Any) -> None:
    guard.take(run(5, 6), 1.0, 0)
    guard.take(run(7), 1.0, 0)
    guard.take(run(9), 1.0, 0)
    assert given(guard) == []
    assert guard.kept == 4
    query(guard, entity_of([5, 6, 7, 9]))
    assert given(guard) == [5, 6, 7, 9]
    assert guard.kept == 0
    assert guard.handed_on == {0: 9}


def test_nothing_continues_behind_a_message_that_remains_i1(guard: HeadGuard, entity_of: Any) -> None:
    guard.take(run(1, 2, 5, 6), 1.0, 0)
    guard.take(run(7), 1.0, 0)
    query(guard, entity_of([1, 2, 4, 5, 6, 7]))
    assert given(guard) == [1, 2]
    assert refused(guard) == [5, 6, 7]
    assert guard.hole is not None
    assert guard.hole.sequence == 4
    assert guard.retry_at == 1.0 + RETRY_SECONDS
    guard.take(run(8), 1.5, 0)
    assert refused(guard) == [8]
    guard.retry()
    guard.take(run(5), 2.5, 0)
    query(guard, entity_of([1, 2, 4, 5, 6, 7]), 2.5)
    assert refused(guard) == [5]
    guard.retry()
    guard.take(run(4, 5, 6), 4.0, 0)
    guard.take(run(7), 4.0, 0)
    query(guard, entity_of([4, 5, 6, 7]), 4.0)
    assert given(guard) == [4, 5, 6, 7]
    assert guard.hole is None


def test_fragments_are_guarded_each_for_itself_i1(guard: HeadGuard, entity_of: Any) -> None:
    one, two = 1 << 48, 2 << 48
    entity = entity_of([1, 2, 3, one + 1, one + 2, two + 1, two + 2])
    guard.take(run(two + 1, two + 2), 1.0, 0)
    guard.take(run(2, 3), 1.0, 0)  # 1 is locked by a reader before this one
    query(guard, entity)
    assert given(guard) == [two + 1, two + 2]
    assert refused(guard) == [2, 3]
    guard.retry()
    guard.take(run(one + 2), 2.0, 0)  # and so is one + 1
    query(guard, entity, 2.0)
    assert refused(guard) == [one + 2]
    guard.retry()
    guard.take(run(1, 2, 3, one + 1, one + 2), 3.0, 0)
    query(guard, entity, 3.0)
    assert given(guard) == [1, 2, 3, one + 1, one + 2]


def test_it_ends_when_old_locks_have_ended_i3(guard: HeadGuard) -> None:
    guard.note_coming(0, 100.0)
    guard.take(run(5), 100.0, 0)
    assert given(guard) == [5]
    assert guard.query is None


def test_what_was_sent_before_is_looked_at_however_late_it_is_read_i3(guard: HeadGuard, entity_of: Any) -> None:
    """The process, or the network, was suspended meanwhile."""
    guard.take(run(1), 1.0, 0)
    guard.note_coming(2, 200.0)
    guard.note_coming(5, 200.0)  # credit that is granted now brings nothing old
    guard.take(run(3, 4), 200.0, 0)
    query(guard, entity_of([2, 3, 4]), 200.0)
    assert given(guard) == [1]
    assert refused(guard) == [3, 4]
    guard.retry()
    guard.take(run(2, 3, 4), 202.0, 0)
    guard.take(run(6), 202.0, 0)
    assert given(guard) == [2, 3, 4, 6]


def test_credit_that_was_given_back_brings_nothing_old_i3(guard: HeadGuard) -> None:
    guard.note_coming(10, 100.0)
    guard.note_coming(0, 101.0)
    guard.note_coming(10, 102.0)
    guard.take(run(5), 102.0, 0)
    assert given(guard) == [5]


def test_what_is_kept_is_looked_at_though_it_is_served_late_i3(guard: HeadGuard, entity_of: Any) -> None:
    guard.take(run(1), 1.0, 0)
    guard.take(run(3), 99.0, 0)
    guard.take(run(6), 99.0, 0)
    guard.note_coming(0, 101.0)
    query(guard, entity_of([3, 5, 6]), 101.0)
    assert given(guard) == [1, 3]
    assert refused(guard) == [6]


def test_with_the_link_goes_what_was_kept(guard: HeadGuard) -> None:
    guard.take(run(5), 1.0, 0)
    guard.link_lost()
    assert guard.query is None
    assert guard.kept == 0
    guard.take(run(1, 2), 2.0, 0)
    assert given(guard) == [1, 2]


def test_what_is_kept_is_renewed_every_third_of_its_lock_i4(guard: HeadGuard, entity_of: Any) -> None:
    assert guard.renewal_due(9.0) == math.inf
    guard.take(run(5, 6), 1.0, 0)
    guard.take(run(9), 3.0, 0)
    assert guard.renewal_due(9.0) == 4.0
    assert guard.renew(3.9, 9.0) == []
    assert guard.renew(4.0, 9.0) == [b"t5", b"t6", b"t9"]
    assert guard.renewal_due(9.0) == 7.0
    query(guard, entity_of([5, 6, 9]), 5.0)
    assert given(guard) == [5, 6, 9]
    assert guard.renewal_due(9.0) == math.inf
