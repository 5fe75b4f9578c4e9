import json
from collections.abc import Sequence
from typing import Any

import pytest

from isthmus.bridge.frame import Kind
from isthmus.bridge.host.channel import ChannelError
from isthmus.bridge.host.control.account import QueryAccount
from isthmus.bridge.host.control.effect import Add, Assign, Death, Effect, Grant, Plan, SendFrame
from isthmus.bridge.host.control.message import Died, Ended, Lease, Look, Report
from isthmus.bridge.report import RouteReport, RouteState
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.errors import InvalidArgumentError

END = End("memory", "here")


def route(name: str, **values: Any) -> RouteSpec:
    return RouteSpec(name=name, source=END, target=END, **values)


A, B = route("a", claim="claim-a"), route("b")
WIDE = route("wide", ordered=False, claim="claim-wide")


def account(*routes: RouteSpec) -> QueryAccount:
    made = QueryAccount("shared")
    if routes:
        assert made.assign(routes, 60.0) == []
    return made


def begin(query: QueryAccount, number: int, slot: int = 0, lease: int = 1, process: int = 0) -> list[Effect]:
    return query.on_message(number, Lease("shared", lease, slot, process or 100 + number), is_local=True)


def report(query: QueryAccount, number: int, asked: int = 0, **settled: int) -> list[Effect]:
    reported = {
        name: RouteReport(state=RouteState.RUNNING, settled=count, outstanding=1) for name, count in settled.items()
    }
    return query.on_message(number, Report(reported, asked))


def assigned(effects: Sequence[Effect]) -> list[str]:
    (assign,) = (effect for effect in effects if isinstance(effect, Assign))
    return [each.name for each in assign.routes]


def test_ordered_routes_go_to_slot_0_and_others_to_every_slot() -> None:
    query = account(A, B, WIDE)
    assert assigned(begin(query, 1)) == ["a", "b", "wide"]
    assert begin(query, 2, slot=1) == [Assign(2, (WIDE,), 60.0)]
    more = route("more", ordered=False)
    assert query.add(more) == [Add(1, more), Add(2, more)]
    assert query.add(route("c")) == [Add(1, route("c"))]
    assert query.plan("wide") == [Plan(1, "wide"), Plan(2, "wide")]
    assert query.plan("a") == [Plan(1, "a")]
    assert query.plan("unknown") == []


def test_i1_whoever_begins_late_gets_nothing_to_carry_and_is_asked_to_end() -> None:
    query = account(A)
    begin(query, 1)
    assert query.stop("the run ends") == [SendFrame(1, Kind.STOP, b"the run ends")]
    assert query.stop("the run ends") == []
    assert begin(query, 2) == [Assign(2, (), 60.0), SendFrame(2, Kind.STOP, b"the run ends")]
    assert query.add(B) == []
    (looked,) = query.on_message(3, Look("shared"))
    assert looked == SendFrame(3, Kind.LOOKED, b'{"stopping":true}')


def test_a_query_that_was_stopped_begins_again_when_it_is_assigned() -> None:
    query = account(A)
    query.stop("paused")
    assert query.assign([A, B], 30.0) == []
    assert begin(query, 1) == [Assign(1, (A, B), 30.0)]
    (looked,) = query.on_message(2, Look("shared"))
    assert looked == SendFrame(2, Kind.LOOKED, b'{"stopping":false}')


def test_i2_a_lease_that_begins_before_the_routes_are_known_is_answered_when_they_are() -> None:
    query = account()
    assert begin(query, 1) == []
    assert query.assign([A], 60.0) == [Assign(1, (A,), 60.0)]
    waiting = account()
    begin(waiting, 1)
    assert waiting.stop("no") == [Assign(1, (), 0.0), SendFrame(1, Kind.STOP, b"no")]
    added = account()
    begin(added, 1)
    assert added.add(A) == [Assign(1, (), 0.0), Add(1, A)]


def test_i3_a_lease_on_a_slot_asks_the_one_before_to_end() -> None:
    query = account(A, WIDE)
    begin(query, 1)
    begin(query, 2, slot=1)
    effects = begin(query, 3)
    assert isinstance(effects[0], SendFrame)
    assert (effects[0].reader, effects[0].kind) == (1, Kind.STOP)
    assert assigned(effects) == ["a", "wide"]
    assert query.add(B) == [Add(3, B)]
    query.on_stop_sent(1)
    assert query.on_closed(1) == []


def test_i4_a_death_counts_once_and_shows_what_was_reported_last() -> None:
    query = account(A, B)
    begin(query, 1)
    report(query, 1, a=3, b=4)
    query.on_message(1, Report({"b": RouteReport(state=RouteState.ENDED, settled=4)}))
    (death,) = query.on_message(1, Died(None))
    assert death == Death({"a": RouteReport(state=RouteState.RUNNING, settled=3, outstanding=1)})
    assert query.on_message(1, Died(None)) == []
    assert query.on_closed(1) == []
    begin(query, 2)
    report(query, 2, a=1)
    dead = RouteReport(state=RouteState.RUNNING, settled=4, outstanding=1)  # counts are those of all readers
    assert query.on_closed(2) == [Death({"a": dead, "b": RouteReport()})]
    assert query.reports()["a"].settled == 4


def test_i4_the_death_of_a_sink_is_of_the_routes_that_it_carried() -> None:
    query = account(A, B)
    begin(query, 1)
    report(query, 1, a=3, b=4)
    (death,) = query.on_message(1, Died(("b", "unheard of")))
    assert isinstance(death, Death)
    assert set(death.reports) == {"a", "b"}
    assert death.reports["a"] == RouteReport()


@pytest.mark.parametrize("end", ["ended", "asked to end", "cut off"])
def test_i4_what_ends_otherwise_killed_no_worker(end: str) -> None:
    query = account(A)
    begin(query, 1)
    report(query, 1, a=1)
    if end == "ended":
        query.on_message(1, Ended("its sink failed"))
    if end == "asked to end":
        query.stop("the run ends")
        query.on_stop_sent(1)
    assert query.on_closed(1, is_cut_off=end == "cut off") == []
    assert query.reports()["a"].settled == 1


def test_i4_who_dies_before_the_wish_to_end_was_sent_died() -> None:
    query = account(A)
    begin(query, 1)
    query.stop("the run ends")
    assert query.on_closed(1) == [Death({"a": RouteReport()})]


def test_i5_changes_reach_readers_in_their_order() -> None:
    query = account(A)
    begin(query, 1)
    effects = [
        *query.add(B),
        *query.remove("a", "moved"),
        *query.remove("a", "again"),
        *query.add(route("a", window=5)),
    ]
    assert [type(effect).__name__ for effect in effects] == ["Add", "SendFrame", "Add"]
    removed = effects[1]
    assert isinstance(removed, SendFrame)
    assert (removed.kind, json.loads(removed.payload)) == (Kind.REMOVE, {"name": "a", "why": "moved"})
    effects = query.assign([B, WIDE], 60.0)
    assert [type(effect).__name__ for effect in effects] == ["SendFrame", "Add"]
    assert assigned(begin(query, 2)) == ["b", "wide"]


def test_a_route_is_not_changed_under_way() -> None:
    query = account(A)
    assert query.add(A) == []
    with pytest.raises(InvalidArgumentError, match="remove it first"):
        query.add(route("a", window=5))
    with pytest.raises(InvalidArgumentError, match="remove it first"):
        query.assign([B, route("a", window=5)], 60.0)
    assert assigned(begin(query, 1)) == ["a"]
    with pytest.raises(InvalidArgumentError, match="one name"):
        query.assign([B, B], 60.0)


@pytest.mark.parametrize(
    "order", ["removed, dies", "dies, removed", "dies, removed, begins", "never reported", "stopped"]
)
def test_i6_a_route_that_was_removed_has_ended_whatever_became_of_its_reader(order: str) -> None:
    query = account(A, B)
    begin(query, 1)
    if order != "never reported":
        report(query, 1, a=1)
    if order.startswith("removed") or order == "never reported":
        query.remove("a", "moved")
        assert query.reports()["a"].state is not RouteState.ENDED
    if order == "stopped":
        query.stop("the run ends")
    query.on_closed(1)
    if order.startswith("dies"):
        assert query.reports()["a"].state is RouteState.RETRYING
        query.remove("a", "moved")
    if order.endswith("begins"):
        begin(query, 2)
    assert query.reports()["a"].state is RouteState.ENDED


def test_a_route_that_comes_back_has_not_ended_yet() -> None:
    query = account(A)
    begin(query, 1)
    query.remove("a", "moved")
    query.on_message(1, Report({"a": RouteReport(state=RouteState.ENDED, settled=3)}))
    assert query.reports()["a"].state is RouteState.ENDED
    query.add(A)
    assert query.reports()["a"] == RouteReport(settled=3)
    query.remove("a", "at once")
    assert query.reports()["a"].state is RouteState.OPENING, "its reader has yet to say so"


def test_a_lease_that_failed_is_reported_as_the_error_of_its_routes() -> None:
    query = account(A)
    begin(query, 1)
    report(query, 1, a=1)
    query.on_message(1, Ended("the sink is gone"))
    query.on_closed(1)
    assert query.reports()["a"] == RouteReport(state=RouteState.RETRYING, settled=1, error="the sink is gone")


def test_i7_an_answer_names_the_claims_of_all_that_a_reader_ever_carried() -> None:
    query = account(A, B, WIDE)
    begin(query, 1)
    begin(query, 2, slot=1)
    query.remove("a", "gone")
    query.add(route("a", claim="claim-new"))
    assert report(query, 1, asked=7) == [Grant(1, 7, ("claim-a", "claim-wide", "claim-new"))]
    assert report(query, 2, asked=1) == [Grant(2, 1, ("claim-wide",))]
    assert report(query, 2) == []


def test_a_query_is_busy_while_a_lease_is_under_way() -> None:
    query = account(A)
    assert (query.has_been_met, query.is_busy()) == (False, False)
    query.on_message(1, Look("shared"))
    assert (query.has_been_met, query.is_busy()) == (True, False)
    begin(query, 2)
    query.on_message(2, Report({}, processes=(7, 8)))
    assert query.is_busy()
    assert query.processes() == {102, 7, 8}
    query.on_message(2, Ended("its sink failed"))
    assert (query.is_busy(), query.processes(), list(query.errors)) == (False, set(), ["its sink failed"])
    begin(query, 3)
    query.on_message(4, Lease("shared", 1, 1, 55), is_local=False)
    assert query.processes() == {103}, "a process of another machine is not one of this"
    query.on_closed(3)
    query.on_closed(4)
    assert not query.is_busy()


def test_what_has_no_place_is_refused() -> None:
    query = account(A)
    for message in (Report(), Died(None), Ended("")):
        with pytest.raises(ChannelError):
            query.on_message(1, message)
    begin(query, 1)
    with pytest.raises(ChannelError):
        begin(query, 1)


# ---- slots


class Slots:
    """A query of two slots, whose readers settle at steady rates."""

    def __init__(self, *routes: RouteSpec, **rates: int) -> None:
        self.query = account(*routes)
        self.now = 1000.0
        self.rates = rates
        self.reported: list[Effect] = []

    def begin(self, number: int, slot: int, lease: int = 1) -> list[Effect]:
        message = Lease("shared", lease, slot, 100 + number, 2)
        return self.query.on_message(number, message, is_local=True, now=self.now)

    def report_states(self, number: int, **states: RouteState) -> list[Effect]:
        reported = {
            name: RouteReport(state=state, settled=int(self.rates.get(name, 0) * (self.now - 900)), outstanding=1)
            for name, state in states.items()
        }
        return self.query.on_message(number, Report(reported), now=self.now)

    def run_until_told(self, carried: dict[int, str]) -> list[Effect]:
        """The readers report once a second until one gets a message; for two minutes at most."""
        for _ in range(120):
            self.now += 1
            for number, names in carried.items():
                effects = self.report_states(number, **dict.fromkeys(names, RouteState.RUNNING))
                if effects:
                    return effects
        return []


BUSY = tuple(route(name) for name in "abcd")


def test_ordered_routes_are_spread_over_the_slots() -> None:
    slots = Slots(*BUSY, WIDE)
    assert assigned(slots.begin(1, 0)) == ["a", "c", "wide"]
    assert assigned(slots.begin(2, 1)) == ["b", "d", "wide"]
    assert slots.query.add(route("e")) == [Add(1, route("e"))]


def test_a_route_that_no_two_readers_may_share_has_one_slot_though_its_order_is_not_kept() -> None:
    log = route("log", ordered=False, competing=False)
    slots = Slots(log)
    assert assigned(slots.begin(1, 0)) == ["log"]
    assert assigned(slots.begin(2, 1)) == []


def test_i8_a_route_begins_at_its_new_slot_only_after_the_reader_before_has_ended_it() -> None:
    slots = Slots(*BUSY, a=3000, c=3000)
    slots.begin(1, 0)
    slots.begin(2, 1)
    (reported,) = slots.run_until_told({1: "ac", 2: "bd"})
    assert isinstance(reported, SendFrame)
    assert (reported.reader, reported.kind, json.loads(reported.payload)["name"]) == (1, Kind.REMOVE, "a")
    before = slots.query.reports()["a"]
    assert slots.report_states(1, a=RouteState.ENDING) == []
    assert slots.report_states(1, a=RouteState.ENDED) == [Add(2, BUSY[0])]
    after = slots.query.reports()["a"]
    assert (after.state, after.settled) == (RouteState.OPENING, before.settled)
    slots.report_states(1, a=RouteState.ENDED)  # sent again at the end of its lease
    assert slots.query.reports()["a"].state is RouteState.OPENING
    slots.query.on_message(2, Report({"a": RouteReport(state=RouteState.RUNNING, settled=5)}), now=slots.now)
    moved = slots.query.reports()["a"]
    assert (moved.state, moved.settled) == (RouteState.RUNNING, before.settled + 5)
    assert slots.query.plan("a") == [Plan(2, "a")]
    (removed,) = slots.query.remove("a", "it is paused")
    assert isinstance(removed, SendFrame)
    assert removed.reader == 2


def test_a_route_that_was_removed_moves_no_other_route() -> None:
    """Its former rate does not count for its slot any more: the routes that are left stay apart, and new ones go to either slot."""
    slots = Slots(*BUSY, a=6000, b=1000, c=1000, d=6000)
    slots.begin(1, 0)
    slots.begin(2, 1)
    assert slots.run_until_told({1: "ac", 2: "bd"}) == []
    slots.query.remove("a", "it has a query of its own")
    slots.report_states(1, a=RouteState.ENDED)
    slots.rates["d"] = 0
    assert slots.query.remove("d", "it begins again")
    slots.report_states(2, d=RouteState.ENDED)
    assert slots.query.add(BUSY[3]) == [Add(2, BUSY[3])]
    assert slots.run_until_told({1: "c", 2: "bd"}) == []
    assert slots.query.add(route("e")) == [Add(1, route("e"))]


def test_i8_a_reader_that_dies_with_a_route_in_transit_releases_it() -> None:
    slots = Slots(*BUSY, a=3000, c=3000)
    slots.begin(1, 0)
    slots.begin(2, 1)
    slots.run_until_told({1: "ac", 2: "bd"})
    effects = slots.query.on_closed(1, now=slots.now)
    assert Add(2, BUSY[0]) in effects
    assert assigned(slots.begin(3, 0)) == ["c"]


def test_i8_a_route_that_is_removed_in_transit_begins_nowhere() -> None:
    slots = Slots(*BUSY, a=3000, c=3000)
    slots.begin(1, 0)
    slots.begin(2, 1)
    slots.run_until_told({1: "ac", 2: "bd"})
    slots.query.remove("a", "it is paused")
    assert slots.query.reports()["a"].state is not RouteState.ENDED
    assert slots.report_states(1, a=RouteState.ENDED) == []
    assert slots.query.reports()["a"].state is RouteState.ENDED
    assert slots.query.add(BUSY[0]) == [Add(2, BUSY[0])]


def test_i8_a_lease_that_begins_while_a_route_moves_does_not_begin_it() -> None:
    slots = Slots(*BUSY, a=3000, c=3000)
    slots.begin(1, 0)
    slots.begin(2, 1)
    slots.run_until_told({1: "ac", 2: "bd"})
    assert assigned(slots.begin(3, 1)) == ["b", "d"]
    assert slots.report_states(1, a=RouteState.ENDED) == [Add(3, BUSY[0])]


def test_routes_of_a_slot_that_gets_no_task_are_carried_by_the_others() -> None:
    slots = Slots(*BUSY)
    assert assigned(slots.begin(1, 0)) == ["a", "c"]
    assert slots.run_until_told({1: "ac"}) == [Add(1, BUSY[1]), Add(1, BUSY[3])]
    assert assigned(slots.begin(2, 1)) == []


def test_i9_the_other_slots_end_with_one_that_died_and_are_no_deaths() -> None:
    slots = Slots(*BUSY)
    slots.begin(1, 0)
    slots.begin(2, 1)
    slots.report_states(1, a=RouteState.RUNNING)
    slots.report_states(2, b=RouteState.RUNNING)
    (death,) = slots.query.on_closed(1, now=slots.now)
    assert isinstance(death, Death)
    assert set(death.reports) == {"a", "c"}, "what the reader that died carried"
    assert slots.query.on_closed(2, now=slots.now + 3) == []
    slots.begin(3, 0, lease=2)
    slots.begin(4, 1, lease=2)
    assert len(slots.query.on_closed(4, now=slots.now + 4)) == 1, "a death of the lease after"


def slot_of(query: QueryAccount, number: int, slot: int) -> list[Effect]:
    return query.on_message(number, Lease("shared", 1, slot, 100 + number, 2), is_local=True)


def test_i6_a_route_that_was_never_carried_has_ended_when_it_is_removed() -> None:
    query = account(A, B)
    slot_of(query, 1, 0)  # the other slot has no reader: b waits for one
    assert query.is_busy()
    assert query.remove("b", "paused") == []
    assert query.reports()["b"].state is RouteState.ENDED
    assert query.add(B) == []
    assert query.reports()["b"].state is RouteState.OPENING
    query.remove("b", "paused")
    slot_of(query, 2, 1)
    assert query.add(B) == [Add(2, B)]
    assert query.reports()["b"].state is RouteState.OPENING


def test_i6_a_route_in_transit_to_a_slot_without_a_reader_has_ended_when_it_is_removed() -> None:
    query = account(A, B)
    slot_of(query, 1, 0)
    slot_of(query, 2, 1)
    report(query, 1, a=5)
    assert [effect.kind for effect in query.move("a", 1) if isinstance(effect, SendFrame)] == [Kind.REMOVE]
    query.on_closed(2)
    query.on_message(1, Report({"a": RouteReport(state=RouteState.ENDED, settled=5, moved=5)}))
    assert query.remove("a", "paused") == []
    reported = query.reports()["a"]
    assert (reported.state, reported.settled) == (RouteState.ENDED, 5)
