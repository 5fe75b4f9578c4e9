"""The time of a spool's messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.connectors.spool.spool_clock import AHEAD_MS, SpoolClock, time_of

WINDOW, SLACK = 10_000, 1_000


def test_time_follows_the_messages_and_never_goes_back() -> None:
    clock = SpoolClock().seen(50_000, 50_100).seen(40_000, 50_200)
    assert clock == SpoolClock(50_000, 50_000, 50_200)


def test_windows_close_once_messages_have_ceased() -> None:
    clock = SpoolClock().seen(50_000, 50_000)
    due = 50_000 + WINDOW + SLACK
    assert clock.idle(due - 1, 0, WINDOW, SLACK) == clock
    closed = clock.idle(due + 7, 0, WINDOW, SLACK)
    assert closed.now_ms == due + 7
    assert closed.now_ms - SLACK >= clock.newest_ms + WINDOW
    assert closed.idle(due + 60_000, 0, WINDOW, SLACK) == closed, "once is enough"


def test_the_window_of_a_message_that_came_after_messages_had_ceased_closes_too() -> None:
    clock = SpoolClock().seen(50_000, 50_000)
    ceased = 50_000 + WINDOW + SLACK + 7
    clock = clock.idle(ceased, 0, WINDOW, SLACK)
    floor = clock.floor_ms(SLACK)
    late = clock.seen(50_500, ceased + 1, floor)
    closed = late.idle(floor + WINDOW + SLACK, 0, WINDOW, SLACK)
    assert closed.now_ms - SLACK >= floor + WINDOW


def test_a_source_that_was_just_opened_has_time_to_bring_what_waits() -> None:
    clock = SpoolClock().seen(50_000, 50_000)
    assert clock.idle(90_000, 89_500, WINDOW, SLACK) == clock
    assert clock.idle(90_500, 89_500, WINDOW, SLACK).now_ms == 90_500


def test_time_comes_before_the_first_message() -> None:
    assert SpoolClock().idle(1 << 50, 0, WINDOW, SLACK) == SpoolClock()


def test_a_clock_that_is_far_ahead_does_not_close_windows() -> None:
    assert time_of(10_000 + AHEAD_MS + 1, 10_000) == 10_000 + AHEAD_MS
    assert time_of(9_000, 10_000) == 9_000
    assert time_of(0, 10_000) == 10_000


@given(st.lists(st.tuples(st.lists(st.integers(1, 10_000_000), max_size=5), st.integers(1, 100_000)), max_size=8))
def test_no_row_is_as_early_as_the_watermark(batches: list[tuple[list[int], int]]) -> None:
    """Spark's watermark is the latest time of the batches before, less the slack, and never goes back; it drops rows that are not later.
    Each start may have another slack.
    """
    clock, watermark = SpoolClock(), -(1 << 40)
    for batch, slack_ms in batches:
        rows = [max(clock.floor_ms(slack_ms), time_of(each, 20_000_000)) for each in batch]
        assert all(row > watermark for row in rows)
        clock = clock.seen(max(batch, default=0), 20_000_000).kept(slack_ms)
        watermark = max([watermark, *(row - slack_ms for row in rows), clock.now_ms - slack_ms])
