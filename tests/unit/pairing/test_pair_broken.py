"""A pair that is broken on one machine while another one works on it, against members in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.fixture.pair_in_memory import Clockwork, FakeMember, session_in
from isthmus.errors import ConnectionLostError, IsthmusError
from isthmus.pairing.failover import failover
from isthmus.pairing.pair_error import PairBrokenError
from isthmus.pairing.pair_run import PairRun
from isthmus.pairing.pair_session import PairSession
from isthmus.pairing.state.state import PairState

START = PairState(pair="contoso", active="ewr", standby="jfk")
OPEN = [{"orders": "Active"}] * 2


def quietly(work: Callable[[], object]) -> str:
    """What it ended with."""
    try:
        work()
    except IsthmusError as error:
        return error.code
    return ""


def rounds(*sessions: PairSession) -> None:
    for _ in range(3):
        for each in sessions:
            quietly(PairRun(each)._round)


def machines(folder: Path, members: dict[str, FakeMember], *, is_fenced: bool) -> tuple[PairSession, PairSession]:
    """Two, each with a state folder of its own; after a fail-over, where a member is to be fenced."""
    made = []
    for name in ("here", "there"):
        (folder / name).mkdir(parents=True)
        made.append(session_in(folder / name, members))
        made[-1].file.save(START)
    here, there = made
    rounds(here, there)
    if is_fenced:
        here.fail_over(consume_ms=0, leaves=False)
        rounds(there, here)
    return here, there


@pytest.mark.parametrize("is_fenced", [False, True])
@pytest.mark.parametrize("verb", ["round", "sync", "failover"])
def test_whatever_another_machine_is_at_a_broken_pair_stays_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, is_fenced: bool
) -> None:
    """At each question to a member. It would close again what the end of the pair has opened, and write the pair to the members."""
    monkeypatch.setattr(failover.time, "sleep", lambda seconds: None)
    broken = at = 0
    while True:
        at += 1
        members = {alias: FakeMember(alias) for alias in ("ewr", "jfk")}
        here, there = machines(tmp_path / str(at), members, is_fenced=is_fenced)
        ended: list[str] = []
        clockwork = Clockwork(
            members, at, lambda session=here, reported=ended: reported.append(quietly(session.break_up))
        )  # type: ignore[misc]
        verbs = {
            "round": PairRun(there)._round,
            "sync": there.sync,
            "failover": lambda session=there: session.fail_over(consume_ms=0, leaves=False),
        }
        quietly(verbs[verb])
        if not clockwork.is_over():
            break
        if ended == ["superseded"] and verb == "failover":
            continue  # a fail-over is under way, and the pair is as it was
        assert ended == [""]
        broken += 1
        rounds(there)
        assert quietly(there.sync) == PairBrokenError.code
        assert ([each.statuses for each in members.values()], at) == (OPEN, at)
        assert [each.marker for each in members.values()] == [{}, {}]
        assert quietly(there.break_up) == ""
    assert broken > 5


@pytest.mark.parametrize("is_fenced", [False, True])
def test_a_round_elsewhere_while_a_pair_is_broken_leaves_nothing_closed(tmp_path: Path, is_fenced: bool) -> None:
    at = 0
    while True:
        at += 1
        members = {alias: FakeMember(alias) for alias in ("ewr", "jfk")}
        here, there = machines(tmp_path / str(at), members, is_fenced=is_fenced)
        clockwork = Clockwork(members, at, lambda session=there: quietly(PairRun(session)._round))  # type: ignore[misc]
        here.break_up()
        if not clockwork.is_over():
            break
        rounds(there)
        assert ([each.statuses for each in members.values()], at) == (OPEN, at)
        assert [each.marker for each in members.values()] == [{}, {}]
    assert at > 5


def test_a_member_that_lost_its_marker_is_notified_again(tmp_path: Path) -> None:
    """As where its namespace was restored: the other one still has the marker of the pair, or cannot be asked."""
    members = {alias: FakeMember(alias) for alias in ("ewr", "jfk")}
    here, _ = machines(tmp_path, members, is_fenced=True)
    members["ewr"].marker = {}
    here.sync()
    assert members["ewr"].marker == members["jfk"].marker == here.state().marker
    members["jfk"].marker, members["ewr"].is_away = {}, True
    with contextlib.suppress(ConnectionLostError):
        here.finish()
    assert members["jfk"].marker == here.state().marker
