"""The supervisor keeps routes running, each on its own, and ends them in order."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace

import pytest

from isthmus.replication.query.route_progress import Backlog, RouteProgress
from isthmus.replication.query.tally import Counts
from isthmus.replication.spark.gone import SparkGoneError
from isthmus.supervisor.condition import Phase
from isthmus.supervisor.status import describe
from isthmus.supervisor.supervisor import ClaimState, ClaimView, Settings, Supervisor
from isthmus.testing.clock import ManualClock
from isthmus.topology.model import Endpoint, Route


def route(name: str, source: str = "ewr", target: str = "jfk") -> Route:
    return Route(
        name=name,
        task="flights",
        pattern="all-active",
        source=Endpoint(source, f"flights/Subscriptions/isthmus.flights.{target}"),
        targets=(Endpoint(target, "flights"),),
    )


class FakeRoute:
    def __init__(self, journal: list[str], name: str, *, ready: bool) -> None:
        self.journal, self.name = journal, name
        self.active, self.error, self.seen = True, "", RouteProgress(ready=ready)
        self.under_way = True
        self.at_stop: RouteProgress | None = None  # what is seen once it has stopped

    def is_active(self) -> bool:
        return self.active

    def failure(self) -> str:
        return self.error

    def progress(self) -> RouteProgress:
        return self.seen

    def drain(self) -> None:
        self.journal.append(f"drain {self.name}")
        self.under_way = False

    def drained(self) -> bool:
        return not self.under_way

    def stop(self) -> None:
        self.journal.append(f"stop {self.name}")
        self.active = False
        if self.at_stop is not None:
            self.seen, self.at_stop = self.at_stop, None

    def fail(self, error: str) -> None:
        self.active, self.error = False, error


class Bench:
    """A supervisor over fakes, with a clock that the test controls."""

    def __init__(self, names: tuple[str, ...] = ("a",), **settings: object) -> None:
        self.clock = ManualClock()
        self.journal: list[str] = []
        self.started: dict[str, list[FakeRoute]] = {name: [] for name in names}
        self.refuse: dict[str, Exception] = {}
        self.ready = "starts_at_once" not in settings
        self.claim = ClaimView(ClaimState.HELD)
        self.backlog: Backlog | None = None
        self.supervisor = Supervisor(
            [route(name) for name in names],
            self.start,
            claims=self,
            backlog=lambda _: self.backlog,
            settings=Settings(**settings),  # type: ignore[arg-type]
            clock=self.clock,
        )

    def view(self, task: str, alias: str) -> ClaimView:
        return self.claim

    def start(self, which: Route) -> FakeRoute:
        if which.name in self.refuse:
            raise self.refuse[which.name]
        running = FakeRoute(self.journal, which.name, ready=self.ready)
        self.started[which.name].append(running)
        return running

    def phase(self, name: str = "a") -> Phase:
        return next(condition.phase for each, condition in self.supervisor.conditions() if each.name == name)

    def step(self, seconds: float = 0.5) -> None:
        self.clock.advance(int(seconds * 1000))
        self.supervisor.step()

    def steps_until_start(self, name: str = "a") -> float:
        """Seconds until the route is started again."""
        before = len(self.started[name])
        for count in range(1, 4000):
            self.step(0.1)
            if len(self.started[name]) > before:
                return count * 0.1
        raise AssertionError("never started again")


def test_a_route_starts_and_moves() -> None:
    bench = Bench()
    bench.step()
    bench.started["a"][0].seen = RouteProgress(counts=Counts(10, 10))
    bench.step()
    assert bench.phase() is Phase.MOVING


def test_a_route_that_nothing_can_hold_a_claim_of_needs_none() -> None:
    bench = Bench()
    bench.claim = ClaimView(ClaimState.ELSEWHERE)
    (slot,) = bench.supervisor._slots
    slot.route = replace(slot.route, is_claimed=False)
    bench.step()
    assert len(bench.started["a"]) == 1


@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.ELSEWHERE, ClaimState.UNREACHABLE])
def test_i1_a_route_without_claim_is_not_started(state: ClaimState) -> None:
    bench = Bench()
    bench.claim = ClaimView(state, "somebody")
    bench.step()
    assert not bench.started["a"]
    bench.claim = ClaimView(ClaimState.HELD)
    bench.step()
    assert len(bench.started["a"]) == 1


def test_a_run_whose_route_never_could_start_did_not_end_well() -> None:
    bench = Bench(step_seconds=0.0)
    bench.claim = ClaimView(ClaimState.FAULTY, "no such entity")
    stop = threading.Event()
    assert not bench.supervisor.run(stop, lambda: stop.set() if "no such entity" in texts(bench) else None)
    stop.clear()
    bench.claim = ClaimView(ClaimState.HELD)
    assert bench.supervisor.run(stop, lambda: stop.set() if bench.started["a"] else None)


def texts(bench: Bench) -> str:
    return " ".join(condition.text(0) for _, condition in bench.supervisor.conditions())


def test_i1_a_route_whose_claim_is_lost_stops() -> None:
    bench = Bench()
    bench.step()
    bench.claim = ClaimView(ClaimState.ELSEWHERE, "host 7 since 10:00")
    bench.step()
    assert bench.journal == ["drain a", "stop a"]
    assert bench.phase() is Phase.CLAIMED


@pytest.mark.parametrize("why", ["the claim is lost", "it failed", "it moves nothing", "it is given up"])
def test_what_a_route_settles_while_it_is_stopped_is_counted(why: str) -> None:
    bench = Bench(stuck_after_seconds=60.0, available_now=why == "it is given up", retry_first_seconds=0.1)
    bench.step()
    first = bench.started["a"][0]
    first.seen = RouteProgress(counts=Counts(10, 10))
    first.at_stop = RouteProgress(counts=Counts(13, 12, 1))
    if why == "the claim is lost":
        bench.claim = ClaimView(ClaimState.UNREACHABLE, "away")
    elif why == "it failed":
        first.fail("gone")
    elif why == "it moves nothing":
        bench.backlog = Backlog(200)
    for count in range(200):
        if why == "it is given up":
            first.seen = replace(first.seen, error="refused", retry_in_seconds=float(count))
        if not first.active and first.at_stop is None:
            break
        bench.step()
    assert bench.supervisor.conditions()[0][1].counts == Counts(13, 12, 1)
    if why == "it is given up":
        assert (bench.phase(), bench.supervisor.finished()) == (Phase.FAILED, True)


def test_i2_a_route_whose_claim_is_lost_and_that_does_not_stop_well_touches_no_other() -> None:
    bench = Bench(("a", "b"))
    bench.step()

    def broken() -> None:
        raise RuntimeError("Spark would not")

    bench.started["a"][0].stop = broken  # type: ignore[method-assign]
    bench.claim = ClaimView(ClaimState.UNREACHABLE, "no route to host")
    bench.step()
    assert bench.journal == ["drain a", "drain b", "stop b"]
    bench.claim = ClaimView(ClaimState.HELD)
    bench.step()
    assert len(bench.started["a"]) == len(bench.started["b"]) == 2


def test_i2_one_failure_touches_no_other_route() -> None:
    bench = Bench(("a", "b"))
    bench.refuse["a"] = RuntimeError("no such thing")
    bench.step()
    assert bench.phase("a") is Phase.FAILED
    assert len(bench.started["b"]) == 1
    bench.started["b"][0].seen = RouteProgress(counts=Counts(1, 1))
    bench.step()
    assert bench.phase("b") is Phase.MOVING


def test_i3_delays_grow_up_to_the_limit() -> None:
    bench = Bench(retry_first_seconds=1.0, retry_limit_seconds=8.0)
    bench.step()
    delays = []
    for _ in range(6):
        bench.started["a"][-1].fail("boom")
        bench.step(0.1)
        delays.append(bench.steps_until_start())
    assert delays[0] <= 1.1
    assert all(3.9 <= delay <= 8.2 for delay in delays[3:])


def test_i3_a_route_that_moved_starts_from_the_first_delay_again() -> None:
    bench = Bench(retry_first_seconds=1.0, retry_limit_seconds=100.0)
    bench.step()
    for _ in range(5):
        bench.started["a"][-1].fail("boom")
        bench.step(0.1)
        bench.steps_until_start()
    bench.started["a"][-1].seen = RouteProgress(counts=Counts(1, 1))
    bench.started["a"][-1].fail("boom")
    bench.step(0.1)
    assert bench.steps_until_start() <= 1.1


def test_what_is_left_of_a_failed_route_is_stopped_before_it_is_started_again() -> None:
    bench = Bench(("a", "b"), retry_first_seconds=1.0)
    bench.step()
    bench.started["a"][0].fail("boom")
    bench.step()
    assert bench.journal == ["stop a"]
    bench.steps_until_start()
    assert bench.journal == ["stop a"]


def test_a_query_that_ends_unasked_is_a_failure() -> None:
    bench = Bench()
    bench.step()
    bench.started["a"][0].active = False
    bench.step()
    assert bench.phase() is Phase.FAILED


def test_available_now_ends_when_every_route_has_ended() -> None:
    bench = Bench(("a", "b"), available_now=True)
    bench.step()
    for name in ("a", "b"):
        bench.started[name][0].active = False
    assert not bench.supervisor.finished()
    bench.step()
    assert bench.supervisor.finished()
    assert bench.phase() is Phase.DONE


def test_available_now_gives_a_hopeless_route_up() -> None:
    bench = Bench(available_now=True, attempts_limit=3, retry_first_seconds=0.1, retry_limit_seconds=0.1)
    bench.refuse["a"] = RuntimeError("no such thing")
    for _ in range(10):
        bench.step()
    assert bench.supervisor.finished()
    assert bench.supervisor.run(threading.Event()) is False


@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.ELSEWHERE, ClaimState.UNREACHABLE])
def test_available_now_gives_a_route_up_whose_claim_it_does_not_get(state: ClaimState) -> None:
    bench = Bench(("a",), available_now=True, claim_seconds=60.0)
    bench.claim = ClaimView(state, "no route to host")
    for _ in range(110):
        bench.step()
    assert not bench.supervisor.finished()
    bench.claim = ClaimView(ClaimState.HELD)
    bench.step()
    bench.claim = ClaimView(state, "no route to host")
    for _ in range(110):
        bench.step()
    assert not bench.supervisor.finished()
    for _ in range(20):
        bench.step()
    assert bench.supervisor.finished()
    assert bench.supervisor.run(threading.Event()) is False
    assert "claim" in bench.supervisor.conditions()[0][1].last_error


def test_a_run_without_end_waits_for_its_claims_without_end() -> None:
    bench = Bench(("a",), claim_seconds=1.0)
    bench.claim = ClaimView(ClaimState.UNREACHABLE, "no route to host")
    for _ in range(110):
        bench.step()
    assert not bench.supervisor.finished()


def test_i4_routes_start_a_few_at_a_time() -> None:
    bench = Bench(("a", "b", "c"), starts_at_once=2, start_seconds=10.0)
    bench.supervisor.step()
    assert bench.phase("c") is Phase.PENDING
    bench.step()
    assert not bench.started["c"]
    bench.started["a"][0].seen = RouteProgress(ready=True)
    bench.step()
    assert len(bench.started["c"]) == 1


def test_i4_a_start_that_takes_too_long_delays_no_other() -> None:
    bench = Bench(("a", "b"), starts_at_once=1, start_seconds=10.0)
    bench.supervisor.step()
    bench.step(10.5)
    assert len(bench.started["b"]) == 1


def test_where_spark_has_ended_the_run_ends_and_says_so() -> None:
    bench = Bench(("a", "b"), step_seconds=0.0)
    bench.step()
    bench.refuse["a"] = SparkGoneError()
    bench.started["a"][0].fail("boom")
    with pytest.raises(SparkGoneError, match="start it again"):
        bench.supervisor.run(threading.Event(), lambda: bench.clock.advance(1000))
    assert "drain b" in bench.journal


def test_i5_all_drain_before_any_stops() -> None:
    bench = Bench(("a", "b", "c"))
    bench.step()
    bench.supervisor.shut_down()
    assert bench.journal[:3] == ["drain a", "drain b", "drain c"]
    assert sorted(bench.journal[3:]) == ["stop a", "stop b", "stop c"]
    assert bench.phase() is Phase.STOPPED


def test_i5_a_failing_drain_does_not_keep_the_others_from_it(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(("a", "b"))
    bench.step()

    def broken() -> None:
        raise RuntimeError("gone")

    bench.started["a"][0].drain = broken  # type: ignore[method-assign]
    bench.started["a"][0].under_way = False
    bench.supervisor.shut_down()
    assert "drain b" in bench.journal
    assert "stop a" in bench.journal
    assert "gone" in caplog.text


def test_i5_routes_end_well_though_no_driver_can_be_reached() -> None:
    bench = Bench(("a", "b"), step_seconds=0.0, drain_seconds=5.0)

    def full() -> None:
        bench.clock.advance(1000)
        bench.started["a"][0].drain = lambda: None  # type: ignore[method-assign]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        bench.supervisor.run(threading.Event(), full)
    assert bench.journal[0] == "drain b"
    assert sorted(bench.journal[1:]) == ["stop a", "stop b"]


def test_run_ends_on_request() -> None:
    bench = Bench(step_seconds=0.0)
    stop = threading.Event()
    rounds: list[int] = []

    def on_round() -> None:
        rounds.append(1)
        if len(rounds) == 3:
            stop.set()

    assert bench.supervisor.run(stop, on_round) is True
    assert bench.journal == ["drain a", "stop a"]


def test_a_route_that_moves_nothing_though_messages_wait_is_started_again() -> None:
    bench = Bench(stuck_after_seconds=60.0, retry_first_seconds=1.0)
    bench.step()
    first = bench.started["a"][0]
    condition = bench.supervisor.conditions()[0][1]
    condition.backlog_seen(0, 200, 30.0)
    for _ in range(100):
        bench.step()
    assert first.active
    assert bench.phase() is Phase.STALLED
    for _ in range(30):
        bench.step()
    assert bench.journal == ["drain a", "stop a"]
    assert len(bench.started["a"]) == 2
    assert "nothing moved for 60 s" in condition.last_error
    assert "another receiver may hold them" in condition.last_error


@pytest.mark.parametrize("available_now", [False, True])
def test_i3_a_route_that_never_moves_anything_is_tried_later_each_time_and_given_up(available_now: bool) -> None:
    """It ran for a minute each time, which does not prove that it works."""
    bench = Bench(available_now=available_now, retry_first_seconds=10.0, retry_limit_seconds=300.0)
    bench.backlog = Backlog(200, 1)
    waits: list[float] = []
    failed_at = 0.0
    while bench.clock.monotonic() < 7200 and not bench.supervisor.finished():
        before = len(bench.started["a"])
        bench.step(1.0)
        if bench.phase() is Phase.FAILED and not failed_at:
            failed_at = bench.clock.monotonic()
        if len(bench.started["a"]) > before and failed_at:
            waits.append(bench.clock.monotonic() - failed_at)
            failed_at = 0.0
    assert bench.supervisor.finished() is available_now
    assert len(waits) == 7 if available_now else len(waits) > 10
    assert waits[0] < 20
    assert min(waits[5:7]) > 100


def test_available_now_gives_up_a_route_that_runs_for_long_and_fails_each_time() -> None:
    bench = Bench(available_now=True, retry_first_seconds=1.0, retry_limit_seconds=1.0)
    for _ in range(20):
        bench.step(2.0)
        bench.step(70.0)
        if bench.supervisor.finished():
            break
        bench.started["a"][-1].fail("gone")
        bench.step()
    assert (bench.supervisor.finished(), len(bench.started["a"])) == (True, 8)


def test_a_route_whose_source_shows_no_age_is_started_again_too() -> None:
    bench = Bench(stuck_after_seconds=60.0, retry_first_seconds=1.0)
    bench.backlog = Backlog(200)
    for _ in range(50):
        bench.step()
    assert bench.phase() is Phase.STALLED
    for _ in range(80):
        bench.step()
    assert bench.journal == ["drain a", "stop a"]
    assert len(bench.started["a"]) == 2


def test_a_route_whose_target_is_unavailable_waits_for_it() -> None:
    bench = Bench(stuck_after_seconds=60.0)
    bench.step()
    bench.started["a"][0].seen = RouteProgress(paused_reason="the target is away")
    bench.supervisor.conditions()[0][1].backlog_seen(bench.clock.monotonic(), 200, 30.0)
    for _ in range(300):
        bench.step()
    assert bench.journal == []
    assert bench.phase() is Phase.STALLED


def test_a_route_whose_target_has_not_answered_is_left_to_its_time_outs() -> None:
    """An upload may take minutes, and so may a request: started again, it would never be finished."""
    bench = Bench(stuck_after_seconds=60.0)
    bench.backlog = Backlog(1)
    bench.step()
    bench.started["a"][0].seen = RouteProgress(is_awaited=True)
    for _ in range(300):
        bench.step()
    assert bench.journal == []
    assert bench.phase() is Phase.STALLED
    bench.started["a"][0].seen = RouteProgress()
    bench.step()
    assert bench.journal == ["drain a", "stop a"]


def test_a_note_is_logged_once_and_shown_as_it_is_now(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.step()
    (running,) = bench.started["a"]
    ((which, condition),) = bench.supervisor.conditions()
    for note in ("", "1 session waits", "2 sessions wait", "", "1 session waits"):
        running.seen = RouteProgress(note=note)
        bench.step()
        assert describe(which, condition, 0.0)["note"] == note
        assert condition.is_well()
    reported = [each.getMessage() for each in caplog.records if "session" in each.getMessage()]
    assert reported == ["route a: 1 session waits"] * 2


def test_a_route_that_begins_again_by_itself_is_reported_like_one_that_is_started_again() -> None:
    bench = Bench()
    bench.step()
    running = bench.started["a"][0]
    running.seen = RouteProgress(error="jfk (10.0.0.7:5671): no such entity", retry_in_seconds=8.0)
    bench.step()
    running.seen = RouteProgress(
        error="jfk (10.0.0.7:5671): no such entity", retry_in_seconds=7.5
    )  # as reported before
    bench.step()
    (condition,) = (each for _, each in bench.supervisor.conditions())
    assert condition.phase is Phase.FAILED
    assert condition.text(bench.clock.monotonic()) == "failed, retry in 8 s"
    assert condition.last_error == "jfk (10.0.0.7:5671): no such entity"
    assert condition.away == ("jfk", "jfk (10.0.0.7:5671): no such entity")
    assert condition.restarts == 1
    running.seen = RouteProgress(error="jfk (10.0.0.7:5671): no such entity", retry_in_seconds=16.0)
    bench.step()
    assert condition.restarts == 2
    running.seen = RouteProgress(counts=Counts(10, 10))
    bench.step()
    assert (bench.phase(), condition.away) == (Phase.MOVING, ("", ""))
    assert len(bench.started["a"]) == 1


def test_available_now_gives_up_a_route_that_continues_failing_by_itself() -> None:
    bench = Bench(available_now=True, attempts_limit=3, retry_first_seconds=4.0)
    bench.step()
    running = bench.started["a"][0]
    for attempt in range(10):
        assert not bench.supervisor.finished()
        running.seen = RouteProgress(error="no such entity", retry_in_seconds=5.0 + attempt)
        bench.step(1.0)
    assert bench.supervisor.finished()  # 3 and 6 s, which is how long two restarts wait
    assert bench.journal == ["drain a", "stop a"]


def test_a_pause_is_reported_the_namespace_that_it_names() -> None:
    bench = Bench()
    bench.step()
    bench.started["a"][0].seen = RouteProgress(paused_reason="ewr (10.0.0.1:5671): refused")
    bench.step()
    (condition,) = (each for _, each in bench.supervisor.conditions())
    assert condition.away == ("ewr", "ewr (10.0.0.1:5671): refused")
    bench.started["a"][0].seen = RouteProgress(paused_reason="takes nothing")
    bench.step()
    assert condition.away == ("jfk", "jfk: takes nothing")


@pytest.mark.parametrize("when", ["start", "end"])
def test_i2_a_route_whose_progress_cannot_be_read_keeps_no_other_from_starting_or_stopping(when: str) -> None:
    """The number of routes that are starting, and the end of the run, read the progress of all: either failed as a whole."""
    bench = Bench(("a", "b"))
    bench.step()

    def stale() -> RouteProgress:
        raise OSError(errno.ESTALE, "Stale file handle")

    bench.started["b"][0].progress = stale  # type: ignore[method-assign]
    if when == "start":
        bench.started["a"][0].fail("boom")
        assert bench.steps_until_start("a") > 0
    else:
        bench.supervisor.shut_down()
        assert sorted(each for each in bench.journal if each.startswith("stop")) == ["stop a", "stop b"]
        assert bench.phase("a") is bench.phase("b") is Phase.STOPPED


def test_i2_a_route_whose_progress_cannot_be_read_fails_alone() -> None:
    """The folder of its spool is on a file system that does not answer: the run of all routes ended."""
    bench = Bench(("a", "b"))
    bench.step()
    (unreadable,) = bench.started["a"]

    def stale() -> RouteProgress:
        raise OSError(errno.ESTALE, "Stale file handle")

    unreadable.progress = stale  # type: ignore[method-assign]
    bench.step()
    (condition, _) = (each for _, each in bench.supervisor.conditions())
    assert (bench.phase("a"), "Stale file handle" in condition.last_error) == (Phase.FAILED, True)
    assert "stop a" in bench.journal
    assert bench.phase("b") is not Phase.FAILED
    bench.steps_until_start("a")
