"""What the lease machine of a route decides."""

from __future__ import annotations

import itertools
import math

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.flow.byte_budget import ByteBudget
from isthmus.bridge.flow.credit_window import FIRST_MESSAGES
from isthmus.bridge.lease.crash_search import SET_ASIDE_REASON, CrashSearch, Plan
from isthmus.bridge.lease.event import (
    Abort,
    Begin,
    CloseSource,
    CloseTarget,
    Completed,
    Disposed,
    Drain,
    Effect,
    End,
    Ended,
    Event,
    Fault,
    Flushed,
    Grant,
    HandOn,
    OpenSource,
    OpenTarget,
    Planned,
    Release,
    Report,
    Settle,
    Statistics,
    TargetFailed,
    TargetPaused,
    TargetReady,
    TargetResumed,
    Tick,
    Window,
)
from isthmus.bridge.lease.fence import Fence
from isthmus.bridge.lease.lease import RouteLease
from isthmus.bridge.lease.settled_memory import KEPT_SECONDS, RECENT_SECONDS, SettledMemory
from isthmus.bridge.lease.state import CLOSING_SECONDS, DRAIN_SECONDS, GIVE_BACK_SECONDS, OPEN_LIMIT_SECONDS
from isthmus.bridge.lease.unsettled import UnsettledMap
from isthmus.bridge.port import Arrived, Blocked, Drained, Exhausted, Noted, SourceLost, SourceOpened
from isthmus.bridge.report import RouteState
from isthmus.bridge.route_spec import End as RouteEnd
from isthmus.bridge.route_spec import RouteSpec
from isthmus.transport import Client, Endpoint


class Route:
    """A machine whose effects are kept apart by what they are about."""

    def __init__(self, fence: Fence | None = None, budget: ByteBudget | None = None, **settings: object) -> None:
        spec = RouteSpec(name="r", source=RouteEnd("fake", "a"), target=RouteEnd("fake", "b"), **settings)  # type: ignore[arg-type]
        self.budget = budget or ByteBudget()
        handles = itertools.count(1)
        self.lease = RouteLease(spec, fence or Fence(False, 0.0), self.budget, lambda: next(handles))
        self.now = 0.0

    def on(self, event: Event) -> list[Effect]:
        return self.lease.on(event, self.now)

    def at(self, now: float) -> list[Effect]:
        self.now = now
        return self.on(Tick())

    def run(self) -> list[Effect]:
        """Opens everything."""
        self.on(Begin())
        self.on(SourceOpened("ns"))
        return self.on(TargetReady())

    def arrive(self, *positions: int, size: int = 100) -> list[Effect]:
        return self.on(Arrived(positions, [bytes(size)] * len(positions)))

    @property
    def report(self):  # type: ignore[no-untyped-def]
        return self.lease.report(self.now)


def running(**settings: object) -> Route:
    route = Route(**settings)  # type: ignore[arg-type]
    route.run()
    return route


def of(kind: type, effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if type(effect) is kind]


def handed_on(effects: list[Effect]) -> list[int]:
    return [position for effect in effects if isinstance(effect, HandOn) for position in effect.positions]


# ---- opening


def test_an_opening_goes_source_target_credit() -> None:
    route = Route()
    assert route.on(Begin()) == [OpenSource(1)]
    assert route.report.state is RouteState.OPENING
    assert route.on(SourceOpened("ns")) == [OpenTarget(1, "ns"), Window(1, FIRST_MESSAGES)]
    assert route.on(TargetReady()) == [Report(), Grant(1)]
    assert route.report.state is RouteState.RUNNING


def test_i3_no_credit_is_held_before_the_target_is_ready() -> None:
    route = Route()
    assert not of(Grant, route.on(Begin()) + route.on(SourceOpened()) + route.at(5.0))


def test_what_comes_without_credit_before_the_target_is_ready_is_given_back() -> None:
    route = Route()
    route.on(Begin())
    route.on(SourceOpened())
    assert of(Release, route.arrive(4, 5, 9)) == [Release(4, 5), Release(9, 9)]


def test_a_source_that_cannot_be_opened_is_tried_again_later_and_later() -> None:
    route = Route()
    route.on(Begin())
    delays = []
    for _ in range(8):
        assert not of(OpenSource, route.on(SourceLost("no answer")))
        assert route.report.state is RouteState.RETRYING
        assert route.report.error == "no answer"
        due = route.lease.deadline(route.now)
        delays.append(round(due - route.now, 3))
        assert route.at(due) == [OpenSource(1)]
    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_a_source_that_waiting_does_not_help_is_tried_again_as_a_new_opening() -> None:
    route = Route()
    route.on(Begin())
    effects = route.on(SourceLost("no such entity", is_fatal=True))
    assert effects == [CloseSource(), Report()]
    assert route.lease.deadline(0.0) == 5.0
    assert route.at(5.0) == [OpenSource(2)]


def test_a_source_that_raises_is_closed_and_opened_again_later() -> None:
    route = running()
    route.arrive(1)
    effects = route.on(Fault("KeyError: 'x'"))
    assert effects == [Release(1, 1), CloseTarget(1), CloseSource(), Report()]
    assert route.report.error == "KeyError: 'x'"


# ---- the flow


def test_rows_are_handed_on_in_order_and_settled_when_the_target_has_them() -> None:
    route = running()
    effects = route.arrive(10, 11, 12)
    assert handed_on(effects) == [10, 11, 12]
    assert route.on(Completed([(10, 11)]))[0] == Settle(10, 11)
    report = route.report
    assert (report.settled, report.moved, report.outstanding, report.head) == (2, 2, 1, 12)
    assert report.received_bytes == 300


def test_i1_only_what_is_outstanding_is_settled() -> None:
    route = running()
    route.arrive(10, 12)
    assert of(Settle, route.on(Completed([(1, 11)]))) == [Settle(10, 10)]
    assert not of(Settle, route.on(Completed([(1, 11)])))


def test_dispositions_are_passed_on_and_counted_apart() -> None:
    route = running()
    route.arrive(1, 2, 3)
    dead = Disposition("dead-letter", "Because", "text")
    assert of(Settle, route.on(Disposed(1, 1, dead))) == [Settle(1, 1, dead)]
    route.on(Disposed(2, 2, Disposition("complete")))
    route.on(Completed([(3, 3)]))
    report = route.report
    assert (report.settled, report.moved, report.dead_lettered, report.discarded) == (3, 1, 1, 1)


def test_a_diverted_message_is_completed_and_counted_apart() -> None:
    route = running()
    route.arrive(1, 2)
    assert of(Settle, route.on(Disposed(1, 1, Disposition("divert", "ValidationFailed", "text")))) == [Settle(1, 1)]
    route.on(Completed([(2, 2)]))
    report = route.report
    assert (report.settled, report.moved, report.diverted, report.discarded) == (2, 1, 1, 0)


def test_credit_grows_with_what_is_known_of_the_sizes_and_with_the_window() -> None:
    route = running()
    granted = of(Grant, route.arrive(1, size=1000))
    assert granted == [Grant(FIRST_MESSAGES - 1)]
    route.on(Arrived(range(2, 257), [b"x" * 1000] * 255))
    effects = route.on(Completed([(1, 256)]))
    assert Window(1, 512) in effects
    assert Report() in effects
    assert of(Grant, effects) == [Grant(512)]
    assert effects.index(Window(1, 512)) < effects.index(Grant(512))


def test_messages_that_turn_out_larger_take_the_rest_of_the_credit_back() -> None:
    route = running(window_bytes=10_000)
    route.arrive(1, size=10)
    assert of(Drain, route.arrive(2, size=10_000)) == [Drain()]
    assert handed_on(route.arrive(3, size=5_000)) == [3]
    # Beyond twice the bound everything goes back until the source has no credit, so that the order is kept.
    effects = route.arrive(4, size=9_000) + route.arrive(5, size=10)
    assert (handed_on(effects), of(Release, effects)) == ([], [Release(4, 4), Release(5, 5)])
    assert not of(Grant, route.on(Drained()))
    assert of(Grant, route.on(Completed([(1, 3)])))
    assert handed_on(route.arrive(4, size=9_000)) == [4]


def test_one_message_larger_than_everything_is_moved_alone() -> None:
    route = running(window_bytes=1_000)
    assert handed_on(route.arrive(1, size=100_000)) == [1]
    route.on(Completed([(1, 1)]))
    assert handed_on(route.arrive(2, size=100_000)) == [2]


def test_routes_share_the_bytes_of_the_process() -> None:
    budget = ByteBudget(100_000, 1_000)
    first, second = running(budget=budget), running(budget=budget)
    first.arrive(1, size=1_000)
    first.on(Arrived(range(2, 80), [bytes(1_000)] * 78))
    assert budget.used == 79_000
    assert of(Grant, second.arrive(1, size=1_000)) == [Grant(19)]
    first.on(Completed([(1, 79)]))
    assert budget.used == 1_000
    first.on(Abort("x"))
    second.on(Abort("x"))
    assert budget.used == 0


def test_i6_a_position_that_comes_again_while_the_sink_has_it_is_not_handed_on_again() -> None:
    route = running()
    route.arrive(1, 2, 3)
    route.on(SourceLost("reset"))
    route.at(1.0)
    route.on(SourceOpened("ns"))
    effects = route.arrive(2, 3, 4)
    assert handed_on(effects) == [4]
    assert of(Settle, route.on(Completed([(1, 4)]))) == [Settle(1, 4)]
    assert route.report.settled == 4


# ---- the target


def test_pause_takes_credit_back_and_resume_grants_again_after_the_answer() -> None:
    route = running()
    route.arrive(1)
    assert route.on(TargetPaused("busy")) == [Drain()]
    assert route.report.state is RouteState.PAUSED
    assert route.report.paused == "busy"
    assert handed_on(route.arrive(2)) == [2]  # it was in transit
    assert not of(Grant, route.on(TargetResumed()))
    assert of(Grant, route.on(Drained())) == [Grant(FIRST_MESSAGES - 2)]
    assert route.report.state is RouteState.RUNNING


def test_i2_i7_a_target_that_fails_gives_all_back_and_begins_again_under_a_new_handle() -> None:
    route = running()
    route.arrive(1, 2, 7)
    assert route.on(TargetFailed("full")) == [Release(1, 2), Release(7, 7), CloseTarget(1), CloseSource(), Report()]
    report = route.report
    assert (report.state, report.error, report.retry_in_seconds) == (RouteState.RETRYING, "full", 0.5)
    assert report.outstanding == 0
    assert route.on(Completed([(1, 7)])) == []  # I4: reported before it knew
    assert route.at(0.5) == [OpenSource(2)]
    assert route.on(SourceOpened("ns"))[0] == OpenTarget(2, "ns")
    route.on(TargetReady())
    assert route.report.error == ""
    assert handed_on(route.arrive(1)) == [1]


def test_delays_after_failures_grow_until_something_has_moved() -> None:
    route = running()
    delays = []
    for fatal in (False, False, False, True, True):
        route.on(TargetFailed("x", fatal))
        delays.append(route.report.retry_in_seconds)
        route.at(route.lease.deadline(route.now))
        route.on(SourceOpened())
        route.on(TargetReady())
    assert delays == [0.5, 1.0, 2.0, 5.0, 10.0]
    route.arrive(1)
    route.on(Completed([(1, 1)]))
    route.on(TargetFailed("x"))
    assert route.report.retry_in_seconds == 0.5


def test_delays_have_a_limit() -> None:
    route = running()
    for _ in range(12):
        route.on(TargetFailed("x", True))
        delay = route.report.retry_in_seconds
        route.at(route.lease.deadline(route.now))
        route.on(SourceOpened())
        route.on(TargetReady())
    assert delay == 60.0


def test_what_the_sink_sends_again_is_counted_over_openings() -> None:
    route = running()
    route.on(Statistics(5, ""))
    route.on(TargetFailed("x"))
    route.at(0.5)
    route.on(SourceOpened())
    route.on(TargetReady())
    route.on(Statistics(2, ""))
    assert route.report.resent == 7


def test_the_driver_is_told_whether_the_target_has_messages() -> None:
    route = running()
    route.on(Statistics(0, "", True))
    assert not route.report.is_awaited, "all are settled"
    route.arrive(1)
    assert route.report.is_awaited
    route.on(Statistics(0, "", False))
    assert not route.report.is_awaited
    route.on(Statistics(0, "", True))
    route.on(TargetFailed("x"))
    route.at(0.5)
    route.on(SourceOpened())
    route.on(TargetReady())
    route.arrive(1)
    assert not route.report.is_awaited, "that was another opening"


def test_a_lone_refused_message_gets_another_beside_it() -> None:
    route = Route()
    route.on(Planned(Plan(1, 100)))
    route.run()
    route.arrive(1)
    effects = route.on(Statistics(0, "message 1 is refused"))
    assert Window(1, 2) in effects
    assert of(Grant, effects) == [Grant(1)]
    assert not of(Window, route.on(Statistics(1, "message 1 is refused"))), "there is room for another"
    route.arrive(2)
    assert Window(1, 3) in route.on(Statistics(2, "message 1 is refused"))


@pytest.mark.parametrize("size", [900, 1_000, 5_000])
def test_a_refused_message_that_fills_the_bytes_gets_another_beside_it(size: int) -> None:
    """Nothing else shows whether the target takes others."""
    route = running(window_bytes=1_000)
    assert not of(Grant, route.arrive(1, size=size))
    assert of(Grant, route.on(Statistics(0, "message 1 is refused"))) == [Grant(1)]
    assert not of(Grant, route.on(Statistics(1, "message 1 is refused"))), "one is on its way"
    assert handed_on(route.arrive(2, size=size)) == [2]
    assert not of(Grant, route.at(1.0))
    assert not of(Grant, route.on(Statistics(2, "")))
    assert bool(of(Grant, route.on(Statistics(3, "message 1 is refused")))) == (2 * size < 2_000)


# ---- the source


def test_a_lost_source_keeps_what_is_outstanding_and_is_opened_again() -> None:
    route = running()
    route.arrive(1, 2)
    assert route.on(SourceLost("reset")) == []
    assert route.report.state is RouteState.RETRYING
    assert of(Settle, route.on(Completed([(1, 1)]))) == [Settle(1, 1)]  # the source keeps it
    assert route.at(0.1) == [OpenSource(1)]
    effects = route.on(SourceOpened("ns"))
    assert not of(OpenTarget, effects)
    assert of(Grant, effects) == [Grant(FIRST_MESSAGES - 1)]
    assert route.report.state is RouteState.RUNNING


def test_a_fatal_loss_gives_everything_back() -> None:
    route = running()
    route.arrive(1, 2)
    effects = route.on(SourceLost("no such entity", is_fatal=True))
    assert effects == [Release(1, 2), CloseTarget(1), CloseSource(), Report()]


def test_a_source_that_is_another_namespace_now_begins_a_new_opening() -> None:
    route = running()
    route.arrive(1)
    route.on(SourceLost("reset"))
    route.at(0.1)
    assert CloseTarget(1) in route.on(SourceOpened("other"))
    assert "another namespace" in route.report.error


def test_credit_of_a_lost_connection_is_forgotten_also_while_draining() -> None:
    route = running()
    route.arrive(1)
    route.on(TargetPaused("busy"))
    route.on(SourceLost("reset"))
    route.at(0.1)
    route.on(SourceOpened("ns"))
    assert of(Grant, route.on(TargetResumed()))


def test_what_blocks_the_source_is_reported() -> None:
    route = running()
    route.on(Blocked(17))
    assert route.report.blocked_by == 17
    route.on(Blocked(0))
    assert route.report.blocked_by == 0


def test_what_the_source_wants_to_be_known_is_reported_until_it_is_over_or_the_source_is_lost() -> None:
    route = running()
    for end in (Noted(""), SourceLost("reset")):
        route.on(Noted("a state waits"))
        assert (route.report.note, route.report.state) == ("a state waits", RouteState.RUNNING)
        route.on(end)
        assert route.report.note == ""


def test_what_the_source_left_undone_is_reported_beyond_the_end() -> None:
    route = running(only_present=True)
    route.on(Noted("a state waits"))
    route.on(Exhausted())
    assert (route.report.state, route.report.note) == (RouteState.ENDED, "a state waits")


# ---- claims


def claimed(now: float = 0.0) -> tuple[Route, Fence]:
    fence = Fence(True, now)
    return Route(fence), fence


def test_i3_without_a_confirmed_claim_no_credit_is_held() -> None:
    route, fence = claimed()
    assert not of(Grant, route.run())
    assert route.report.state is RouteState.PAUSED
    assert "claim" in route.report.paused
    assert of(Release, route.arrive(1)) == [Release(1, 1)]
    fence.answer(fence.ask(0.0), 15.0)
    assert of(Grant, route.on(Tick())) == [Grant(1)]
    assert route.report.state is RouteState.RUNNING


def test_a_claim_that_is_not_confirmed_any_more_gives_everything_back_until_it_is() -> None:
    route, fence = claimed()
    fence.answer(fence.ask(0.0), 15.0)
    route.run()
    route.arrive(1, 2)
    assert route.lease.deadline(0.0) == 12.0
    assert route.at(12.0) == [Release(1, 2), CloseTarget(1), CloseSource(), Report()]
    assert route.report.state is RouteState.PAUSED
    assert route.at(20.0) == []
    fence.answer(fence.ask(20.0), 15.0)
    assert route.on(Tick()) == [OpenSource(2)]


def test_what_arrives_behind_a_closed_fence_is_not_handed_on() -> None:
    route, fence = claimed()
    fence.answer(fence.ask(0.0), 15.0)
    route.run()
    route.now = 12.5
    effects = route.arrive(1, 2)
    assert handed_on(effects) == []
    assert CloseSource() in effects


# ---- messages that kill workers


def test_i5_with_a_small_window_the_driver_gets_a_report_before_each_message_and_each_settlement() -> None:
    route = Route()
    route.on(Planned(Plan(8, 64)))
    route.run()
    effects = route.arrive(1)
    assert [type(effect) for effect in effects] == [Report, HandOn, Grant]
    assert of(Grant, effects) == [Grant(7)]
    assert Report() in route.on(Completed([(1, 1)]))


def test_a_window_that_is_narrowed_takes_credit_back() -> None:
    route = running()
    route.arrive(1, 2)
    effects = route.on(Planned(Plan(1, 256)))
    assert effects == [Window(1, 1), Report(), Drain()]
    assert route.report.window == 2, "neither is alone: a worker that dies now shows nothing of the first"
    route.on(Drained())
    assert not of(Grant, route.on(Completed([(1, 1)])))
    assert route.report.window == 1
    assert of(Grant, route.on(Completed([(2, 2)]))) == [Grant(1)]


def test_the_same_plan_again_changes_nothing() -> None:
    route = running()
    route.on(Planned(Plan(8, 64)))
    assert route.on(Planned(Plan(8, 64))) == []


def test_a_message_over_which_workers_died_is_dead_lettered_unread_whenever_it_comes() -> None:
    route = Route()
    route.on(Planned(Plan(8, 64, 5, 2)))
    route.run()
    effects = route.arrive(4, 5, 6)
    assert handed_on(effects) == [4, 6]
    (settle,) = of(Settle, effects)
    assert isinstance(settle, Settle)
    assert settle.disposition is not None
    assert (settle.first, settle.disposition.reason) == (5, SET_ASIDE_REASON)
    assert "2 workers" in settle.disposition.description
    assert (route.report.set_aside, route.report.dead_lettered, route.report.moved) == ((5,), 1, 0)
    again = route.arrive(5)  # its settlement was lost with the connection
    assert handed_on(again) == []
    assert of(Settle, again)
    assert route.report.settled == 1


def test_a_message_that_kills_is_found_where_each_process_gives_it_another_number() -> None:
    """A broker that numbers nothing gives it another position in each lease, and another delivery count."""
    search = CrashSearch()

    def lease(first: int) -> tuple[Route, list[Effect]]:
        route = Route()
        route.lease.messages.is_known_by_content = True
        route.on(Planned(search.plan()))
        route.run()
        headers = [section.encode_header(section.Header(delivery_count=first + at)) for at in range(2)]
        payloads = [header + section.encode_message(b"%d" % at) for at, header in enumerate(headers)]
        return route, route.on(Arrived((first, first + 1), payloads))

    search.died(8, 2, 0)
    heads = set()
    for first in (100, 200):
        route, effects = lease(first)
        assert handed_on(effects) == [first, first + 1]
        heads.add(route.report.head)
        search.died(1, 2, route.report.head)
    (head,) = heads
    assert head > 0
    route, effects = lease(300)
    assert handed_on(effects) == [301]
    (settle,) = of(Settle, effects)
    assert isinstance(settle, Settle)
    assert settle.disposition is not None
    assert (settle.first, settle.last, settle.disposition.reason) == (300, 300, SET_ASIDE_REASON)
    assert (route.report.set_aside, route.report.dead_lettered) == ((head,), 1)


def test_another_message_with_the_number_of_the_one_that_killed_is_not_set_aside() -> None:
    """A source that counts from 1 in each process; the message that kills is hidden for a while after each death."""
    search = CrashSearch()
    search.died(8, 1, 0)
    payloads = [section.encode_message(b"kills"), section.encode_message(b"kills"), section.encode_message(b"innocent")]
    for payload in payloads:
        route = Route()
        route.lease.messages.is_known_by_content = True
        route.on(Planned(search.plan()))
        route.run()
        assert handed_on(route.on(Arrived((1,), [payload]))) == [1]
        search.died(1, 1, route.report.head)


# ---- the end


def test_the_end_drains_waits_for_settlements_and_closes() -> None:
    route = running()
    route.arrive(1, 2)
    assert route.on(End()) == [Drain()]
    assert route.report.state is RouteState.ENDING
    assert handed_on(route.arrive(3)) == [3]
    assert route.on(Drained()) == []
    assert of(Settle, route.on(Completed([(1, 2)]))) == [Settle(1, 2)]
    assert route.on(Completed([(3, 3)])) == [Settle(3, 3), CloseTarget(1), CloseSource(), Report(), Ended()]
    assert route.report.state is RouteState.ENDED
    assert route.lease.has_ended
    assert route.on(Begin()) == []


def test_an_end_with_nothing_open_is_immediate() -> None:
    route = Route()
    assert route.on(End()) == [Report(), Ended()]
    route = Route()
    route.on(Begin())
    assert route.on(End()) == [CloseSource(), Report(), Ended()]


def test_the_end_of_a_route_that_waits_to_begin_again_is_immediate() -> None:
    route = running()
    route.on(TargetFailed("full"))
    assert route.on(End()) == [Report(), Ended()]
    assert route.report.error == "full"


def test_a_source_that_does_not_answer_a_drain_is_waited_for_so_long() -> None:
    route = running()
    route.on(End())
    assert route.at(DRAIN_SECONDS - 0.1) == []
    assert route.lease.deadline(route.now) == DRAIN_SECONDS
    assert Ended() in route.at(DRAIN_SECONDS)


def test_a_paused_route_gives_back_the_rest_when_it_ends() -> None:
    route = running()
    route.arrive(1, 2)
    route.on(TargetPaused("busy"))
    route.on(Drained())
    assert route.on(End()) == []
    assert route.lease.deadline(0.0) == GIVE_BACK_SECONDS
    assert route.at(GIVE_BACK_SECONDS) == [Release(1, 2), CloseTarget(1), CloseSource(), Report(), Ended()]


def test_a_route_whose_source_is_lost_gives_back_the_rest_when_it_ends() -> None:
    route = running()
    route.arrive(1)
    route.on(SourceLost("reset"))
    route.on(End())
    assert Ended() in route.at(GIVE_BACK_SECONDS)


def test_the_end_waits_for_a_lost_source_to_report_what_was_settled() -> None:
    route = running()
    route.arrive(1)
    route.on(SourceLost("reset"))
    route.on(Completed([(1, 1)]))
    assert not of(Ended, route.on(End()))
    assert route.at(0.1) == [OpenSource(1)]
    assert route.on(SourceOpened("ns")) == [CloseTarget(1), CloseSource(), Report(), Ended()]


def test_what_is_present_is_not_complete_before_a_lost_source_was_reported() -> None:
    route = running(only_present=True)
    route.arrive(1)
    route.on(Exhausted())
    route.on(SourceLost("reset"))
    assert not of(Ended, route.on(Completed([(1, 1)])))
    route.at(0.1)
    assert Ended() in route.on(SourceOpened("ns"))


def test_what_is_present_is_not_complete_before_a_source_that_delivers_again_has_reported_the_end_again() -> None:
    """The locks ended with the connection: what was settled meanwhile comes again. The route ended before, and the next run moved it once more."""
    route = running(only_present=True)
    message = section.encode_message(b"x", annotations={Symbol("x-opt-enqueued-time"): Timestamp(1)})
    route.on(Arrived((1,), (message,)))
    route.on(Exhausted())
    route.on(SourceLost("reset", voids_end=True))
    route.on(Completed([(1, 1)]))
    route.at(0.1)
    assert not of(Ended, route.on(SourceOpened("ns")))
    assert of(Settle, route.on(Arrived((1,), (message,)))) == [Settle(1, 1)]
    assert Ended() in route.on(Exhausted())
    assert route.report.is_exhausted


def test_a_source_that_never_answers_a_drain_is_opened_again() -> None:
    route = running()
    route.on(TargetPaused("busy"))
    route.on(TargetResumed())
    assert route.lease.deadline(0.0) == 30.0
    assert CloseSource() in route.at(30.0)
    assert route.report.state is RouteState.RETRYING


def test_settlements_that_stop_coming_end_the_waiting() -> None:
    route = running()
    route.arrive(1, 2)
    route.on(End())
    route.on(Drained())
    route.now = 10.0
    route.on(Completed([(1, 1)]))
    assert route.at(10.0 + CLOSING_SECONDS - 0.1) == []
    assert Release(2, 2) in route.at(10.0 + CLOSING_SECONDS)
    assert "1 messages were not settled in time" in route.report.error


def test_a_target_that_fails_at_the_end_ends_the_route() -> None:
    route = running()
    route.arrive(1)
    route.on(End())
    assert route.on(TargetFailed("full"))[-2:] == [Report(), Ended()]
    assert route.report.error == "full"


def test_i2_a_failed_lease_gives_everything_back_at_once() -> None:
    route = running()
    route.arrive(1, 2)
    assert route.on(Abort("the sink went away")) == [Release(1, 2), CloseTarget(1), CloseSource(), Report(), Ended()]


# ---- only what is at the source


def test_a_route_of_what_is_present_ends_when_all_of_it_is_settled() -> None:
    route = running(only_present=True)
    route.arrive(1, 2)
    assert not of(Ended, route.on(Exhausted()))
    assert not route.report.is_exhausted
    effects = route.on(Completed([(1, 2)]))
    assert effects[0] == Settle(1, 2)
    assert Ended() in effects
    assert route.report.is_exhausted


def test_i8_a_disposition_that_the_source_refuses_is_not_the_end() -> None:
    """A log without a place for dead letters is lost by one. The route ended in good order, and counted the message as dead-lettered."""
    route = running(only_present=True)
    route.arrive(1, 2)
    route.on(Exhausted())
    route.on(Completed([(1, 1)]))
    dead = Disposition("dead-letter", "HopBudgetUsedUp", "8 hops")
    assert of(Settle, route.on(Disposed(2, 2, dead))) == [Settle(2, 2, dead)]
    assert route.lease.deadline(route.now) == route.now
    assert CloseSource() in route.on(SourceLost("it would have to be set aside", is_fatal=True))
    assert not route.lease.has_ended
    assert not route.report.is_exhausted


def test_i8_a_disposition_that_the_source_takes_is_the_end_once_it_was_polled() -> None:
    route = running(only_present=True)
    route.arrive(1)
    route.on(Exhausted())
    assert not of(Ended, route.on(Disposed(1, 1, Disposition("dead-letter"))))
    assert Ended() in route.on(Tick())
    assert route.report.is_exhausted


def test_i8_a_message_that_crashes_workers_is_set_aside_only_if_its_source_does_not_refuse_it() -> None:
    """It is set aside unread. A log without a place for it is lost, and the route ended in good order before."""
    route = running(only_present=True)
    route.on(Planned(Plan(window=1, set_aside=7, deaths=3)))
    assert [each.first for each in of(Settle, route.arrive(7)) if isinstance(each, Settle)] == [7]
    assert not of(Ended, route.on(Exhausted()))
    assert CloseSource() in route.on(SourceLost("it would have to be set aside", is_fatal=True))
    assert not route.lease.has_ended
    route.at(route.lease.deadline(route.now))
    route.on(SourceOpened("ns"))
    route.on(TargetReady())
    route.arrive(7)
    assert not of(Ended, route.on(Exhausted()))
    assert Ended() in route.on(Tick())


def test_a_failure_after_the_last_message_came_does_not_pass_for_the_end() -> None:
    route = running(only_present=True)
    route.arrive(1)
    route.on(Exhausted())
    route.on(TargetFailed("full"))
    assert not route.lease.has_ended
    assert not route.report.is_exhausted
    route.at(0.5)
    route.on(SourceOpened())
    route.on(TargetReady())
    assert not route.lease.has_ended
    route.arrive(1)
    route.on(Exhausted())
    assert Ended() in route.on(Completed([(1, 1)]))


def test_what_was_given_back_for_want_of_room_is_read_before_the_end() -> None:
    route = running(only_present=True, window_bytes=1_000)
    route.arrive(1, size=10)
    route.arrive(2, size=1_000)
    assert of(Release, route.arrive(3, size=1_500))
    route.on(Exhausted())
    effects = route.on(Completed([(1, 2)]))
    assert not of(Ended, effects)
    assert CloseSource() in effects
    assert OpenSource(2) in route.at(route.lease.deadline(route.now))


# ---- steps that remove rows


def test_rows_that_a_step_removed_are_given_back_and_the_step_is_named() -> None:
    route = running(steps=("cleanse", "enrich"))
    route.arrive(1, 2, 3, 4)
    assert route.on(Flushed(4, 3)) == []  # which one it was is not known yet
    effects = route.on(Completed([(1, 2), (4, 4)]))
    assert of(Settle, effects) == [Settle(1, 2), Settle(4, 4)]
    assert of(Release, effects) == [Release(3, 3)]
    assert CloseTarget(1) in effects
    assert "1 messages from position 3 on" in route.report.error
    assert "'cleanse, enrich'" in route.report.error


def test_rows_that_are_slow_are_not_taken_for_removed() -> None:
    route = running(steps=("cleanse",))
    route.arrive(1, 2)
    assert route.on(Flushed(2, 2)) == []
    route.arrive(3)
    assert not of(Release, route.on(Completed([(1, 1)])))
    assert not of(Release, route.on(Flushed(3, 3)))


def test_rows_of_a_route_without_steps_are_never_taken_for_removed() -> None:
    route = running()
    route.arrive(1)
    assert route.on(Flushed(1, 0)) == []


def test_removed_rows_do_not_delay_the_end() -> None:
    route = running(steps=("cleanse",))
    route.arrive(1, 2)
    route.on(End())
    route.on(Drained())
    route.on(Completed([(1, 1)]))
    effects = route.on(Flushed(2, 1))
    assert Release(2, 2) in effects
    assert Ended() in effects
    assert "removes rows" in route.report.error


def test_a_route_without_anything_due_sleeps() -> None:
    route = running()
    assert route.lease.deadline(0.0) == math.inf


def test_a_route_that_is_carried_again_continues_counting() -> None:
    route = running()
    route.arrive(1)
    route.on(Completed([(1, 1)]))
    spec = route.lease.spec
    again = RouteLease(spec, Fence(False, 0.0), ByteBudget(), lambda: 9, route.lease.messages.counts)
    assert again.report(0.0).settled == 1


def test_what_the_sink_has_is_kept_though_it_comes_again_when_there_is_no_room() -> None:
    route = running(window_bytes=1000)
    route.arrive(1, size=900)
    route.on(SourceLost("gone"))
    route.at(1.0)
    route.on(SourceOpened("ns"))
    effects = route.arrive(1, 2, size=900)
    assert of(Release, effects) == [Release(2, 2)]
    assert Settle(1, 1) in route.on(Completed([(1, 1)]))


def test_a_source_that_never_answers_is_opened_again() -> None:
    route = Route()
    route.on(Begin())
    assert route.lease.deadline(0.0) == OPEN_LIMIT_SECONDS
    assert CloseSource() in route.at(OPEN_LIMIT_SECONDS)
    assert route.report.state is RouteState.RETRYING
    assert "did not answer" in route.report.error
    assert OpenSource(2) in route.at(OPEN_LIMIT_SECONDS + 1.0)


def test_a_lost_source_that_never_answers_is_opened_again_and_what_is_outstanding_given_back() -> None:
    route = running()
    route.arrive(1)
    route.on(SourceLost("gone"))
    route.at(1.0)
    assert Release(1, 1) in route.at(1.0 + OPEN_LIMIT_SECONDS)
    assert OpenSource(2) in route.at(2.0 + OPEN_LIMIT_SECONDS)


def test_a_sink_that_never_reports_on_a_target_gets_another_opening() -> None:
    route = Route()
    route.on(Begin())
    route.on(SourceOpened("ns"))
    assert CloseTarget(1) in route.at(30.0 + OPEN_LIMIT_SECONDS)


# ---- what was completed, and may come again


def come(route: Route, position: int, enqueued_ms: int = 1000) -> list[Effect]:
    annotations = {Symbol("x-opt-enqueued-time"): Timestamp(enqueued_ms)}
    payload = section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations) + section.encode_message(b"x")
    return route.on(Arrived([position], [payload]))


def back(route: Route, identity: str = "ns") -> None:
    """The source is lost, and open again."""
    route.on(SourceLost("gone"))
    route.at(route.now + 1.0)
    route.on(SourceOpened(identity))


def test_what_was_completed_just_before_a_loss_is_completed_again_and_not_sent_again() -> None:
    route = running()
    come(route, 1)
    route.on(Completed([(1, 1)]))
    back(route)
    effects = come(route, 1)
    assert Settle(1, 1) in effects
    assert not handed_on(effects)
    assert route.report.settled == route.report.moved == 1
    assert route.report.outstanding == 0


def test_what_was_diverted_just_before_a_loss_is_completed_again_and_not_diverted_again() -> None:
    route = running()
    come(route, 1)
    route.on(Disposed(1, 1, Disposition("divert")))
    back(route)
    effects = come(route, 1)
    assert Settle(1, 1) in effects
    assert not handed_on(effects)
    assert (route.report.settled, route.report.diverted, route.report.outstanding) == (1, 1, 0)


def test_what_was_completed_over_a_connection_that_was_silent_already_is_completed_again() -> None:
    """The network has failed; what was written since is lost, and is known to be so only when nothing has come for long enough."""
    route = running()
    for position in range(1, 9):
        come(route, position)
    for position in (2, 1, 5, 7, 3):  # as outcomes come
        route.on(Completed([(position, position)]))
    route.at(1.5)
    route.on(Completed([(4, 4), (6, 6)]))
    silent_ms = Client(Endpoint("here", 5671)).connection.idle_timeout_ms
    assert silent_ms
    route.at(2 * silent_ms / 1000)
    back(route)
    for position in range(1, 8):
        effects = come(route, position)
        assert Settle(position, position) in effects
        assert not handed_on(effects)
    assert of(Settle, route.on(Completed([(8, 8)]))) == [Settle(8, 8)]
    assert route.report.moved == 8


def test_what_was_completed_while_the_source_was_away_is_completed_again() -> None:
    route = running()
    come(route, 1)
    route.on(SourceLost("gone"))
    route.at(60.0)
    route.on(Completed([(1, 1)]))
    route.on(SourceOpened("ns"))
    assert Settle(1, 1) in come(route, 1)


def test_it_is_completed_again_in_the_next_opening_too() -> None:
    route = running()
    come(route, 1)
    route.on(Completed([(1, 1)]))
    route.on(SourceLost("gone"))
    route.on(TargetFailed("away"))
    route.at(1.0)
    route.on(SourceOpened("ns"))
    route.on(TargetReady())
    assert Settle(1, 1) in come(route, 1)


def test_a_known_position_of_a_message_enqueued_later_is_another_message_and_so_are_all() -> None:
    route = running()
    for position in (1, 2):
        come(route, position)
        route.on(Completed([(position, position)]))
    back(route)
    assert handed_on(come(route, 1, 1001)) == [1]
    assert handed_on(come(route, 2)) == [2]


def test_what_was_completed_long_before_a_loss_or_came_back_long_after_it_is_handed_on() -> None:
    route = running()
    come(route, 1)
    route.on(Completed([(1, 1)]))
    route.at(RECENT_SECONDS + 1.0)
    come(route, 2)
    route.on(Completed([(2, 2)]))
    back(route)
    assert handed_on(come(route, 1)) == [1]
    route.at(route.now + KEPT_SECONDS)
    assert handed_on(come(route, 2)) == [2]


def test_what_was_under_way_at_a_loss_is_known_however_long_the_target_is_unavailable() -> None:
    """There is no credit meanwhile, so that the source does not give it again before."""
    route = running()
    for position in (1, 2):
        come(route, position)
    back(route)
    route.at(route.now + KEPT_SECONDS + 60.0)
    route.on(Completed([(1, 1)]))
    effects = come(route, 1)
    assert Settle(1, 1) in effects
    assert not handed_on(effects)
    route.on(Completed([(2, 2)]))
    route.at(route.now + KEPT_SECONDS - 1.0)
    assert Settle(2, 2) in come(route, 2)


def test_what_was_set_aside_after_a_loss_keeps_nothing_known() -> None:
    route = running()
    for position in (1, 2):
        come(route, position)
    back(route)
    route.on(Completed([(1, 1)]))
    route.on(Disposed(2, 2, Disposition("dead-letter", "Odd")))
    route.at(route.now + KEPT_SECONDS)
    assert handed_on(come(route, 1)) == [1]


def test_nothing_is_known_of_another_namespace_or_of_an_entity_that_was_deleted() -> None:
    for lost, identity in ((SourceLost("gone"), "other"), (SourceLost("no such entity", True), "ns")):
        route = running()
        come(route, 1)
        route.on(Completed([(1, 1)]))
        route.on(lost)
        for later in (1.0, 10.0):
            route.at(later)
            route.on(SourceOpened(identity))
        route.at(20.0)
        route.on(SourceOpened(identity))
        route.on(TargetReady())
        assert handed_on(come(route, 1)) == [1]


def test_another_message_under_a_position_that_the_sink_still_has_is_not_completed_with_it() -> None:
    """The entity was made again, or goes back to an earlier state, while its connection was away: its numbers begin again."""
    route = running()
    route.lease.messages.is_numbered_again = True
    for position in (1, 2):
        come(route, position)
    back(route)
    effects = come(route, 1, 2000)
    assert not handed_on(effects)
    assert of(Release, effects) == [Release(1, 2)]
    assert of(CloseTarget, effects)
    assert not of(Settle, route.on(Completed([(1, 2)])))
    route.at(20.0)
    route.on(SourceOpened("ns"))
    route.on(TargetReady())
    assert handed_on(come(route, 1, 2000)) == [1]


def test_the_same_message_comes_again_while_the_sink_has_it_whatever_came_since() -> None:
    route = running()
    route.lease.messages.is_numbered_again = True
    come(route, 1, 1000)
    come(route, 2, 1005)
    come(route, 1, 1000)  # an older one last
    back(route)
    come(route, 3, 5000)
    for position, at_ms in ((2, 1005), (1, 1000), (3, 5000)):
        effects = come(route, position, at_ms)
        assert not handed_on(effects)
        assert not of(Release, effects)
    assert of(Settle, route.on(Completed([(1, 3)]))) == [Settle(1, 3)]


def dead_letters() -> Route:
    """A route from a dead-letter queue: its messages keep their times, and were not dead-lettered in that order."""
    route = running()
    route.lease.messages.is_numbered_again = True
    route.on(SourceLost("gone"))
    route.at(route.now + 1.0)
    route.on(SourceOpened("ns", True))
    for position, at_ms in ((1, 5000), (2, 1000), (3, 3000)):
        come(route, position, at_ms)
    return route


def test_a_dead_letter_that_comes_again_is_the_same_though_a_later_one_is_older() -> None:
    route = dead_letters()
    route.on(Completed([(1, 1), (3, 3)]))
    for _ in range(2):
        route.on(SourceLost("gone"))
        route.at(route.now + 1.0)
        route.on(SourceOpened("ns", True))
        for position, at_ms, is_completed in ((1, 5000, True), (2, 1000, False), (3, 3000, True)):
            effects = come(route, position, at_ms)
            assert of(Settle, effects) == ([Settle(position, position)] if is_completed else [])
            assert not handed_on(effects)
            assert not of(Release, effects)
    assert of(Settle, route.on(Completed([(2, 2)]))) == [Settle(2, 2)]


def test_another_dead_letter_under_a_known_number_is_reported_by_its_time_though_that_is_earlier() -> None:
    """The namespace goes back to an earlier state: what is dead-lettered then may be older than all that was."""
    for position, is_outstanding in ((2, True), (1, False)):
        route = dead_letters()
        route.on(Completed([(1, 1)]))
        route.on(SourceLost("gone"))
        route.at(route.now + 1.0)
        route.on(SourceOpened("ns", True))
        effects = come(route, position, 500)
        assert not of(Settle, effects)
        assert handed_on(effects) == ([] if is_outstanding else [1])
        assert bool(of(CloseTarget, effects)) is is_outstanding


def test_times_of_dead_letters_are_kept_while_they_are_of_use() -> None:
    memory = SettledMemory()
    memory.opened("ns", 0.0, keeps_times=True)
    unsettled = UnsettledMap()
    payload = section.encode_map_section(section.MESSAGE_ANNOTATIONS, {Symbol("x-opt-enqueued-time"): Timestamp(7)})
    for number in range(20_000):
        memory.came((number,), (payload,), unsettled)
        memory.completed(number, number, number / 10)
        assert len(memory._times) <= 4097
    memory.lost(2000.0, {}, ())
    assert all(memory.is_again(number, payload, 2000.0) for number in range(19_999, 19_300, -1))


def test_of_a_log_whose_records_show_times_of_their_own_nothing_is_taken_for_another() -> None:
    route = running()
    come(route, 1)
    back(route)
    assert not of(Release, come(route, 1, 2000))


def test_what_was_completed_is_known_by_the_newest_of_its_partition_and_not_by_what_came_last() -> None:
    route = running()
    first, second = 1 << 48 | 1, 2 << 48 | 1
    for position, at_ms in ((first, 2000), (second, 1000)):
        come(route, position, at_ms)
        route.on(Completed([(position, position)]))
    back(route)
    for position, at_ms in ((first, 2000), (second, 1000)):
        effects = come(route, position, at_ms)
        assert Settle(position, position) in effects
        assert not handed_on(effects)


def test_what_was_completed_is_known_though_the_source_is_lost_in_the_next_opening_before_anything_came() -> None:
    route = running()
    come(route, 1)
    route.on(Completed([(1, 1)]))
    route.on(TargetFailed("away"))
    route.at(1.0)
    route.on(SourceOpened("ns"))
    route.on(TargetReady())
    back(route)
    assert Settle(1, 1) in come(route, 1)


def test_what_was_completed_again_is_known_after_another_loss() -> None:
    route = running()
    come(route, 1)
    route.on(Completed([(1, 1)]))
    for _ in range(2):
        back(route)
        route.at(route.now + RECENT_SECONDS)
        assert Settle(1, 1) in come(route, 1)


def test_what_came_last_may_be_older_than_what_was_completed() -> None:
    route = running()
    come(route, 2, 2000)
    come(route, 1, 1000)
    route.on(Completed([(1, 2)]))
    back(route)
    assert Settle(2, 2) in come(route, 2, 2000)


def test_a_message_that_does_not_report_when_it_was_enqueued_is_handed_on_again() -> None:
    route = running()
    route.arrive(1)
    route.on(Completed([(1, 1)]))
    back(route)
    assert handed_on(route.arrive(1)) == [1]


def test_a_message_that_was_only_handed_on_is_handed_on_again_in_the_next_opening() -> None:
    route = running()
    come(route, 1)
    route.on(SourceLost("gone"))
    route.on(TargetFailed("away"))
    route.at(1.0)
    route.on(SourceOpened("ns"))
    route.on(TargetReady())
    assert handed_on(come(route, 1)) == [1]


def test_a_message_that_the_sink_has_is_not_dead_lettered_because_a_plan_names_it() -> None:
    route = running()
    route.arrive(7)
    route.on(Planned(Plan(set_aside=7, deaths=2)))
    assert not of(Settle, route.arrive(7))
    route.on(Completed([(7, 7)]))
    assert (route.report.settled, route.report.moved, route.report.dead_lettered) == (1, 1, 0)


# ---- a rate that the operator has set


def test_a_rate_bounds_the_credit() -> None:
    route = Route(rate="20/s")
    effects, came = route.run(), 0
    for _ in range(5000):
        grants = of(Grant, effects)
        if grants:
            credit = grants[-1].credit  # type: ignore[union-attr]
            effects = route.arrive(*range(came + 1, came + credit + 1))
            effects += route.on(Completed([(came + 1, came + credit)]))
            came += credit
        elif route.now >= 30.0:
            break
        else:
            effects = route.at(min(30.0, route.lease.deadline(route.now)))
    assert route.now == 30.0
    assert 20 * 30 <= came <= 20 * 30 + 20
    assert (route.report.limit, route.report.limit_per_second) == ("20/s", 20.0)


def test_credit_is_taken_back_where_the_rate_falls_to_nothing() -> None:
    # Monotonic time begins at midnight UTC.
    route = running(rate="0/s 01:00-02:00, 1000/s")
    route.arrive(1)
    route.on(Completed([(1, 1)]))
    assert route.lease.deadline(route.now) <= 3600.0
    assert of(Drain, route.at(3600.0)) == [Drain()]
    assert not of(Grant, route.on(Drained()))
    assert route.report.limit == "0/s until 02:00 UTC"
    assert route.report.state is RouteState.RUNNING
    assert route.lease.deadline(route.now) == 7200.0
    route.at(7200.0)
    assert of(Grant, route.at(route.lease.deadline(route.now)))
    assert route.now < 7200.2


def test_a_rate_that_does_not_bind_and_one_that_is_paused_wake_no_thread() -> None:
    route = running(rate="100000/s")
    route.arrive(1)
    route.on(Completed([(1, 1)]))
    assert route.lease.deadline(route.now) == math.inf
    # The same where the rate binds, and the target takes nothing.
    route = running(rate="1/s")
    route.arrive(1)
    assert route.lease.deadline(route.now) == 1.0
    route.on(TargetPaused("away"))
    assert route.lease.deadline(route.now) == math.inf
    route.now = 5.0
    assert of(Grant, route.on(TargetResumed()))


def test_what_comes_while_credit_is_taken_back_does_not_stop_the_route_for_good() -> None:
    # Monotonic time begins at midnight UTC.
    for rate, goes_on_by in (("0/s 01:00-02:00, 1000/s", 7200.2), ("5/s 01:00-02:00, 1000/s", 3620.0)):
        route = running(rate=rate)
        route.arrive(1)
        route.on(Completed([(1, 1)]))
        assert of(Drain, route.at(3600.0)) == [Drain()]
        route.arrive(*range(2, 32))  # these were in transit: more than the new rate has to give
        assert not of(Grant, route.on(Drained()))
        route.on(Completed([(2, 31)]))
        effects: list[Effect] = []
        while not of(Grant, effects) and route.lease.deadline(route.now) < math.inf:
            effects = route.at(route.lease.deadline(route.now))
        assert of(Grant, effects), f"{rate}: nothing more is ever granted"
        assert route.now < goes_on_by


def test_an_idle_route_with_a_full_bucket_wakes_no_thread() -> None:
    for rate in ("10/s", "100/s", "1/s", "90/h"):
        route = running(rate=rate)
        route.arrive(1)
        route.on(Completed([(1, 1)]))
        wakes = 0
        while (due := route.lease.deadline(route.now)) < math.inf:
            route.at(max(due, route.now + 0.001))
            wakes += 1
            assert wakes < 50, rate


def test_i2_what_arrives_as_the_claim_ends_is_given_back() -> None:
    fence = Fence(True, 0.0)
    route = Route(fence=fence, claim="task")
    fence.answer(fence.ask(0.0), 15.0)
    route.run()
    route.arrive(1)
    route.now = fence.until
    effects = route.arrive(1, 2, 3)
    assert of(Release, effects) == [Release(2, 3), Release(1, 1)]
    assert effects.index(CloseSource()) > effects.index(Release(1, 1))
