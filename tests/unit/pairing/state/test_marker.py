"""isthmus.pairing.state.marker: markers of other processes' fail-overs, and their effects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.pairing.state.marker import follow, insist, is_behind, is_later, is_overtaken, take_over
from isthmus.pairing.state.state import Fence, PairState, Phase

START = PairState(pair="contoso", active="ewr", standby="jfk", is_told=True)
FORCED = START.begin_forced(1.0)
PLANNED = START.begin(1.0, statuses={"q": "Disabled"}, consume_ms=5, leaves=False)
MOVING = PLANNED.advanced(2.0).advanced(2.0)


def test_a_newer_marker_is_followed_and_an_older_one_is_not() -> None:
    followed = follow(START, FORCED.marker, 2.0)
    assert (followed.active, followed.epoch, followed.fence_of("ewr")) == ("jfk", 2, Fence.PENDING)
    assert follow(followed, START.marker, 3.0) is followed


@pytest.mark.parametrize("marker", [{}, {"epoch": 9, "active": "lga"}, {"epoch": "9", "active": "jfk"}])
def test_what_is_not_of_these_members_shows_nothing(marker: dict[str, Any]) -> None:
    assert follow(START, marker, 3.0) is START
    assert take_over(MOVING, marker, 3.0) is MOVING
    assert insist(FORCED, marker, 3.0) is FORCED
    assert not is_overtaken(START, marker)
    assert not is_behind(START, marker, 3.0)
    assert not is_later(START, marker)


def test_a_fail_over_of_ones_own_follows_none() -> None:
    assert follow(MOVING, {**FORCED.marker, "epoch": 9}, 3.0) is MOVING


def test_of_two_forced_at_the_same_time_every_process_chooses_the_same() -> None:
    """I2."""
    here = replace(FORCED, is_told=True)
    elsewhere = replace(here, active="ewr", standby="jfk")
    assert follow(here, elsewhere.marker, 3.0).active == "ewr"
    assert follow(elsewhere, here.marker, 3.0) is elsewhere


def test_a_later_one_that_is_under_way_overtakes() -> None:
    assert is_overtaken(START, PLANNED.marker)
    assert is_behind(START, PLANNED.marker, 3.0)
    assert not is_overtaken(PLANNED, PLANNED.marker)


@pytest.mark.parametrize(
    ("active", "phase", "is_forced"), [("ewr", Phase.REOPENING, False), ("jfk", Phase.OPENING, True)]
)
def test_a_planned_one_ends_where_a_later_one_leads(active: str, phase: Phase, is_forced: bool) -> None:
    """I1."""
    other = "jfk" if active == "ewr" else "ewr"
    marker = {"pair": "contoso", "epoch": 7, "active": active, "standby": other}
    after = take_over(MOVING, marker, 3.0)
    assert (after.epoch, after.phase, after.is_forced, after.is_told) == (7, phase, is_forced, True)
    assert take_over(MOVING, {**marker, "under_way": True}, 3.0) is MOVING


def test_one_of_the_same_epoch_that_left_things_as_they_were_makes_a_planned_one_later() -> None:
    """I1."""
    marker = {**START.marker, "epoch": MOVING.epoch}
    assert (take_over(MOVING, marker, 3.0).epoch, take_over(MOVING, marker, 3.0).phase) == (3, Phase.MOVING)
    opening = MOVING.advanced(2.0).advanced(2.0)
    assert take_over(opening, marker, 3.0).phase is Phase.REOPENING


def test_a_forced_one_becomes_later_than_what_the_new_member_shows() -> None:
    """I1."""
    reported = {"pair": "contoso", "epoch": 5, "active": "ewr", "standby": "jfk"}
    after = insist(FORCED, reported, 3.0)
    assert (after.epoch, after.phase, after.target, after.fence_of("jfk")) == (6, Phase.OPENING, "jfk", Fence.PENDING)
    assert insist(FORCED, START.marker, 3.0) is FORCED
    assert insist(FORCED, FORCED.marker, 3.0) is FORCED


def test_a_forced_one_beside_a_planned_one_of_the_same_epoch() -> None:
    beside = insist(FORCED, PLANNED.marker, 3.0)
    assert (beside.epoch, beside.active, beside.phase) == (3, "jfk", Phase.STEADY), "nothing has to be opened"
    suspended = insist(replace(FORCED, statuses={"q": "Disabled"}), PLANNED.marker, 3.0)
    assert (suspended.epoch, suspended.phase, suspended.fence_of("jfk")) == (3, Phase.OPENING, Fence.OPEN)


def test_another_process_has_made_the_forced_one_already() -> None:
    """With the same target: it is not made again."""
    after = insist(FORCED, {**FORCED.marker, "epoch": 9}, 3.0)
    assert (after.epoch, after.active, after.is_told, after.phase) == (9, "jfk", True, Phase.STEADY)


def test_one_that_leads_elsewhere_is_later_also_with_the_same_epoch() -> None:
    reported = {"epoch": FORCED.epoch, "active": "ewr"}
    assert is_later(FORCED, reported)
    assert not is_later(FORCED, {**reported, "under_way": True})
    assert not is_later(FORCED, FORCED.marker)
    opening = MOVING.advanced(2.0).advanced(2.0)
    assert not is_later(opening, {"epoch": opening.epoch, "active": "jfk"}), "its own marker tells the new member"
