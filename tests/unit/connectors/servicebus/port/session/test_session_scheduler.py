"""Which sessions are locked, by the limits, the time, and their activity."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.servicebus.port.session.scheduler import (
    CREDIT_PARTS,
    IDLE_SECONDS,
    MOST_REQUESTS,
    QUIET_SECONDS,
    SENT_SECONDS,
    SLICE_SECONDS,
    SPARE_SESSIONS,
    STUCK_SECONDS,
    LockedSession,
    SessionScheduler,
    shares,
)


def session(since: float = 0.0, quiet_since: float = 0.0, credit: int = 10, unsettled: int = 0) -> LockedSession:
    return LockedSession(since, quiet_since, credit, unsettled)


def busy(count: int) -> list[LockedSession]:
    return [session(unsettled=1) for _ in range(count)]


def test_requests_grow_while_sessions_come_and_are_few_while_none_does_i1() -> None:
    scheduler = SessionScheduler(2 * MOST_REQUESTS)
    asked = []
    for count in range(9):
        asked.append(scheduler.requests(busy(count), 0, 1000, 0.0))
        scheduler.granted()
    assert asked == [1, 2, 4, 8, 16, 32, MOST_REQUESTS, MOST_REQUESTS, MOST_REQUESTS]
    scheduler.refused(0.0)
    assert scheduler.requests(busy(6), 0, 1000, 0.0) == 1
    assert scheduler.requests(busy(6), 1, 1000, 0.0) == 0


def test_no_more_are_asked_for_than_may_be_locked_i1() -> None:
    scheduler = SessionScheduler(32)
    for _ in range(6):
        scheduler.granted()
    assert scheduler.requests(busy(30), 0, 1000, 0.0) == 2
    assert scheduler.requests(busy(32), 0, 1000, 0.0) == 0
    assert scheduler.requests(busy(1), 0, 2, 0.0) == 1  # as after deaths, when few messages may be under way
    assert scheduler.requests(busy(0), 0, 0, 0.0) == 0  # nothing is locked while nothing may come


def test_a_request_that_failed_is_made_again_after_a_while() -> None:
    scheduler = SessionScheduler(32)
    scheduler.refused(1.0, 0.5)
    assert scheduler.requests(busy(0), 0, 100, 1.4) == 0
    assert scheduler.deadline([], 100, 1.0) == 1.5
    assert scheduler.requests(busy(0), 0, 100, 1.5) == 1


def test_an_idle_session_leaves_at_once_where_others_may_wait_and_late_where_none_does_i2() -> None:
    scheduler, locked = SessionScheduler(2), [session(), session(unsettled=1)]
    assert scheduler.leaving(locked, 100, QUIET_SECONDS) == locked[:1]
    assert scheduler.leaving(locked[:1], 100, QUIET_SECONDS) == []
    assert scheduler.leaving(locked[:1], 100, IDLE_SECONDS) == locked[:1]
    assert scheduler.deadline(locked[:1], 100, 0.0) == IDLE_SECONDS
    assert scheduler.deadline(locked, 100, 0.0) == QUIET_SECONDS


def test_a_session_that_has_sent_what_it_had_leaves_sooner_i2() -> None:
    scheduler, locked = SessionScheduler(1), [session()]
    locked[0].has_sent = True
    assert scheduler.leaving(locked, 100, SENT_SECONDS) == locked
    assert scheduler.deadline(locked, 100, 0.0) == SENT_SECONDS
    assert SessionScheduler(2).leaving(locked, 100, SENT_SECONDS) == []


def test_a_session_without_credit_is_not_idle() -> None:
    scheduler = SessionScheduler(1)
    assert scheduler.leaving([session(credit=0)], 100, SLICE_SECONDS / 2) == []


def test_busy_sessions_leave_one_at_a_time_the_one_that_is_locked_longest_first_i2() -> None:
    scheduler = SessionScheduler(2)
    locked = [session(since=1.0, unsettled=5), session(since=0.5, unsettled=5)]
    assert scheduler.leaving(locked, 100, SLICE_SECONDS) == []
    assert scheduler.deadline(locked, 100, 0.0) == 0.5 + SLICE_SECONDS
    assert scheduler.leaving(locked, 100, 4.0) == [locked[1]]
    locked[1].is_leaving = True
    assert scheduler.leaving(locked, 100, 5.0) == []
    assert scheduler.deadline(locked, 100, 5.0) == math.inf
    assert scheduler.leaving(locked[:1], 100, 50.0) == []  # there is room: no session waits


def test_a_session_that_cannot_be_given_back_occupies_no_place_i1() -> None:
    """Its message is refused: that is found to be the message's fault only once the target takes one of another session."""
    scheduler, locked = SessionScheduler(2), [session(credit=0, unsettled=1), session(credit=0, unsettled=1)]
    now = SLICE_SECONDS
    assert scheduler.requests(locked, 0, 100, now) == 0
    (first,) = scheduler.leaving(locked, 100, now)
    first.is_leaving, first.quiet_since = True, now
    assert scheduler.requests(locked, 0, 100, now) == 0
    assert scheduler.leaving(locked, 100, now) == []
    assert scheduler.deadline(locked, 100, now) == now + STUCK_SECONDS
    now += STUCK_SECONDS
    assert scheduler.requests(locked, 0, 100, now) == 1
    locked.append(session(since=now, unsettled=1))
    assert scheduler.requests(locked, 0, 100, now) == 0
    assert scheduler.leaving(locked, 100, now) == [locked[1]]


def test_only_so_many_sessions_are_locked_beyond_the_limit_i1() -> None:
    scheduler, locked = SessionScheduler(2), busy(SPARE_SESSIONS + 2)
    for each in locked:
        each.is_leaving, each.credit = True, 0
    assert scheduler.requests(locked, 0, 100, 50.0) == 0
    assert scheduler.requests(locked[1:], 0, 100, 50.0) == 1


def test_a_session_that_cannot_be_given_back_takes_no_message_from_the_window_of_others_i1() -> None:
    scheduler, locked = SessionScheduler(10), busy(1)
    locked[0].is_leaving, locked[0].credit = True, 0
    assert scheduler.requests(locked, 0, 1, 50.0) == 0
    assert scheduler.requests(locked, 0, 2, 50.0) == 1


def test_only_what_has_nothing_under_way_is_given_back_i4() -> None:
    leaving = LockedSession(0.0, 0.0, credit=1, unsettled=1, is_leaving=True)
    assert not leaving.may_close
    leaving.credit = 0
    assert not leaving.may_close
    leaving.unsettled = 0
    assert leaving.may_close
    leaving.is_leaving = False
    assert not leaving.may_close


def test_credit_is_shared_and_who_has_none_is_served_first_i3() -> None:
    locked = [session(credit=0), session(credit=0), session(credit=2)]
    assert shares(locked, 4, 32) == [1, 1, 0]
    assert shares(locked, 3, 32) == [1, 0, 0]
    assert shares(locked, 320, 32) == [10, 10, 10]
    assert shares([session(credit=6)], 320, 32) == [0]  # most of its share is left
    locked[0].is_leaving = True
    assert shares(locked, 320, 32) == [0, 10, 10]


def test_few_sessions_get_no_less_where_many_may_be_locked_i3() -> None:
    assert shares([session(credit=0)], 16_000, 128) == [16_000 // CREDIT_PARTS]
    assert shares([session(credit=0)], 256, 128) == [8]


def test_those_that_come_late_get_something_though_the_first_took_large_shares_i3() -> None:
    first = [session(credit=each) for each in shares([session(credit=0) for _ in range(CREDIT_PARTS)], 16_000, 128)]
    late = [session(credit=0) for _ in range(128 - CREDIT_PARTS)]
    assert all(shares([*first, *late], 16_000, 128)[CREDIT_PARTS:])


def test_where_idle_sessions_keep_the_credit_they_leave_as_if_others_waited_i2() -> None:
    scheduler = SessionScheduler(128)
    idle = [session(credit=31) for _ in range(CREDIT_PARTS)]
    late = session(credit=1, unsettled=1)
    assert scheduler.leaving([*idle, late], 1000, QUIET_SECONDS) == idle
    assert scheduler.deadline([*idle, late], 1000, 0.0) == QUIET_SECONDS
    assert scheduler.leaving([*idle, late], 16_000, QUIET_SECONDS) == []
    assert scheduler.deadline([*idle, late], 16_000, 0.0) == IDLE_SECONDS


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(0, 300), st.integers(1, 40))
def test_shares_never_exceed_the_credit_i3(left: list[int], credit: int, most: int) -> None:
    locked = [session(credit=each) for each in left]
    found = shares(locked, credit, most)
    total = sum(max(share, each) for share, each in zip(found, left, strict=True))
    assert total <= max(credit, sum(left))
    assert all(share == 0 or share > each for share, each in zip(found, left, strict=True))
