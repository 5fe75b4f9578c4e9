"""The state of a pair: the member behind the alias in each phase, and the stored form."""

from __future__ import annotations

import json

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.pairing.state.state import Fence, PairState, Phase

START = PairState(pair="contoso", active="ewr", standby="jfk")


def planned(state: PairState = START) -> list[PairState]:
    """A state for each phase of a planned fail-over, and the one after it."""
    states = [state.begin(1.0, statuses={"q": "Disabled"}, consume_ms=5, leaves=False)]
    while states[-1].phase is not Phase.OPENING:
        states.append(states[-1].advanced(2.0))
    return [*states, states[-1].switched(3.0)]


def test_the_alias_leads_to_one_member_or_none() -> None:
    """I1."""
    assert [(state.phase, state.leads_to) for state in planned()] == [
        (Phase.STOPPING, "ewr"),
        (Phase.CONSUMING, "ewr"),
        (Phase.MOVING, ""),
        (Phase.FENCING, ""),
        (Phase.OPENING, ""),
        (Phase.STEADY, "jfk"),
    ]


def test_what_was_active_is_fenced() -> None:
    """I2, I3."""
    after = planned()[-1]
    assert (after.active, after.standby, after.epoch) == ("jfk", "ewr", 2)
    assert (after.fence_of("ewr"), after.fence_of("jfk")) == (Fence.CLOSED, Fence.OPEN)
    forced = START.begin_forced(1.0)
    assert (forced.active, forced.epoch, forced.leads_to, forced.phase) == ("jfk", 2, "jfk", Phase.STEADY)
    assert forced.fence_of("ewr") is Fence.PENDING


def test_a_forced_fail_back_opens_before_it_leads() -> None:
    """I1."""
    state = planned()[-1].begin_forced(4.0)
    assert (state.phase, state.leads_to, state.active, state.epoch) == (Phase.OPENING, "", "jfk", 3)
    state = state.switched(5.0)
    assert (state.leads_to, state.fence_of("jfk")) == ("ewr", Fence.PENDING)


@pytest.mark.parametrize("number", range(3))
def test_a_planned_fail_over_can_be_given_up_until_it_fences(number: int) -> None:
    state = planned()[number].aborting(5.0)
    assert (state.phase, state.leads_to) == (Phase.REOPENING, "ewr")
    assert state.aborting(6.0) == state
    after = state.reopened(7.0)
    assert (after.phase, after.active, after.epoch) == (Phase.STEADY, "ewr", 2)


@pytest.mark.parametrize("number", [3, 4, 5])
def test_and_not_later(number: int) -> None:
    with pytest.raises(InvalidArgumentError, match="no fail-over to abort"):
        planned()[number].aborting(5.0)


def test_force_takes_over_from_every_phase() -> None:
    for state in planned()[:-1]:
        forced = state.begin_forced(9.0)
        if state.phase in (
            Phase.MOVING,
            Phase.FENCING,
            Phase.OPENING,
        ):  # they may have changed statuses of the new member
            assert (forced.phase, forced.leads_to) == (Phase.OPENING, "")
            forced = forced.switched(10.0)
        assert (forced.active, forced.epoch) == ("jfk", 3)


def test_a_second_one_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="in progress"):
        planned()[1].begin(1.0, statuses={}, consume_ms=0, leaves=False)


def test_it_is_the_same_after_json() -> None:
    for state in (START, *planned(), START.intending(["a"]).having_made(["a", "t/Subscriptions/s"])):
        assert PairState.from_dict(json.loads(json.dumps(state.to_dict()))) == state


def test_what_was_intended_counts_as_made() -> None:
    state = START.having_made(["Flights"]).intending(["flights/Subscriptions/S"])
    assert state.made_keys == {("flights",), ("flights", "s")}


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        {},
        {"version": 2},
        {**START.to_dict(), "phase": "x"},
        {**START.to_dict(), "epoch": None},
        {**START.to_dict(), "made": 5},
    ],
)
def test_anything_else_is_no_state(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        PairState.from_dict(wrong)


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.FENCING, Phase.OPENING])
def test_a_forced_one_to_the_member_that_a_planned_one_leads_to_does_without_the_old_one(phase: Phase) -> None:
    under_way = next(state for state in planned() if state.phase is phase)
    forced = under_way.begin_forced(9.0, under_way.standby)
    assert (forced.target, forced.is_forced) == (under_way.standby, True)
    assert forced.begin_forced(10.0, forced.target) == forced
    with pytest.raises(InvalidArgumentError, match="--abort leads back"):
        under_way.begin_forced(9.0, under_way.active)
