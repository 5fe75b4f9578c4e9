"""Fail-overs of one pair that two machines make, each with a state folder of its own, against members in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from harness.fixture.pair_in_memory import Clockwork, FakeMember, session_in
from isthmus.connectors.servicebus.administration.message_count import Counts
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.pairing.failover import failover
from isthmus.pairing.failover.moved import Moved
from isthmus.pairing.pair_error import PairBrokenError
from isthmus.pairing.pair_run import PairRun
from isthmus.pairing.pair_session import PairSession
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.pairing.state.state_file import NotPairedError, SupersededError
from isthmus.topology.pair.description import Description

# Each two of four settings have each pair of values in one of them.
EACH_PAIR_OF_VALUES = {
    (False, False, False, False),
    (False, True, True, True),
    (True, False, True, True),
    (True, True, False, True),
    (True, True, True, False),
}
START = PairState(pair="contoso", active="ewr", standby="jfk")


@pytest.fixture
def members() -> dict[str, FakeMember]:
    return {alias: FakeMember(alias) for alias in ("ewr", "jfk")}


@pytest.fixture
def session(tmp_path: Path, members: dict[str, FakeMember]) -> PairSession:
    made = session_in(tmp_path, members)
    made.file.save(START)
    return made


@pytest.fixture
def elsewhere(tmp_path: Path, members: dict[str, FakeMember]) -> PairSession:
    """The other machine."""
    (tmp_path / "elsewhere").mkdir()
    made = session_in(tmp_path / "elsewhere", members)
    made.file.save(START)
    return made


def rounds(*sessions: PairSession) -> None:
    """Three rounds of `pair run` at each machine."""
    for _ in range(3):
        for each in sessions:
            with contextlib.suppress(IsthmusError):
                PairRun(each)._round()


def view(session: PairSession) -> tuple[str, int, Phase, Fence]:
    state = session.state()
    return state.active, state.epoch, state.phase, state.fence_of(state.standby)


def test_the_new_member_reports_a_forced_fail_over_while_the_old_one_is_lost(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    """Otherwise an alias on another machine leads to the lost member until that answers."""
    members["ewr"].is_away = True
    session.force()
    with pytest.raises(ConnectionLostError):
        session.finish()
    rounds(elsewhere)
    assert view(session) == view(elsewhere) == ("jfk", 2, Phase.STEADY, Fence.PENDING)
    members["ewr"].is_away = False
    rounds(session, elsewhere)
    assert view(session) == view(elsewhere) == ("jfk", 2, Phase.STEADY, Fence.CLOSED)


def test_a_member_that_was_left_is_fenced_as_soon_as_it_answers_whether_the_new_one_does_or_not(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    members["ewr"].is_away = True
    session.force()
    with pytest.raises(ConnectionLostError):
        session.finish()
    members["ewr"].is_away, members["jfk"].is_away = False, True
    with pytest.raises(ConnectionLostError):
        session.finish()
    assert members["ewr"].statuses == {"orders": "Disabled"}
    assert session.state().fence_of("ewr") is Fence.CLOSED


def test_a_member_is_not_fenced_before_the_new_one_has_answered_once(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """It may be lost too, and the fail-over is given up."""
    members["jfk"].is_away = True
    session.force()
    with pytest.raises(ConnectionLostError):
        session.finish()
    assert members["ewr"].statuses == {"orders": "Active"}


@pytest.mark.parametrize("at", [Phase.STOPPING, Phase.CONSUMING, Phase.MOVING, Phase.FENCING, Phase.OPENING])
@pytest.mark.parametrize("is_settled", [False, True])
def test_i8_a_planned_fail_over_that_another_machine_has_forced_does_not_go_back(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember], at: Phase, is_settled: bool
) -> None:
    """Both members would be open, each the active one of an alias."""

    def note(text: str) -> None:
        if text.startswith(at) and elsewhere.state().epoch == 1:
            elsewhere.force()
            if is_settled:
                elsewhere.finish()

    with contextlib.suppress(SupersededError):
        session.fail_over(consume_ms=0, leaves=False, note=note)
    rounds(elsewhere, session, elsewhere)
    assert view(session)[0] == view(elsewhere)[0] == "jfk"
    assert session.state().epoch == elsewhere.state().epoch
    assert members["jfk"].statuses == {"orders": "Active"}
    assert members["ewr"].statuses == {"orders": "Disabled"}


@pytest.mark.parametrize("is_settled", [False, True])
def test_i8_one_that_would_go_back_continues_to_where_the_forced_one_leads(
    session: PairSession,
    elsewhere: PairSession,
    members: dict[str, FakeMember],
    monkeypatch: pytest.MonkeyPatch,
    is_settled: bool,
) -> None:
    """The forced one has closed what the planned one empties."""

    def move(state: PairState, entity: object) -> Moved:
        if elsewhere.state().epoch == 1:
            elsewhere.force()
            if is_settled:
                elsewhere.finish()
        return Moved(0, "it is disabled")

    members["ewr"].backlog = Counts(active=1)
    monkeypatch.setattr(session, "_move", move)
    monkeypatch.setattr(failover.time, "sleep", lambda seconds: None)
    with pytest.raises(IsthmusError) as reported:
        session.fail_over(consume_ms=0, leaves=False)
    assert isinstance(reported.value, SupersededError) or not is_settled
    rounds(elsewhere, session, elsewhere)
    assert view(session)[:3] == view(elsewhere)[:3] == ("jfk", 3, Phase.STEADY)
    assert members["jfk"].statuses == {"orders": "Active"}
    assert members["ewr"].statuses == {"orders": "Disabled"}


def test_i8_receivers_are_not_waited_for_once_it_is_overtaken(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(failover.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(failover.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    def counts(entities: Iterable[object]) -> Mapping[str, Counts]:
        if clock[0] > 10.0 and elsewhere.state().epoch == 1:
            elsewhere.force()
            elsewhere.finish()
        return {"orders": Counts(active=1)}

    monkeypatch.setattr(members["ewr"], "counts", counts)
    with pytest.raises(SupersededError):
        session.fail_over(consume_ms=3_600_000, leaves=False)
    assert clock[0] < 15.0
    assert view(session)[:3] == ("jfk", 3, Phase.STEADY)


def test_an_abort_does_not_open_what_another_machine_has_left(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    session.file.save(START.begin(1.0, statuses={}, consume_ms=0, leaves=False).advanced(1.0))
    for member in members.values():
        member.marker = session.state().marker
    elsewhere.force()
    elsewhere.finish()
    with pytest.raises(SupersededError):
        session.abort()
    assert view(session)[:3] == ("jfk", 3, Phase.STEADY)
    rounds(session, elsewhere)
    assert members["ewr"].statuses == {"orders": "Disabled"}


def test_i5_a_forced_fail_over_is_not_undone_by_what_its_machine_did_not_know(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    """There were two fail-overs while it was unavailable, there and back, and jfk is fenced."""
    for _ in range(2):
        session.fail_over(consume_ms=0, leaves=False)
    assert members["jfk"].statuses == {"orders": "Disabled"}
    members["ewr"].is_away = True
    assert elsewhere.force().epoch == 2
    with contextlib.suppress(ConnectionLostError):
        elsewhere.finish()
    assert view(elsewhere)[:3] == ("jfk", 4, Phase.STEADY)
    assert members["jfk"].statuses == {"orders": "Active"}
    members["ewr"].is_away = False
    rounds(session, elsewhere)
    assert view(session) == view(elsewhere) == ("jfk", 4, Phase.STEADY, Fence.CLOSED)
    assert members["ewr"].statuses == {"orders": "Disabled"}


def test_i5_a_forced_fail_over_that_others_have_made_too_is_theirs(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    session.file.save(replace(START, epoch=4))
    session.fail_over(consume_ms=0, leaves=False)
    assert elsewhere.force().epoch == 2
    assert elsewhere.finish().epoch == 5
    assert view(session) == view(elsewhere) == ("jfk", 5, Phase.STEADY, Fence.CLOSED)


def test_a_fence_of_fail_overs_that_were_not_seen_is_known(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    """There and back while a machine was unavailable. It would open the fenced member, and the other machine close it, for ever."""
    for _ in range(2):
        session.fail_over(consume_ms=0, leaves=False)
    rounds(elsewhere)
    assert view(elsewhere) == ("ewr", 3, Phase.STEADY, Fence.CLOSED)
    assert members["jfk"].statuses == {"orders": "Disabled"}


def test_a_pair_that_was_broken_on_another_machine_is_left_alone(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    """It would fence again what the end of the pair has opened, and be visible to an operator who pairs the members later."""
    session.fail_over(consume_ms=0, leaves=False)
    rounds(elsewhere)
    assert elsewhere.state().fence_of("ewr") is Fence.CLOSED
    session.break_up()
    for verb in (PairRun(elsewhere)._round, elsewhere.sync, lambda: elsewhere.fail_over(consume_ms=0, leaves=False)):
        with pytest.raises(PairBrokenError, match="isthmus pair break contoso"):
            verb()
    assert [member.marker for member in members.values()] == [{}, {}]
    assert [member.statuses for member in members.values()] == [{"orders": "Active"}] * 2
    elsewhere.break_up()
    with pytest.raises(NotPairedError):
        elsewhere.state()


def test_a_pair_is_not_taken_for_a_broken_one_before_the_members_are_notified(
    session: PairSession, members: dict[str, FakeMember]
) -> None:
    """As after a kill in its creation."""
    PairRun(session)._round()
    assert members["ewr"].marker == session.state().marker
    assert session.state().is_told
    members["ewr"].marker = members["jfk"].marker = {}
    members["jfk"].is_away = True  # it may have the marker of the pair
    with pytest.raises(ConnectionLostError):
        session.sync()


def test_a_state_that_is_older_than_what_the_members_say_is_known_as_such(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    rounds(elsewhere)
    assert elsewhere.keeper.outdated(elsewhere.state()) == ""

    def note(text: str) -> None:
        if text.startswith(Phase.CONSUMING):
            assert "makes a fail-over from ewr (epoch 2)" in elsewhere.keeper.outdated(elsewhere.state())

    session.fail_over(consume_ms=0, leaves=False, note=note)
    assert "the active member is jfk (epoch 2)" in elsewhere.keeper.outdated(elsewhere.state())
    assert session.keeper.outdated(session.state()) == ""
    members["ewr"].is_away = True
    assert "the active member is jfk (epoch 2)" in elsewhere.keeper.outdated(elsewhere.state())
    members["ewr"].is_away = False
    session.break_up()
    assert "it was broken" in elsewhere.keeper.outdated(elsewhere.state())


class Killed(BaseException):
    """The process was killed."""


@pytest.mark.parametrize(
    ("is_settled", "goes_back", "is_fenced", "is_killed"),
    [
        pytest.param(*each, marks=[] if each in EACH_PAIR_OF_VALUES else pytest.mark.soak)
        for each in product((False, True), repeat=4)
    ],
)
def test_i5_whenever_another_machine_forces_it_both_end_at_one_member(
    tmp_path: Path, is_settled: bool, goes_back: bool, is_fenced: bool, is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each question to a member in a planned fail-over, which continues, or is killed there and carried on."""
    monkeypatch.setattr(failover.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    members: dict[str, FakeMember] = {}
    machines: list[PairSession] = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        made = session_in(tmp_path / name, members)
        monkeypatch.setattr(made, "_move", lambda state, entity: Moved(0, "it is full"))
        machines.append(made)
    here, there = machines

    def force() -> None:
        there.force()
        if is_settled:
            with contextlib.suppress(IsthmusError):
                there.finish()
        if is_killed:
            raise Killed

    at = 0
    while True:
        at += 1
        members.update((alias, FakeMember(alias)) for alias in ("ewr", "jfk"))
        for each in machines:
            each.file.remove()
            each.file.save(START)
        if is_fenced:
            for _ in range(2):
                here.fail_over(consume_ms=0, leaves=False)
        rounds(here, there)
        members["ewr"].backlog = Counts(active=1) if goes_back else Counts()
        clockwork = Clockwork(members, at, force)
        with contextlib.suppress(IsthmusError, Killed):
            here.fail_over(consume_ms=0, leaves=False)
        if not clockwork.is_over():
            break
        rounds(there, here, there)
        members["ewr"].backlog = Counts()
        rounds(here, there)
        assert view(here)[:3] == view(there)[:3], at
        active, standby = here.state().active, here.state().standby
        assert here.state().leads_to == there.state().leads_to == active, at
        assert members[active].statuses == {"orders": "Active"}, at
        assert members[standby].statuses == {"orders": "Disabled"}, at
        assert members["ewr"].marker == members["jfk"].marker == here.state().marker, at
    assert at > 15


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("is_stale", [False, True])
def test_a_forced_fail_over_that_is_killed_anywhere_ends_where_it_leads(
    tmp_path: Path, is_fenced: bool, is_stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each question to a member, also on a machine that has missed two fail-overs; `pair run` carries it on."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    members: dict[str, FakeMember] = {}
    machines: list[PairSession] = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        machines.append(session_in(tmp_path / name, members))
    here, there = machines

    def kill() -> None:
        raise Killed

    at = 0
    while True:
        at += 1
        members.update((alias, FakeMember(alias)) for alias in ("ewr", "jfk"))
        for each in machines:
            each.file.remove()
            each.file.save(START)
        rounds(here, there)
        for _ in range(2 if is_fenced else 0):
            there.fail_over(consume_ms=0, leaves=False)
        if not is_stale:
            rounds(here)
        here.force()
        clockwork = Clockwork(members, at, kill)
        with contextlib.suppress(Killed):
            here.finish()
        if not clockwork.is_over():
            break
        rounds(here, there)
        assert view(here) == view(there) == ("jfk", here.state().epoch, Phase.STEADY, Fence.CLOSED), at
        assert here.state().leads_to == "jfk"
        assert members["jfk"].statuses == {"orders": "Active"}, at
        assert members["ewr"].statuses == {"orders": "Disabled"}, at
        assert members["ewr"].marker == members["jfk"].marker == here.state().marker, at
    assert at > 4


@pytest.mark.parametrize(
    ("goes_back", "is_fenced"),
    [
        (False, True),
        (True, False),
        pytest.param(False, False, marks=pytest.mark.soak),
        pytest.param(True, True, marks=pytest.mark.soak),
    ],
)
def test_a_planned_fail_over_that_is_killed_anywhere_ends_the_same_beside_a_run_elsewhere(
    tmp_path: Path, goes_back: bool, is_fenced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each question to a member; the other machine has rounds before it is carried on, and while it is."""
    monkeypatch.setattr(failover.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    members: dict[str, FakeMember] = {}
    machines: list[PairSession] = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        made = session_in(tmp_path / name, members)
        monkeypatch.setattr(made, "_move", lambda state, entity: Moved(0, "it is full"))
        machines.append(made)
    here, there = machines

    def kill() -> None:
        raise Killed

    at = 0
    while True:
        at += 1
        members.update((alias, FakeMember(alias)) for alias in ("ewr", "jfk"))
        for member in members.values():
            member.statuses["off"] = "ReceiveDisabled"
        for each in machines:
            each.file.remove()
            each.file.save(START)
        rounds(here, there)
        for _ in range(2 if is_fenced else 0):
            here.fail_over(consume_ms=0, leaves=False)
        rounds(here, there)
        members["ewr"].backlog = Counts(active=1) if goes_back else Counts()
        clockwork = Clockwork(members, at, kill)
        with contextlib.suppress(Killed, IsthmusError):
            here.fail_over(consume_ms=0, leaves=False)
        is_killed = clockwork.is_over()
        rounds(there, here, there)
        is_begun = here.state().epoch > (3 if is_fenced else 1)
        active, standby = ("jfk", "ewr") if is_begun and not goes_back else ("ewr", "jfk")
        assert view(here)[:3] == view(there)[:3] == (active, here.state().epoch, Phase.STEADY), at
        assert here.state().fence_of(standby) is there.state().fence_of(standby), at
        assert members[active].statuses == {"orders": "Active", "off": "ReceiveDisabled"}, at
        is_shut = is_fenced or active == "jfk"
        closed = dict.fromkeys(("orders", "off"), "Disabled")
        assert members[standby].statuses == (closed if is_shut else members[active].statuses), at
        assert members["ewr"].marker == members["jfk"].marker == here.state().marker, at
        if not is_killed:
            break
    assert at > 15


def test_a_fenced_member_that_is_forced_is_not_closed_again_by_a_round_elsewhere(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    """It opens the fenced member, which the run on another machine keeps fenced until it knows of the fail-over."""
    for each in members.values():
        each.statuses["late"] = "Active"
    session.fail_over(consume_ms=0, leaves=False)
    rounds(session, elsewhere)
    assert members["ewr"].statuses == {"orders": "Disabled", "late": "Disabled"}
    at = 0
    while True:
        at += 1
        clockwork = Clockwork(members, at, lambda: rounds(elsewhere))
        session.force()
        session.finish()
        active, standby = session.state().active, session.state().standby
        is_over = not clockwork.is_over()
        rounds(elsewhere, session)
        assert members[active].statuses == {"orders": "Active", "late": "Active"}, at
        assert members[standby].statuses == {"orders": "Disabled", "late": "Disabled"}, at
        if is_over:
            break
    assert at > 5


def test_a_process_that_hung_while_it_fenced_a_member_does_not_close_the_active_one(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile there was a fail back."""
    for each in members.values():
        each.statuses.update(late="Active", off="ReceiveDisabled")
    session.file.keep(replace(START, statuses={"off": "ReceiveDisabled"}))
    rounds(elsewhere)
    session.force()
    set_status = members["ewr"].set_status

    def hung(entity: Description, status: str) -> None:
        set_status(entity, status)
        monkeypatch.setattr(members["ewr"], "set_status", set_status)
        rounds(elsewhere)
        elsewhere.fail_over(consume_ms=0, leaves=False)

    monkeypatch.setattr(members["ewr"], "set_status", hung)
    with pytest.raises(SupersededError):
        session.finish()
    rounds(session, elsewhere)
    assert view(session) == view(elsewhere) == ("ewr", 3, Phase.STEADY, Fence.CLOSED)
    assert members["ewr"].statuses == {"orders": "Active", "late": "Active", "off": "ReceiveDisabled"}


@pytest.mark.parametrize("first", ["ewr", "jfk"])
def test_i5_of_two_that_are_forced_in_both_directions_at_once_each_machine_chooses_the_same(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember], first: str
) -> None:
    """Both were written to the member that they lead to before either was written to the other one."""
    for each, active, standby in ((session, "ewr", "jfk"), (elsewhere, "jfk", "ewr")):
        fences = {active: Fence.OPEN, standby: Fence.PENDING}
        state = replace(START, active=active, standby=standby, epoch=2, is_forced=True, is_told=True, fences=fences)
        each.file.keep(state)
        members[active].marker = state.marker
    rounds(*((session, elsewhere) if first == "ewr" else (elsewhere, session)))
    assert view(session)[:3] == view(elsewhere)[:3] == ("ewr", 2, Phase.STEADY)


def test_a_forced_fail_over_that_another_machine_has_made_is_not_given_up_here(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember]
) -> None:
    """The member that was active is fenced."""
    session.fail_over(consume_ms=0, leaves=False)
    rounds(session, elsewhere)
    session.force()
    elsewhere.force()
    elsewhere.finish()
    with pytest.raises(SupersededError):
        session.abort()
    rounds(session, elsewhere)
    assert view(session)[0] == view(elsewhere)[0] == "ewr"
    assert members["ewr"].statuses == {"orders": "Active"}


def test_a_second_machine_takes_the_roles_that_the_members_show_and_not_those_of_its_file(
    session: PairSession, elsewhere: PairSession, members: dict[str, FakeMember], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file names them in the reverse order."""
    session.file.remove()
    monkeypatch.setattr(session.keeper, "check_distinct", lambda pair: None)
    members["jfk"].marker = {"pair": "contoso", "epoch": 9, "active": "lhr", "standby": "jfk"}  # of another pair
    assert view(session.create() and session) == ("ewr", 1, Phase.STEADY, Fence.OPEN)
    elsewhere.file.remove()
    elsewhere.pair = replace(elsewhere.pair, primary="jfk", secondary="ewr")
    monkeypatch.setattr(elsewhere.keeper, "check_distinct", lambda pair: None)
    assert elsewhere.create().active == "ewr"
    assert members["ewr"].marker == members["jfk"].marker == START.marker
