import pytest

from isthmus.bridge.host.control.tally import DIED_TEXT, RouteTally
from isthmus.bridge.report import RouteReport, RouteState

RUNNING = RouteState.RUNNING


def test_i1_counts_never_fall_over_readers_that_end_or_die() -> None:
    tally = RouteTally()
    seen = []
    for reader, error in ((1, DIED_TEXT), (2, ""), (3, DIED_TEXT)):
        for settled in (0, 3, 10):
            tally.report(
                reader, 0, RouteReport(state=RUNNING, settled=settled, moved=settled, received_bytes=7 * settled)
            )
            seen.append(tally.total().settled)
        tally.leave(reader, 0, error)
        seen.append(tally.total().settled)
    assert seen == sorted(seen)
    total = tally.total()
    assert (total.settled, total.moved, total.received_bytes) == (30, 30, 210)


def test_i2_a_count_that_begins_again_adds_to_what_was_and_the_others_stay() -> None:
    tally = RouteTally()
    tally.report(1, 0, RouteReport(settled=100, resent=5))
    tally.report(1, 0, RouteReport(settled=110, resent=2))
    total = tally.total()
    assert (total.settled, total.resent) == (110, 7)


def test_i3_two_readers_at_a_time_are_added_up() -> None:
    tally = RouteTally()
    tally.report(
        1,
        0,
        RouteReport(state=RUNNING, settled=5, outstanding=4, is_awaited=True, head=20, window=8, is_exhausted=True),
    )
    tally.report(2, 1, RouteReport(state=RouteState.PAUSED, settled=6, outstanding=3, head=10, window=8, paused="full"))
    total = tally.total()
    assert (total.settled, total.outstanding, total.head, total.window) == (11, 7, 10, 16)
    assert (total.state, total.paused, total.is_exhausted) == (RouteState.PAUSED, "full", False)
    assert total.is_awaited


def test_a_reader_that_another_has_replaced_still_counts_and_does_not_show() -> None:
    tally = RouteTally()
    tally.report(1, 0, RouteReport(state=RUNNING, settled=5, outstanding=4))
    tally.report(2, 0, RouteReport(state=RUNNING, settled=1, outstanding=2))
    tally.report(1, 0, RouteReport(state=RouteState.ENDING, settled=6, outstanding=3))
    assert tally.total() == RouteReport(state=RUNNING, settled=7, outstanding=2)
    tally.leave(1, 0, DIED_TEXT)
    assert tally.total() == RouteReport(state=RUNNING, settled=7, outstanding=2)


def test_i4_a_route_whose_reader_died_is_not_shown_as_running() -> None:
    tally = RouteTally()
    tally.report(1, 0, RouteReport(state=RUNNING, settled=5, outstanding=4, is_awaited=True, head=3, window=8))
    tally.leave(1, 0, DIED_TEXT)
    assert tally.total() == RouteReport(state=RouteState.RETRYING, settled=5, error=DIED_TEXT)


def test_what_a_source_left_undone_is_reported_beyond_the_end_and_not_where_the_route_continues() -> None:
    for error, note in (("", "a state waits"), (DIED_TEXT, "")):
        tally = RouteTally()
        tally.report(1, 0, RouteReport(state=RUNNING, note="a state waits"))
        tally.leave(1, 0, error)
        assert tally.total().note == note


def test_i4_a_route_that_is_not_carried_on_has_ended() -> None:
    tally = RouteTally()
    tally.report(1, 0, RouteReport(state=RUNNING, settled=5, outstanding=4, error="its target is away"))
    tally.leave(1, 0, "")
    assert tally.total() == RouteReport(state=RouteState.ENDED, settled=5)
    dead = RouteTally()
    dead.report(1, 0, RouteReport(state=RUNNING, settled=5))
    dead.leave(1, 0, DIED_TEXT)
    dead.finish()
    assert dead.total() == RouteReport(state=RouteState.ENDED, settled=5)


def test_a_route_that_is_carried_again_is_opening_whatever_was_reported_before() -> None:
    tally = RouteTally()
    tally.report(1, 0, RouteReport(state=RouteState.ENDED, settled=5, set_aside=(7,), is_exhausted=True))
    tally.take(1, 0)
    assert tally.total() == RouteReport(settled=5, set_aside=(7,))
    tally.leave(1, 0, "")
    tally.take(2, 0)
    assert tally.total() == RouteReport(settled=5, set_aside=(7,))
    tally.report(2, 0, RouteReport(state=RUNNING, settled=1))
    assert tally.total() == RouteReport(state=RUNNING, settled=6)


def test_a_reader_that_never_reported_leaves_no_count() -> None:
    tally = RouteTally()
    tally.take(1, 0)
    tally.leave(1, 0, DIED_TEXT)
    assert tally.total() == RouteReport(state=RouteState.RETRYING, error=DIED_TEXT)


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ((RouteState.RUNNING, RouteState.ENDED), RouteState.RUNNING),
        ((RouteState.ENDED, RouteState.RUNNING), RouteState.RUNNING),
        ((RouteState.ENDED, RouteState.ENDED), RouteState.ENDED),
        ((RouteState.RETRYING, RouteState.RUNNING), RouteState.RETRYING),
        ((RouteState.RUNNING, RouteState.PAUSED), RouteState.PAUSED),
    ],
)
def test_i3_a_route_of_several_readers_has_ended_when_all_have_ended_it(
    states: tuple[RouteState, RouteState], shown: RouteState
) -> None:
    tally = RouteTally()
    for slot, state in enumerate(states):
        tally.report(slot + 1, slot, RouteReport(state=state))
    assert tally.total().state is shown
