"""Queries in steps have the same results as the blocking ones."""

import random
from typing import Any

from isthmus.connectors.servicebus.port.peek.query import PeekQuery, first_hole, first_waiting, last_sequences


def test_no_page_where_what_came_decides_i1() -> None:
    assert PeekQuery(first_hole(0, {0: 6}, range(7, 20))).wanted is None


def test_a_hole_is_found_behind_many_pages_and_deferred_ones_are_none_i3(entity_of: Any) -> None:
    entity = entity_of(range(1, 500), deferred=range(1, 300))
    found = entity.serve(PeekQuery(first_hole(0, {}, [400])))
    assert found.sequence == 300
    assert entity.serve(PeekQuery(first_hole(0, {}, [300]))) is None
    assert entity.serve(PeekQuery(first_waiting(0, 0, 299))) is None
    assert entity.serve(PeekQuery(first_waiting(0, 0, 310, lambda sequence: sequence < 305))).sequence == 305


def test_a_page_is_asked_for_once_however_many_gaps_there_are_i2(entity_of: Any) -> None:
    fragment = 1 << 48
    came = [each + part for each in range(2, 64, 2) for part in (0, fragment)]
    entity = entity_of(came)
    assert entity.serve(PeekQuery(first_hole(0, {}, came))) is None
    assert entity.pages == 2
    entity = entity_of([*came, fragment + 31])
    assert entity.serve(PeekQuery(first_hole(0, {}, came))).sequence == fragment + 31


def test_the_last_of_each_fragment(entity_of: Any) -> None:
    assert entity_of([]).serve(PeekQuery(last_sequences())) == {}
    fragment = 3 << 48
    entity = entity_of([5, 9, 1000, fragment + 1, fragment + 77])
    assert entity.serve(PeekQuery(last_sequences())) == {0: 1000, 3: fragment + 77}


def test_the_last_is_found_whatever_was_removed(entity_of: Any) -> None:
    chance = random.Random(7)
    for _ in range(50):
        sequences = chance.sample(range(1, 100_000), chance.randint(1, 40))
        entity = entity_of(sequences)
        assert entity.serve(PeekQuery(last_sequences())) == {0: max(sequences)}
        assert entity.pages < 80


def test_a_page_that_is_cut_by_its_size_is_not_taken_for_the_last(entity_of: Any) -> None:
    """A namespace limits a reply to a peek in bytes, too: a run with an end left messages behind large deferred ones, and a locked one there kept
    no later one back.
    """
    entity = entity_of(range(1, 80), deferred=range(1, 60))
    entity.most = 5
    assert entity.serve(PeekQuery(first_waiting(0, 0, 79))).sequence == 60
    assert entity.serve(PeekQuery(first_hole(0, {}, [70]))).sequence == 60
    assert entity.serve(PeekQuery(first_waiting(0, 0, 59))) is None
