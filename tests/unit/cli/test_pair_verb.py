"""`isthmus pair` and `isthmus run` with files that lack the declarations they need, and the output of a forced fail-over."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import pytest

from harness.fixture.pair_in_memory import FakeMember, session_in
from isthmus.cli import pair
from isthmus.cli.app import main
from isthmus.connectors.administration import NamespaceUnreachableError
from isthmus.errors import ConnectionLostError
from isthmus.pairing.alias.proxy import AliasProxy, Lead
from isthmus.pairing.pair_error import StoppingError
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.pairing.state.state_file import StateFile
from isthmus.topology.file.name import state_folder
from isthmus.topology.pair.difference import Step

PAIRS = """\
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
pairs:
  contoso: {primary: ewr, secondary: jfk}
"""


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["run"], "has no tasks; write tasks:, or use isthmus pair run for its pairs"),
        (["pair", "status", "acme"], "declares no pair 'acme'; it has: contoso"),
        (["pair", "failover", "contoso", "--consume-for", "soon"], "--consume-for is 'soon', which is not a duration"),
        (["pair", "failover", "contoso", "--force", "--abort"], "--force and --abort contradict each other"),
        (["pair", "failover", "contoso", "--to", "jfk"], "--to goes with --force"),
        (["pair", "failover", "contoso", "--force", "--to", "lga"], "has no member 'lga'; write ewr or jfk"),
    ],
)
def test_bad_input_is_reported(
    arguments: list[str],
    reported: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("isthmus.yaml").write_text(PAIRS)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert reported in capsys.readouterr().err


class Session:
    """A session of a pair whose members answer no request; `then` is what of the fail-over is done before that is known."""

    def __init__(self, state: PairState, then: Any) -> None:
        self.pair = SimpleNamespace(primary="ewr", secondary="jfk")
        self._state, self._then = state, then

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def state(self) -> PairState:
        return self._state

    def force(self, to: str) -> PairState:
        self._state = self._state.begin_forced(1.0, to)
        return self._state

    def finish(self, note: Any) -> PairState:
        self._state = self._then(self._state)
        raise ConnectionLostError("gone")


@pytest.mark.parametrize(
    ("fence", "then", "code", "active"),
    [
        (Fence.OPEN, lambda state: state, 0, "jfk"),  # the old member is lost: that is what it is for
        (Fence.CLOSED, lambda state: state, 1, "ewr"),  # the new one is, and no member is active
        (Fence.CLOSED, lambda state: state.switched(2.0), 0, "jfk"),  # the new one is open, the old one lost
    ],
)
def test_a_forced_fail_over_shows_what_has_become_of_it(
    fence: Fence,
    then: Any,
    code: int,
    active: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def ran(*more: str) -> tuple[int, str, str]:
        session = Session(PairState(pair="contoso", active="ewr", standby="jfk", fences={"jfk": fence}), then)
        monkeypatch.setattr(pair, "_session", lambda *_: session)
        with pytest.raises(SystemExit) as ended:
            main(["pair", "failover", "contoso", "--force", *more])
        return int(ended.value.code or 0), *capsys.readouterr()

    found, out, _ = ran("--json")
    reported = json.loads(out)
    assert (found, reported["active"], reported["pending"]) == (code, active, "gone")
    assert (reported["leads_to"] == "jfk") is not bool(code)
    found, out, _ = ran()
    assert found == code
    assert ("jfk is active." in out) is not bool(code)
    assert ("ewr is not fenced yet" in out) is not bool(code)
    assert ("jfk is not open yet: gone" in out) is bool(code)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_a_forced_fail_over_that_shows_the_active_member(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator who runs it again because it printed nothing switches back."""

    class Hanging(Session):
        def finish(self, note: Any) -> PairState:
            signal.raise_signal(number)
            raise AssertionError("it is interrupted")

    session = Hanging(PairState(pair="contoso", active="ewr", standby="jfk"), None)
    monkeypatch.setattr(pair, "_session", lambda *_: session)
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso", "--force", "--json"])
    reported = json.loads(capsys.readouterr().out)
    assert (ended.value.code, reported["active"], reported["pending"]) == (130, "jfk", "interrupted")


@pytest.mark.parametrize("options", [[], ["--force"]])
def test_a_fail_over_whose_output_is_closed_is_made(options: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a connection of ssh is lost, which is likely then: no application could send to either member. A script that repeated it as a failed one
    would switch back.
    """
    done: list[str] = []

    class Noting(Session):
        def finish(self, note: Callable[[str], None]) -> PairState:
            for text in ("opening", "open"):
                note(text)
                done.append(text)
            return self._state

        def fail_over(self, *, note: Callable[[str], None], **_: object) -> tuple[PairState, Any]:
            nothing: dict[str, int] = {}
            work = SimpleNamespace(
                moved=0, moved_dead=0, left=nothing, left_dead=nothing, left_deferred=nothing, refused=nothing
            )
            return self.finish(note), work

    reading, writing = os.pipe()
    os.close(reading)
    session = Noting(PairState(pair="contoso", active="ewr", standby="jfk"), None)
    monkeypatch.setattr(pair, "_session", lambda *_: session)
    closed = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", closed)
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso", *options])
    with suppress(BrokenPipeError):
        closed.close()
    assert (ended.value.code or 0, done) == (0, ["opening", "open"])


@pytest.mark.parametrize("options", [[], ["--force"], ["--abort"]])
def test_a_fail_over_outlives_its_terminal(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As that of a connection of ssh that is lost: no application could send to either member until somebody continued it."""

    class Closing(Session):
        is_stopping: Callable[[], bool] = staticmethod(lambda: False)

        def finish(self, note: Any = None) -> PairState:
            assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL, "it would be killed"
            signal.raise_signal(signal.SIGHUP)
            assert not self.is_stopping()
            return self._state

        def abort(self, note: Any) -> PairState:
            return self.finish()

        def waiting_at(self, alias: str) -> dict[str, int]:
            return {}

        def fail_over(self, **_: object) -> tuple[PairState, Any]:
            nothing: dict[str, int] = {}
            counts = {"left": nothing, "left_dead": nothing, "left_deferred": nothing, "refused": nothing}
            return self.finish(), SimpleNamespace(moved=0, moved_dead=0, **counts)

    session = Closing(PairState(pair="contoso", active="ewr", standby="jfk"), None)
    monkeypatch.setattr(pair, "_session", lambda *_: session)
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso", *options])
    assert not ended.value.code, capsys.readouterr()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_forced_fail_over_to_a_member_leads_there_where_this_machine_had_missed_another_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its own state the member is active already; by the namespaces, which are read after that, it is not."""

    missed = [PairState(pair="contoso", active="ewr", standby="jfk", epoch=7)]

    class Behind(Session):
        def finish(self, note: Any) -> PairState:
            self._state = missed.pop() if missed else self._state
            return self._state

    session = Behind(PairState(pair="contoso", active="jfk", standby="ewr"), None)
    monkeypatch.setattr(pair, "_session", lambda *_: session)
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso", "--force", "--to", "jfk", "--json"])
    reported = json.loads(capsys.readouterr().out)
    assert (ended.value.code or 0, reported["active"], reported["epoch"]) == (0, "jfk", 8)


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_ends_a_planned_fail_over_where_it_can_be_carried_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Moving(Session):
        is_stopping: Callable[[], bool]

        def fail_over(self, **_: Any) -> None:
            signal.raise_signal(signal.SIGINT)
            assert self.is_stopping()
            raise StoppingError("contoso")

    session = Moving(PairState(pair="contoso", active="ewr", standby="jfk"), None)
    monkeypatch.setattr(pair, "_session", lambda *_: session)
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso", "--json"])
    assert ended.value.code == 130
    out, err = capsys.readouterr()
    reported = json.loads(out)
    assert (reported["active"], reported["error"]["code"]) == ("ewr", "pair-stopping")
    assert "isthmus pair run or failover continues it" in err


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("verb", ["create", "sync"])
def test_ctrl_c_ends_a_round_between_two_changes_and_shows_what_was_made(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    members = {alias: FakeMember(alias) for alias in ("ewr", "jfk")}
    members["ewr"].statuses, members["jfk"].statuses = {"bags": "Active", "orders": "Active"}, {}
    made: list[str] = []

    def make(step: Step, *, with_messages: bool = False) -> None:
        made.append(step.entity.path)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(members["jfk"], "make", make)
    for more in (["--json"], []):
        session = session_in(tmp_path, members)
        session.create()
        monkeypatch.setattr(pair, "_session", lambda *_, session=session: session)
        with pytest.raises(SystemExit) as ended:
            main(["pair", verb, "contoso", *more])
        assert ended.value.code == 130
    as_json, _, text = capsys.readouterr().out.partition("\n")
    reported = json.loads(as_json)
    assert made == ["bags", "bags"]
    assert (reported["in_step"], reported["done"], reported["pending"]) == (False, ["+ queue bags"], ["+ queue orders"])
    assert "interrupted, 1 changes are left; run it again" in text


def test_dead_letters_that_were_moved_are_reported_where_the_fail_over_is_given_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They do not count as messages that wait."""

    class Aborting(Session):
        def abort(self, note: Any) -> PairState:
            return self._state

        def waiting_at(self, alias: str) -> dict[str, int]:
            return {}

    state = PairState(pair="contoso", active="ewr", standby="jfk", moved_dead=4)
    monkeypatch.setattr(pair, "_session", lambda *_: Aborting(state, None))
    for more in (["--json"], []):
        with pytest.raises(SystemExit):
            main(["pair", "failover", "contoso", "--abort", *more])
    as_json, _, text = capsys.readouterr().out.partition("\n")
    assert json.loads(as_json)["moved_dead_letters"] == 4
    assert "Dead letters that were moved to jfk, and stay there: 4." in " ".join(text.split())


class AtRest:
    """A session of a pair in step, whose fenced standby member holds something."""

    pair = SimpleNamespace(listen="")
    members: ClassVar = {alias: SimpleNamespace(endpoint=f"{alias}.test") for alias in ("ewr", "jfk")}
    away = "jfk"
    keeper = SimpleNamespace(
        compare=lambda state: SimpleNamespace(drift=SimpleNamespace(steps=(), conflicts=(), foreign=())),
        left_behind=lambda state: {"orders": {"active": 3, "dead": 0}},
        outdated=lambda state: "",
    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def state(self) -> PairState:
        return PairState(pair="contoso", active="jfk", standby="ewr", fences={"ewr": Fence.CLOSED})

    def fail_over(self, **_: Any) -> Any:
        raise NamespaceUnreachableError(f"{self.away}.test", "gone", "check host, port and network")


def test_status_shows_what_a_fenced_member_holds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pair, "_session", lambda *_: AtRest())
    for more in (["--json"], []):
        with pytest.raises(SystemExit) as ended:
            main(["pair", "status", "contoso", *more])
        assert not ended.value.code
    as_json, _, text = capsys.readouterr().out.partition("\n")
    assert json.loads(as_json)["left_behind"] == {"orders": {"active": 3, "dead": 0}}
    assert "At ewr, which is fenced" in text
    assert "orders: 3 active" in text


@pytest.mark.parametrize("away", ["jfk", "ewr"])
def test_a_planned_fail_over_names_the_forced_one_where_the_active_member_is_lost(
    away: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the other one is, that would make it the active one."""
    monkeypatch.setattr(AtRest, "away", away)
    monkeypatch.setattr(pair, "_session", lambda *_: AtRest())
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso"])
    assert ended.value.code == 1
    assert ("--force" in capsys.readouterr().err) is (away == "jfk")


def test_a_fault_elsewhere_in_the_file_is_reported_after_a_forced_fail_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An operator who runs it again would fail back."""
    monkeypatch.chdir(tmp_path)
    Path("isthmus.yaml").write_text(PAIRS + "tasks: {orders: {pattern: unknown}}\n")
    kept = StateFile(state_folder("isthmus.yaml"), "contoso")
    kept.save(PairState(pair="contoso", active="ewr", standby="jfk"))
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso", "--force"])
    assert ended.value.code == 2
    reported = capsys.readouterr().err
    assert "unknown" in reported
    assert "the fail-over was made all the same: jfk is the active member (epoch 2); do not run it again" in reported
    assert kept.load().active == "jfk"


class Behind(AtRest):
    """The same, but its state is older than a fail-over of another machine."""

    def __init__(self) -> None:
        self.keeper = SimpleNamespace(
            compare=lambda state: pytest.fail("the wrong member would be changed"),
            outdated=lambda state: "another machine made a fail-over",
        )


def test_status_by_an_outdated_state_is_not_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pair, "_session", lambda *_: Behind())
    for more in (["--json"], []):
        with pytest.raises(SystemExit) as ended:
            main(["pair", "status", "contoso", *more])
        assert ended.value.code == 1
    as_json, _, text = capsys.readouterr().out.partition("\n")
    assert json.loads(as_json)["problem"] == "another machine made a fail-over"
    assert "! not compared: another machine made a fail-over" in text


def test_what_may_be_lost_is_what_waited_at_the_member_that_was_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not at the other one, which was counted while it was active before."""
    for counted, reported in (("ewr", {"orders": {"active": 3}}), ("jfk", {}), ("", {})):
        state = PairState(
            pair="contoso", active="ewr", standby="jfk", seen={"orders": {"active": 3}}, seen_of=counted, seen_at=1.0
        )
        monkeypatch.setattr(pair, "_session", lambda *_, state=state: Session(state, lambda state: state))
        for more in (["--json"], []):
            with pytest.raises(SystemExit):
                main(["pair", "failover", "contoso", "--force", *more])
        as_json, _, text = capsys.readouterr().out.partition("\n")
        assert json.loads(as_json)["may_be_lost"] == reported
        assert ("orders: 3 active" in text) is bool(reported)
        assert ("have not been counted yet" in text) is not bool(reported)


@pytest.mark.parametrize(
    ("phase", "is_given_up", "reported"),
    [
        (Phase.MOVING, False, "it is not given up, and still in progress (moving)"),
        (Phase.REOPENING, True, "it is given up, and ewr is not open yet"),
        (Phase.STEADY, True, "ewr is active (epoch 3)"),
    ],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_abort_tells_what_has_become_of_the_fail_over(
    number: signal.Signals,
    phase: Phase,
    is_given_up: bool,
    reported: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Hanging(Session):
        def abort(self, note: Any) -> PairState:
            signal.raise_signal(number)
            raise AssertionError("it is interrupted")

    session = Hanging(PairState(pair="contoso", active="ewr", standby="jfk", epoch=3, phase=phase), None)
    monkeypatch.setattr(pair, "_session", lambda *_: session)
    with pytest.raises(SystemExit) as ended:
        main(["pair", "failover", "contoso", "--abort", "--json"])
    out, err = capsys.readouterr()
    assert ended.value.code == 130
    found = json.loads(out)
    assert (found["active"], found["aborted"], found["pending"]) == ("ewr", is_given_up, "interrupted")
    assert reported in err


@pytest.mark.parametrize("is_broken", [False, True])
def test_an_interrupted_break_tells_whether_the_pair_is_broken(
    is_broken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Hanging(Session):
        file = SimpleNamespace(path=tmp_path / "state.json")

        def break_up(self, *, is_forced: bool) -> Any:
            if is_broken:
                self.file.path.unlink()
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("it is interrupted")

    Hanging.file.path.touch()
    monkeypatch.setattr(
        pair, "_session", lambda *_: Hanging(PairState(pair="contoso", active="ewr", standby="jfk"), None)
    )
    with pytest.raises(SystemExit) as ended:
        main(["pair", "break", "contoso", "--json"])
    out, err = capsys.readouterr()
    assert ended.value.code == 130
    assert json.loads(out) == {"pair": "contoso", "broken": is_broken, "pending": "interrupted"}
    assert ("is not broken" in err) is not is_broken


def test_only_a_fault_of_its_address_is_told_as_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`pair run … | head` is no reason to write another address."""

    class Listening(Session):
        def __init__(self) -> None:
            super().__init__(PairState(pair="contoso", active="ewr", standby="jfk"), None)
            self.pair.listen = "127.0.0.1:0"

    async def gone(self: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    async def taken(self: object) -> None:
        await AliasProxy(lambda: Lead(1, "", "", 0)).start(*taken_address)

    monkeypatch.setattr(pair, "_session", lambda *_: Listening())
    monkeypatch.setattr("isthmus.pairing.pair_run.PairRun.run", gone)
    with pytest.raises(OSError, match="Too many"):
        main(["pair", "run", "contoso"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken_address = server.getsockname()
        monkeypatch.setattr("isthmus.pairing.pair_run.PairRun.run", taken)
        with pytest.raises(SystemExit) as ended:
            main(["pair", "run", "contoso"])
    assert ended.value.code == 2
    assert "the alias cannot listen on 127.0.0.1:" in capsys.readouterr().err
