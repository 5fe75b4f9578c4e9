"""Tasks that the operator has paused, and the supervisor that pauses their routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.replication.query.route_progress import RouteProgress
from isthmus.replication.query.tally import Counts
from isthmus.supervisor.claim.view import ClaimState, ClaimView
from isthmus.supervisor.condition import Phase
from isthmus.supervisor.pause import FILE, PauseFile, PauseFileError
from isthmus.supervisor.supervisor import Settings, Supervisor
from isthmus.testing.clock import ManualClock
from isthmus.topology.model import Endpoint, Route

SINCE = "2030-01-01T00:00:00+00:00"


# ---- the file


def test_it_is_kept_over_runs_and_given_up_by_resume(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    assert PauseFile(folder).tasks() == {}
    assert PauseFile(folder).pause("flights")
    assert not PauseFile(folder).pause("flights")
    assert PauseFile(folder).pause("orders")
    assert set(PauseFile(folder).tasks()) == {"flights", "orders"}
    assert PauseFile(folder).resume("flights")
    assert not PauseFile(folder).resume("flights")
    assert set(PauseFile(folder).tasks()) == {"orders"}


def test_one_reader_sees_each_change(tmp_path: Path) -> None:
    reader, writer = PauseFile(tmp_path), PauseFile(tmp_path)
    for _ in range(3):
        writer.pause("flights")
        assert set(reader.tasks()) == {"flights"}
        writer.resume("flights")
        assert reader.tasks() == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"[" * 100_000, b"\xff{}", b'{"version": 2, "tasks": {}}', b'{"version": 1, "tasks": ["a"]}'],
    ids=lambda content: repr(content[:20]),
)
def test_a_damaged_file_is_refused_by_name_and_pauses_what_it_did(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    pauses = PauseFile(tmp_path)
    pauses.pause("flights")
    assert set(pauses.tasks()) == {"flights"}
    (tmp_path / FILE).write_bytes(content + b" ")
    with pytest.raises(PauseFileError, match=FILE):
        pauses.tasks()
    assert set(pauses.last_known()) == {"flights"}
    assert set(pauses.last_known()) == {"flights"}
    assert sum(FILE in each.message for each in caplog.records) == 1
    with pytest.raises(PauseFileError):
        pauses.pause("orders")


# ---- the supervisor


class FakeRoute:
    def __init__(self) -> None:
        self.is_drained = self.is_stopped = False
        self.asked: list[str] = []
        self.counts = self.stop_counts = Counts(moved=3, settled=3)

    def is_active(self) -> bool:
        return not self.is_stopped

    def failure(self) -> str:
        return ""

    def progress(self) -> RouteProgress:
        return RouteProgress(ready=True, counts=self.stop_counts if self.is_stopped else self.counts)

    def drain(self) -> None:
        self.asked.append("drain")

    def drained(self) -> bool:
        return self.is_drained

    def stop(self) -> None:
        self.asked.append("stop")
        self.is_stopped = True


class Bench:
    def __init__(self, **settings: object) -> None:
        self.paused: dict[str, str] = {}
        self.started: list[FakeRoute] = []
        self.claim = ClaimView(ClaimState.HELD)
        ends = {"source": Endpoint("a", "flights"), "targets": (Endpoint("b", "flights"),)}
        route = Route(name="flights/a-b", task="flights", pattern="all-active", **ends)  # type: ignore[arg-type]
        self.clock = ManualClock()
        self.supervisor = Supervisor(
            [route],
            self.start,
            claims=self,
            settings=Settings(**settings),  # type: ignore[arg-type]
            clock=self.clock,
            paused=lambda: self.paused,
        )

    def view(self, task: str, alias: str) -> ClaimView:
        return self.claim

    def start(self, route: Route) -> FakeRoute:
        self.started.append(FakeRoute())
        return self.started[-1]

    @property
    def phase(self) -> Phase:
        ((_, condition),) = self.supervisor.conditions()
        return condition.phase


def test_a_paused_route_finishes_what_it_has_and_then_rests() -> None:
    bench = Bench()
    bench.supervisor.step()
    (running,) = bench.started
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    bench.supervisor.step()
    assert (running.asked, bench.phase) == (["drain"], Phase.DRAINING)
    running.is_drained = True
    bench.supervisor.step()
    assert (running.asked, bench.phase) == (["drain", "stop"], Phase.PAUSED)
    ((_, condition),) = bench.supervisor.conditions()
    assert condition.text(0.0) == f"paused since {SINCE}"
    assert condition.is_well()
    assert condition.moved == 3


def test_what_a_route_settles_last_before_it_rests_is_counted() -> None:
    bench = Bench()
    bench.supervisor.step()
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    route = bench.started[0]
    route.is_drained = True
    route.counts = Counts(moved=3, settled=3)
    route.stop_counts = Counts(moved=7, settled=7)
    bench.supervisor.step()
    ((_, condition),) = bench.supervisor.conditions()
    assert (bench.phase, condition.moved) == (Phase.PAUSED, 7)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_route_that_does_not_finish_what_it_has_is_stopped(is_resumed: bool) -> None:
    """E.g. one whose worker hangs: it would be draining for ever, and a resume would change nothing."""
    bench = Bench(stuck_after_seconds=60.0)
    bench.supervisor.step()
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    (route,) = bench.started
    for moved in (4, 5):
        bench.clock.advance(59_000)
        route.counts = Counts(moved=moved, settled=moved)
        bench.supervisor.step()
        assert (bench.phase, route.is_stopped) == (Phase.DRAINING, False)
    if is_resumed:
        bench.paused = {}
    bench.clock.advance(61_000)
    bench.supervisor.step()
    assert route.is_stopped
    assert len(bench.started) == (2 if is_resumed else 1)
    assert is_resumed or bench.phase is Phase.PAUSED


def test_it_is_no_stall_however_long_messages_wait() -> None:
    bench = Bench(stuck_after_seconds=60.0)
    bench.paused = {"flights": SINCE}
    for _ in range(5):
        bench.supervisor.step()
        bench.clock.advance(100_000)
    assert (bench.phase, bench.started) == (Phase.PAUSED, [])


def test_resumed_it_starts_at_once_and_keeps_its_counts() -> None:
    bench = Bench()
    bench.supervisor.step()
    bench.started[0].is_drained = True
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    bench.paused = {}
    bench.supervisor.step()
    assert len(bench.started) == 2
    bench.supervisor.step()
    ((_, condition),) = bench.supervisor.conditions()
    assert condition.moved == 6


def test_resumed_while_it_finishes_it_leaves_first() -> None:
    """Its query was asked to end it: it is started again when nothing of it is under way."""
    bench = Bench()
    bench.supervisor.step()
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    bench.paused = {}
    bench.supervisor.step()
    assert (len(bench.started), bench.phase) == (1, Phase.DRAINING)
    bench.started[0].is_drained = True
    bench.supervisor.step()
    assert (len(bench.started), bench.started[0].asked) == (2, ["drain", "stop"])


def test_it_rests_also_where_the_claim_is_not_held() -> None:
    bench = Bench()
    bench.claim = ClaimView(ClaimState.ELSEWHERE, "process 1")
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    phases = [bench.phase]
    bench.paused = {}
    bench.supervisor.step()
    phases.append(bench.phase)
    assert phases == [Phase.PAUSED, Phase.CLAIMED]


def test_a_run_with_an_end_does_not_wait_for_a_paused_task() -> None:
    bench = Bench(available_now=True)
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    assert bench.supervisor.finished()
    assert not Bench().supervisor.finished()


@pytest.mark.parametrize("what", ["is_active", "drained", "progress"])
def test_a_route_that_cannot_be_looked_at_is_paused_all_the_same(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run of all routes ended, e.g. because of a spool that was not readable at that moment."""

    def stale() -> None:
        raise OSError("Stale file handle")

    bench = Bench()
    bench.supervisor.step()
    bench.paused = {"flights": SINCE}
    bench.supervisor.step()
    (running,) = bench.started
    monkeypatch.setattr(running, what, stale)
    bench.supervisor.step()
    assert (running.asked, bench.phase) == (["drain", "stop"], Phase.FAILED)
    bench.supervisor.step()
    assert (len(bench.started), bench.phase) == (1, Phase.PAUSED)
