"""isthmus.pairing.failover.wanted_status: which entities get which status in each phase."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.pairing.failover.wanted_status import to_close, to_give, to_open, to_stop, to_take
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.topology.pair.description import Description, EntityKind, kept


def entity(path: str, status: str = "Active", kind: EntityKind = "queue", **settings: Any) -> Description:
    names = tuple(path.replace("/Subscriptions", "").replace("/Rules", "").split("/"))
    return Description(kind=kind, names=names, settings={"status": status, **settings})


def reported(wanted: list[tuple[Description, str]]) -> dict[str, str]:
    return {each.path: status for each, status in wanted}


STATE = PairState(pair="contoso", active="ewr", standby="jfk", statuses={"Suspended": "SendDisabled"})
FENCED = STATE.with_fence("ewr", Fence.CLOSED)
RULE = entity("t/Subscriptions/s/Rules/r", kind="rule")


@pytest.mark.parametrize(
    ("status", "after"),
    [("Active", "SendDisabled"), ("ReceiveDisabled", "Disabled"), ("SendDisabled", ""), ("Disabled", "")],
)
def test_what_is_stopped_continues_to_give(status: str, after: str) -> None:
    """I1."""
    assert reported(to_stop([entity("q", status)])) == ({"q": after} if after else {})


def test_only_what_is_moved_is_opened_to_the_mover() -> None:
    entities = kept(
        [
            entity("shut", "Disabled"),
            entity("half", "ReceiveDisabled"),
            entity("gives", "SendDisabled"),
            entity("onward", "Disabled", forward_to="shut"),
            entity("other", "Disabled"),
        ]
    )
    paths = {"shut", "half", "gives", "onward"}
    assert reported(to_give(entities, paths)) == {"shut": "SendDisabled", "half": "SendDisabled"}


def test_what_is_moved_is_taken_and_not_given_to_receivers_yet() -> None:
    entities = kept(
        [
            entity("Orders", "Disabled"),
            entity("open", "Active"),
            entity("flights", "SendDisabled", "topic"),
            entity("x", "Disabled"),
        ]
    )
    assert reported(to_take(entities, ["orders", "open", "Flights"])) == {
        "Orders": "ReceiveDisabled",
        "flights": "Active",
    }


def test_each_kind_is_closed_in_its_way_and_rules_have_no_status() -> None:
    """I1."""
    entities = kept(
        [
            entity("q"),
            entity("t", kind="topic"),
            entity("t/Subscriptions/s", kind="subscription"),
            RULE,
            entity("shut", "Disabled"),
        ]
    )
    assert reported(to_close(entities)) == {
        "q": "Disabled",
        "t": "SendDisabled",
        "t/Subscriptions/s": "ReceiveDisabled",
    }


def test_a_fenced_member_is_opened_whole_but_for_what_was_suspended_before() -> None:
    found = [entity("q", "Disabled"), entity("suspended", "Disabled"), entity("open"), RULE]
    assert reported(to_open(FENCED, "ewr", found, ())) == {"q": "Active", "suspended": "SendDisabled"}


def test_a_member_that_was_not_fenced_keeps_statuses_of_its_own() -> None:
    """I2."""
    found = [entity("own", "Disabled"), entity("Suspended")]
    assert reported(to_open(STATE, "jfk", found, ())) == {"Suspended": "SendDisabled"}
    reopening = replace(STATE, phase=Phase.REOPENING)
    assert reported(to_open(reopening, "jfk", found, ())) == {"own": "Active", "Suspended": "SendDisabled"}


def test_what_was_stopped_to_be_deleted_has_its_status_again() -> None:
    state = STATE.with_stopped("jfk", {"going": "ReceiveDisabled"})
    assert reported(to_open(state, "jfk", [entity("going", "SendDisabled")], ())) == {"going": "ReceiveDisabled"}


def test_what_is_excluded_only_since_the_fence_is_opened() -> None:
    found = [entity("q", "Disabled"), entity("mine", "Disabled")]
    assert reported(to_open(FENCED, "ewr", found, ("q",))) == {"mine": "Active"}
    assert reported(to_open(replace(FENCED, spared=("mine",)), "ewr", found, ("q",))) == {"q": "Active"}
