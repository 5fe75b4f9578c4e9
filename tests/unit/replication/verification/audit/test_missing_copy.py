"""isthmus.replication.verification.audit.missing_copy: missing messages, and which of them cannot be called lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.replication.verification.audit.audited import Audited
from isthmus.replication.verification.audit.missing_copy import doubt, leave_out, missing_copies
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.reconciliation.reading import Reading
from isthmus.replication.verification.reconciliation.reconcile import Holding, Undelivered

NOW_MS = 1_000_000
READ_MS = NOW_MS, NOW_MS
PASSAGE = Passage(origin="ewr", member="jfk", routes=())
WHOLE = Reading("jfk", "q", messages=9, first_enqueued_ms=1)


def origin(*times: tuple[int, int]) -> Audited:
    """With messages from number 1 on: when each was enqueued, and when its life ends."""
    found = Audited("ewr", "q")
    for number, (enqueued_ms, ends_ms) in enumerate(times, 1):
        found.originals.add(number, 0, enqueued_ms, ends_ms)
    return found


@pytest.mark.parametrize("at", ["waiting", "expired", "dead_lettered", "diverted", "dropped", "elsewhere"])
def test_what_the_routes_show_is_not_missing(at: str) -> None:
    rest = {PASSAGE.pair: replace(Undelivered(), **{at: {3}})}
    holdings = {"ewr": Holding(entered=[1, 2, 3]), "jfk": Holding(arrived={"ewr": [1]})}
    assert missing_copies(holdings, rest) == {PASSAGE.pair: {2}}


def test_what_ended_its_life_during_the_reading_is_left_out_on_both_sides() -> None:
    holding, missing = Holding(entered=[1, 2, 3]), {PASSAGE.pair: {1, 2, 3}, ("jfk", "ewr"): {1}}
    ends = origin((0, NOW_MS), (0, NOW_MS + 1), (0, NOW_MS - 1))
    leave_out("ewr", holding, ends, missing, (NOW_MS, NOW_MS))
    assert (holding.entered, missing) == ([2, 3], {PASSAGE.pair: {2, 3}, ("jfk", "ewr"): {1}})


def test_a_member_that_holds_all_leaves_nothing_in_doubt() -> None:
    rest = Undelivered()
    doubt(rest, {1}, origin((2, 0)), WHOLE, READ_MS, PASSAGE)
    assert rest == Undelivered()


def test_a_life_that_ended_before_the_reading_is_no_loss() -> None:
    rest = Undelivered()
    doubt(rest, {1, 2}, origin((2, NOW_MS - 1), (2, NOW_MS)), WHOLE, READ_MS, PASSAGE)
    assert rest == Undelivered(ended={1})


def test_no_more_copies_were_consumed_than_are_absent() -> None:
    rest = Undelivered()
    doubt(rest, {1, 2, 3}, origin((2, 0), (2, 0), (2, 0)), replace(WHOLE, absent_between=2), READ_MS, PASSAGE)
    assert rest == Undelivered(consumed={1, 2})
    rest = Undelivered()
    doubt(rest, {1, 2, 3}, origin((2, 0), (2, 0), (2, 0)), replace(WHOLE, shared=True), READ_MS, PASSAGE)
    assert rest == Undelivered(consumed={1, 2, 3})


def test_an_absent_number_explains_one_missing_message_whatever_its_origin() -> None:
    absent, (mine, others) = replace(WHOLE, absent_between=3), (Undelivered(), Undelivered())
    explained = doubt(mine, {1, 2}, origin((2, 0), (2, 0)), absent, READ_MS, PASSAGE)
    explained = doubt(others, {1, 2}, origin((2, 0), (2, 0)), absent, READ_MS, PASSAGE, explained)
    assert (mine.consumed, others.consumed, explained) == ({1, 2}, {1}, 3)


def test_a_number_that_an_expired_copy_has_left_explains_no_other_message() -> None:
    entered, passage = origin((2, 0), (NOW_MS - 10, 0)), replace(PASSAGE, expires_ms=20)
    rest = Undelivered()
    assert doubt(rest, {1, 2}, entered, replace(WHOLE, absent_between=1), READ_MS, passage) == 1
    assert rest == Undelivered(copy_expired={1}), "the other one is lost"


def test_what_a_step_may_have_dropped_may_have_been_consumed() -> None:
    rest = Undelivered()
    doubt(rest, {1}, origin((2, 0)), WHOLE, READ_MS, replace(PASSAGE, drops=True))
    assert rest == Undelivered(consumed={1})


def test_copies_whose_time_is_over_have_left_gaps_at_the_target() -> None:
    entered, passage = origin((2, 0), (NOW_MS - 10, 0)), replace(PASSAGE, expires_ms=20)
    rest = Undelivered()
    doubt(rest, {1, 2}, entered, replace(WHOLE, absent_before=1), READ_MS, passage)
    assert rest == Undelivered(copy_expired={1})
    rest = Undelivered()
    doubt(rest, {1}, entered, WHOLE, READ_MS, passage)
    assert rest == Undelivered(consumed={1}), "no number is absent: the copy may never have been there"


def test_a_copy_that_expires_while_it_is_looked_for_is_not_called_lost() -> None:
    entered, passage = (
        origin((2, 0), (NOW_MS - 20, 0), (NOW_MS - 16, 0), (NOW_MS - 14, 0)),
        replace(PASSAGE, expires_ms=20),
    )
    for absent, expired, consumed in ((0, set(), {1, 2, 3}), (1, {1}, {2, 3}), (2, {1, 2}, {3}), (3, {1, 2, 3}, set())):
        rest = Undelivered()
        reading = replace(WHOLE, absent_before=absent)
        assert doubt(rest, {1, 2, 3, 4}, entered, reading, (NOW_MS, NOW_MS + 5), passage) == len(expired)
        assert rest == Undelivered(copy_expired=expired, consumed=consumed), "the last one is lost"
