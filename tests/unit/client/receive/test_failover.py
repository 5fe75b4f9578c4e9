"""Every decision of a failover receiver."""

from __future__ import annotations

import pytest

from isthmus.client.receive.failover import Failover, FailoverState, Read, Save, SwitchPublishers

A, B = "primary", "secondary"
PRIMARY, SECONDARY, PUBLISHERS, DRAINING = FailoverState


def tick(machine: Failover, now: float, unsettled: int = 0, is_caught_up: bool = True) -> list[object]:
    return list(machine.tick(now, local_unsettled=unsettled, is_caught_up=is_caught_up))


def test_it_begins_where_it_left_off() -> None:
    assert Failover().start(0) == [Read(A)]
    assert Failover(SECONDARY).start(0) == [Read(B), SwitchPublishers(B)]
    assert Failover(PUBLISHERS).start(0) == [Read(B), SwitchPublishers(A)]
    assert Failover(DRAINING).start(0) == [Read(B)]


def test_it_fails_over_after_the_time_without_an_answer_and_not_before() -> None:
    """F3."""
    machine = Failover(fail_over_after=10)
    machine.failed(A, 100)
    machine.failed(A, 105)
    assert tick(machine, 109.9) == []
    assert tick(machine, 110) == [Save(SECONDARY), Read(B), SwitchPublishers(B)]
    assert tick(machine, 111) == []


@pytest.mark.parametrize("sign", ["answer", "message"])
def test_any_answer_of_the_primary_begins_the_time_anew(sign: str) -> None:
    machine = Failover(fail_over_after=10)
    machine.failed(A, 100)
    if sign == "answer":
        machine.answered(A, 109)
    else:
        machine.arrived(is_local=False, now=109)
    assert tick(machine, 110) == []
    machine.failed(A, 112)
    assert tick(machine, 121) == []
    assert tick(machine, 122) == [Save(SECONDARY), Read(B), SwitchPublishers(B)]


def test_a_machine_that_is_moved_by_hand_moves_by_hand_alone() -> None:
    machine = Failover()
    machine.failed(A, 0)
    assert tick(machine, 1e6) == []
    assert machine.fail_over_requested() == [Save(SECONDARY), Read(B), SwitchPublishers(B)]
    assert machine.fail_over_requested() == []
    machine.answered(A, 1e6)
    assert tick(machine, 2e6) == []
    assert machine.changes == 1


def test_the_fail_back_is_publishers_drain_consumers() -> None:
    """F1, F2."""
    machine = Failover(SECONDARY, drain_seconds=5)
    assert machine.fail_back_requested() == [Save(PUBLISHERS), SwitchPublishers(A)]
    assert machine.fail_back_requested() == []
    assert tick(machine, 100) == []
    assert machine.published(A, 100) == [Save(DRAINING)]
    machine.arrived(is_local=True, now=103)
    assert tick(machine, 107) == []  # a message that was sent there came 4 s ago
    machine.arrived(is_local=False, now=107.5)  # a copy delays nothing
    assert tick(machine, 108, unsettled=1) == []
    assert tick(machine, 108, is_caught_up=False) == []
    assert tick(machine, 108) == [Save(PRIMARY), Read(A)]


def test_publishers_that_have_not_switched_keep_consumers_at_the_secondary() -> None:
    machine = Failover(SECONDARY)
    machine.fail_back_requested()
    assert machine.published(B, 1) == []
    assert tick(machine, 1e6) == []
    assert machine.state is PUBLISHERS


def test_the_fail_back_begins_by_itself_once_the_primary_has_answered_for_long_enough() -> None:
    machine = Failover(SECONDARY, fail_back_after=60)
    machine.answered(A, 0)
    machine.answered(A, 50)
    machine.failed(A, 55)
    machine.answered(A, 56)
    assert tick(machine, 115) == []
    assert tick(machine, 116) == [Save(PUBLISHERS), SwitchPublishers(A)]


@pytest.mark.parametrize("state", [PUBLISHERS, DRAINING])
def test_a_primary_that_fails_during_the_fail_back_ends_it(state: FailoverState) -> None:
    """F5."""
    machine = Failover(state)
    machine.start(0)
    assert machine.failed(A, 1) == [Save(SECONDARY), SwitchPublishers(B)]
    assert machine.state is SECONDARY


@pytest.mark.parametrize("state", [SECONDARY, PUBLISHERS, DRAINING])
def test_with_both_away_the_roles_stay(state: FailoverState) -> None:
    """F4."""
    machine = Failover(state, fail_over_after=1, fail_back_after=1)
    machine.start(0)
    assert machine.failed(B, 0) == []
    assert tick(machine, 1e6) == []
    assert machine.state is state


def test_a_secondary_that_does_not_answer_is_not_taken_for_drained() -> None:
    machine = Failover(DRAINING)
    machine.start(0)
    machine.failed(B, 1)
    assert tick(machine, 100) == []
    machine.answered(B, 101)
    assert tick(machine, 102) == [Save(PRIMARY), Read(A)]


@pytest.mark.parametrize("state", [SECONDARY, PUBLISHERS, DRAINING])
def test_the_fail_back_can_be_forced(state: FailoverState) -> None:
    machine = Failover(state)
    assert machine.fail_back_requested(at_once=True) == [SwitchPublishers(A), Save(PRIMARY), Read(A)]
    assert machine.fail_back_requested(at_once=True) == []


def test_a_script_sees_how_long_each_has_been_away() -> None:
    machine = Failover()
    machine.failed(A, 10)
    machine.answered(B, 10)
    view = machine.view(30)
    assert (view.state, view.primary_away_seconds, view.primary_back_seconds, view.secondary_away_seconds) == (
        PRIMARY, 20, 0, 0,
    )  # fmt: skip
