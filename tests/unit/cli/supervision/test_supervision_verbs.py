"""The verbs run, status, verify and demo: exit codes, and one JSON object for programs."""

from __future__ import annotations

import errno
import io
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.app import create_app, main
from isthmus.cli.supervision import run as run_verb
from isthmus.demo import play as play_module
from isthmus.demo.play import Scene
from isthmus.errors import ConnectionLostError, EntityNotFoundError, InvalidArgumentError
from isthmus.replication.verification import verify as verify_module
from isthmus.replication.verification.hour.hour import Times, hours_of
from isthmus.replication.verification.reconciliation.reading import Reading
from isthmus.replication.verification.reconciliation.reconcile import Holding, Reconciliation, Undelivered, reconcile
from isthmus.supervisor import run as run_module
from isthmus.supervisor.run import RunOptions, TaskClaimedError
from isthmus.supervisor.watch import survey as survey_module
from isthmus.topology.model import Federation

TEXT = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {connection: env:JFK_CONNECTION}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [audit]}
"""

ROUTE = {
    "name": "flights.ewr.jfk",
    "phase": "moving",
    "state": "moving",
    "moved": 5,
    "rate_per_second": 1.0,
    "waiting": 0,
    "oldest_age_seconds": 0.0,
    "memory_bytes": 0,
    "last_error": "",
}


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """The verbs take signals over; give them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_redrive_does_not_say_nothing_of_a_log_that_it_does_not_look_into(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "isthmus.yaml"
    path.write_text(
        "isthmus: 1\nnamespaces: {ewr: {connection: env:EWR}, hub: {kind: kafka, bootstrap: 'h:9092'}}\ntasks:\n"
        "  orders: {pattern: stream-to-queue, source: hub, stream: orders, target: ewr, queue: orders, dead_letter_stream: aside}\n"
    )
    main_of = create_app("redrive")
    main_of(["redrive", str(path), "--json"], standalone_mode=False)
    (queue,) = json.loads(capsys.readouterr().out)["queues"]
    assert (queue["found"], queue["sent"]) == (None, 0)
    assert "aside" in queue["note"]
    main_of(["redrive", str(path)], standalone_mode=False)
    assert "?" in capsys.readouterr().out


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "isthmus.yaml"
    path.write_text(TEXT)
    return str(path)


def code_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    return found


@pytest.mark.parametrize("verb", ["run", "status", "verify"])
def test_a_file_with_faults_is_bad_input(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("isthmus: 1\nnamespaces: {}\n")
    assert code_of(verb, str(tmp_path / "bad.yaml"), "--json") == 2
    assert "error" in last_line(capsys)


@pytest.mark.parametrize("verb", ["run", "verify"])
def test_an_unknown_task_is_bad_input(verb: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(verb, file, "--task", "trains") == 2
    assert "no task trains" in capsys.readouterr().err


def fake_run(ended_well: bool) -> Callable[..., bool]:
    def run(_: Federation, options: RunOptions, stop: threading.Event, **callbacks: Any) -> bool:
        assert options.settings.available_now
        assert not stop.is_set()
        callbacks["on_started"]()
        callbacks["on_status"]({"state": "running", "routes": [ROUTE]})
        callbacks["on_status"]({"state": "ended", "routes": [ROUTE | {"phase": "done", "state": "done"}]})
        return ended_well

    return run


@pytest.mark.parametrize(("ended_well", "code"), [(True, 0), (False, 1)])
def test_run_shows_changes_and_the_end(
    ended_well: bool, code: int, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run_module, "run_federation", fake_run(ended_well))
    assert code_of("run", file, "--available-now", "--json") == code
    lines = [json.loads(line) for line in capsys.readouterr().out.strip().splitlines()]
    assert [line["route"]["phase"] for line in lines if "route" in line] == ["moving", "done"]
    assert (lines[-1]["state"], lines[-1]["moved"]) == ("ended", 5)


def test_run_takes_the_master_of_spark(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def run(_: Federation, options: RunOptions, *more: Any, **callbacks: Any) -> bool:
        seen.append(options.master)
        return True

    monkeypatch.setattr(run_module, "run_federation", run)
    assert code_of("run", file, "--master", "spark://m:7077") == 0
    assert seen == ["spark://m:7077"]


def test_a_master_that_is_none_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("run", file, "--master", "http://m") == 2
    assert "--master: master is no master URL of Spark; write local[N]" in capsys.readouterr().err


def test_a_second_run_is_refused_with_who_holds_the_task(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> bool:
        raise TaskClaimedError("flights", "ewr", "process 7 on here since 10:00")

    monkeypatch.setattr(run_module, "run_federation", refuse)
    assert code_of("run", file) == 1
    assert "task flights is run by process 7 on here since 10:00" in capsys.readouterr().err


def test_status_of_nothing_says_so(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"alive": False, "state": "not running", "routes": [ROUTE]}
    monkeypatch.setattr(survey_module, "survey", lambda *_: found)
    assert code_of("status", file, "--json") == 1
    assert last_line(capsys) == found
    assert code_of("status", file) == 1
    shown = capsys.readouterr().out
    assert "no run is alive" in shown
    assert "flights.ewr.jfk" in shown


@pytest.mark.parametrize(("well", "code"), [(True, 0), (False, 1)])
def test_status_of_a_living_run_shows_by_its_code_whether_all_routes_are_well(
    well: bool, code: int, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = [ROUTE | {"well": True}, ROUTE | {"name": "flights.jfk.ewr", "well": well}]
    found = {"alive": True, "state": "running", "process": 7, "started_at": "10:00", "routes": routes}
    monkeypatch.setattr(survey_module, "survey", lambda *_: found)
    assert code_of("status", file) == code
    assert "run by process 7 since 10:00" in capsys.readouterr().out


def test_run_and_status_show_what_was_set_aside(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aside = ROUTE | {"phase": "done", "state": "done", "dead_lettered": 2, "diverted": 6, "discarded": 3, "dropped": 4}

    def run(_: Federation, __: RunOptions, ___: threading.Event, **callbacks: Any) -> bool:
        callbacks["on_status"]({"state": "ended", "routes": [aside]})
        return True

    monkeypatch.setattr(run_module, "run_federation", run)
    assert code_of("run", file) == 0
    assert "ended: 5 moved, 2 dead-lettered, 6 diverted, 3 discarded, 4 dropped" in capsys.readouterr().out
    assert code_of("run", file, "--json") == 0
    assert last_line(capsys) == last_line_of(aside)
    monkeypatch.setenv("COLUMNS", "200")
    last = {"process": 7, "started_at": "10:00", "age_seconds": 90.0}
    monkeypatch.setattr(
        survey_module, "survey", lambda *_: {"alive": False, "state": "ended", "routes": [aside], **last}
    )
    assert code_of("status", file) == 1
    shown = capsys.readouterr().out
    assert "no run is alive; the last one, process 7, started at 10:00: ended, last status 90 s ago" in shown
    assert "dead-lettered" in shown
    assert "diverted" in shown


def last_line_of(route: dict[str, Any]) -> dict[str, Any]:
    return {
        "state": "ended",
        "moved": 5,
        "dead_lettered": 2,
        "diverted": 6,
        "discarded": 3,
        "dropped": 4,
        "routes": [route],
    }


def proved(arrived: list[int]) -> Callable[..., Iterator[Reconciliation]]:
    def verify(_: Federation, **__: str) -> Iterator[Reconciliation]:
        yield reconcile("flights", {"ewr": Holding([1, 2], {"ewr": [1, 2]}), "jfk": Holding([], {"ewr": arrived})})

    return verify


@pytest.mark.parametrize(("arrived", "code"), [([1, 2], 0), ([2, 1], 1), ([1], 1), ([1, 2, 2], 1)])
def test_verify_fails_on_what_is_lost_doubled_or_out_of_order(
    arrived: list[int], code: int, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(verify_module, "verify", proved(arrived))
    assert code_of("verify", file, "--json") == code
    reported = last_line(capsys)
    assert reported["clean"] is (code == 0)
    assert len(reported["tasks"][0]["comparisons"]) == 4
    assert code_of("verify", file) == code
    assert "task flights" in capsys.readouterr().out


def proved_by_hour(count: int) -> Callable[..., Iterator[Reconciliation]]:
    """Of ten messages in each of three hours two of the second one are lost, and two whose time is not known."""
    entered = list(range(1, count + 1))
    arrived = [number for number in entered if number not in (13, 17)]

    def verify(_: Federation, *, by_hour: bool, **__: Any) -> Iterator[Reconciliation]:
        times = Times()
        for number in entered[:30]:
            times.add(number, 1_795_770_000_000 + (number - 1) // 10 * 3_600_000)
        holdings = {"ewr": Holding(entered, {"ewr": entered}), "jfk": Holding([], {"ewr": arrived[:28]})}
        yield reconcile("flights", holdings, hours=(lambda _: hours_of(times)) if by_hour else None)

    return verify


BY_HOUR = """\
task flights, by hour (UTC)
hour              entered  arrived  lost
2026-11-27 09:00       10       10     0
2026-11-27 10:00       10        8     2
2026-11-27 11:00       10       10     0
unknown                 2        0     2
"""


@pytest.mark.parametrize(("options", "shown"), [((), False), (("--by", "task"), False), (("--by", "hour"), True)])
def test_verify_shows_hours_to_who_asks_for_them(
    options: tuple[str, ...],
    shown: bool,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(verify_module, "verify", proved_by_hour(32))
    assert code_of("verify", file, *options) == 1
    out = capsys.readouterr().out
    assert (BY_HOUR in out) is shown
    assert ("by hour" in out) is shown
    assert code_of("verify", file, *options, "--json") == 1
    reported = last_line(capsys)["tasks"][0]
    assert ("hours" in reported) is shown
    if shown:
        flows = {(each["origin"], each["member"]): each["hours"] for each in reported["comparisons"]}
        assert [(each["hour"], each["lost"]) for each in flows["ewr", "jfk"]] == [
            ("2026-11-27T09:00:00Z", 0),
            ("2026-11-27T10:00:00Z", 2),
            ("2026-11-27T11:00:00Z", 0),
            ("unknown", 2),
        ]
        assert sum(each["entered"] for each in reported["hours"]) == reported["entered"] == 32


def test_verify_by_hour_of_an_unknown_kind_is_a_wrong_option(file: str) -> None:
    assert code_of("verify", file, "--by", "minute") == 2


def test_verify_shows_hours_of_each_flow_where_there_are_several(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(_: Federation, **__: Any) -> Iterator[Reconciliation]:
        times = Times()
        times.add(1, 1_795_770_000_000)
        times.add(7, 1_795_773_600_000)
        holdings = {
            "ewr": Holding([1], {"ewr": [1], "jfk": [7]}),
            "jfk": Holding([7], {"jfk": [7, 7]}, kept={"filtered": [1]}),
        }
        yield reconcile("flights", holdings, hours=lambda _: hours_of(times))

    monkeypatch.setattr(verify_module, "verify", verify)
    assert code_of("verify", file, "--by", "hour") == 1
    shown = capsys.readouterr().out
    titles = [line for line in shown.splitlines() if "by hour" in line]
    assert titles == [
        "task flights, by hour (UTC)",
        "from ewr at jfk, by hour (UTC)",
        "from jfk at ewr, by hour (UTC)",
        "from jfk at jfk, by hour (UTC)",
    ]
    last = shown.partition("from jfk at jfk, by hour (UTC)\n")[2]
    assert last.splitlines()[:3] == [
        "hour              entered  filtered  arrived  lost  duplicated",
        "2026-11-27 09:00        0         1        0     0",
        "2026-11-27 10:00        1                  1     0           1",
    ]


def test_verify_ends_with_3_where_it_cannot_decide(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    holdings = {"ewr": Holding([1, 2], {"ewr": [1, 2]}), "jfk": Holding([], {"ewr": [2]})}
    rest = {("ewr", "jfk"): Undelivered(consumed={1})}
    readings = [Reading("jfk", "flights/Subscriptions/consumers", messages=1, absent_before=1, shared=True)]

    def verify(_: Federation, **__: str) -> Iterator[Reconciliation]:
        yield reconcile("flights", holdings, rest, readings=readings)

    monkeypatch.setattr(verify_module, "verify", verify)
    assert code_of("verify", file, "--json") == 3
    reported = last_line(capsys)
    assert (reported["clean"], reported["verdict"], reported["tasks"][0]["lost"], reported["tasks"][0]["consumed"]) == (
        False,
        "unclear",
        0,
        1,
    )
    assert code_of("verify", file) == 3
    shown = capsys.readouterr().out
    assert "read jfk: flights/Subscriptions/consumers, 1 message, 1 earlier one is gone" in shown
    assert "applications consume it" in shown
    assert "cannot tell: 1 consumed: the copy may have been taken out" in shown


def test_verify_of_a_namespace_that_is_unavailable_cannot_decide(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(_: Federation, **__: str) -> Iterator[Reconciliation]:
        raise ConnectionLostError("jfk (10.0.0.7:5671): Connection refused")
        yield

    monkeypatch.setattr(verify_module, "verify", verify)
    assert code_of("verify", file, "--json") == 3
    assert "Connection refused" in last_line(capsys)["error"]["message"]
    assert code_of("verify", file) == 3
    assert "cannot tell: jfk (10.0.0.7:5671): Connection refused" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ((), "Make it by: isthmus apply"),
        (("--subscription", "kept"), "With --subscription every member has to have it"),
    ],
)
def test_verify_says_what_to_do_about_a_subscription_that_is_not_there(
    options: tuple[str, ...], hint: str, file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(_: Federation, **__: Any) -> list[Reconciliation]:
        raise EntityNotFoundError("flights/Subscriptions/kept")

    monkeypatch.setattr(verify_module, "verify", verify)
    assert code_of("verify", file, *options) == 3
    assert hint in " ".join(capsys.readouterr().out.split())


def test_verify_of_one_task_that_cannot_be_read_hides_no_other(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gates = "  gates: {pattern: all-active, topic: gates, members: [ewr, jfk]}\n  last: {pattern: all-active, topic: last, members: [ewr, jfk]}\n"
    Path(file).write_text(Path(file).read_text() + gates)

    def verify(federation: Federation, *, task: str, **options: Any) -> Iterator[Reconciliation]:
        if task == "flights":
            raise ConnectionLostError("lga (10.0.0.7:5671): Connection refused")
        if task == "gates":
            raise InvalidArgumentError("task gates declares no subscription that retains every message")
        yield from proved([1])(federation)

    monkeypatch.setattr(verify_module, "verify", verify)
    assert code_of("verify", file, "--json") == 1  # the last one has lost a message
    reported = last_line(capsys)
    assert (reported["verdict"], list(reported["unread"]), len(reported["tasks"])) == (
        "faulty",
        ["flights", "gates"],
        1,
    )
    assert code_of("verify", file) == 1
    shown = capsys.readouterr().out
    assert "cannot tell: task flights: lga (10.0.0.7:5671): Connection refused" in shown
    assert "NOT CLEAN" in shown
    assert code_of("verify", file, "--task", "gates") == 2


@pytest.mark.parametrize(("alive", "code"), [(True, 0), (False, 1)])
def test_the_code_of_a_watched_status_reflects_the_last_look(
    alive: bool, code: int, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = {"process": 7, "started_at": "10:00", "state": "running", "age_seconds": 0.1, "routes": []}
    looks = iter([{**head, "alive": not alive}, {**head, "alive": alive}])
    monkeypatch.setattr(survey_module, "survey", lambda *_: next(looks))
    pauses = iter([None, KeyboardInterrupt])

    def sleep(_: float) -> None:
        if (ends := next(pauses)) is not None:
            raise ends

    monkeypatch.setattr("isthmus.cli.supervision.status.time.sleep", sleep)
    assert code_of("status", file, "--watch") == code


def test_a_task_without_routes_is_not_called_paused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(file).write_text(
        Path(file).read_text() + "  mail: {pattern: chain, members: [ewr], forward: {inbox: orders}}\n"
    )
    assert code_of("pause", file, "mail") == 2
    assert "task mail has no routes that could be paused" in capsys.readouterr().err
    assert code_of("pause", file, "flights") == 0


@pytest.mark.parametrize(
    ("routes", "paused", "resumed"),
    [
        (
            [{"task": "flights"}],
            "the run by process 7 follows within a second",
            "task flights continues; the run by process 7 follows",
        ),
        (
            [{"task": "gates"}],
            "the run by process 7 does not move it",
            "when a run of it starts; the run by process 7 does not move it",
        ),
        (None, "no run is alive in /", "when a run of it starts; none is alive in /"),
    ],
)
def test_whether_a_run_follows_is_reported_for_the_task(
    routes: list[dict[str, str]] | None,
    paused: str,
    resumed: str,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run of another task, or one with another state folder, leaves it as it is."""
    document = None if routes is None else {"alive": True, "process": 7, "routes": routes}
    monkeypatch.setattr("isthmus.supervisor.status.read_status", lambda folder: document)
    assert code_of("pause", file, "flights") == 0
    assert paused in capsys.readouterr().out
    assert code_of("resume", file, "flights") == 0
    assert resumed in capsys.readouterr().out


@pytest.mark.parametrize(("process", "moves"), [(None, False), (7, False), (7, True)])
def test_pause_and_resume_tell_a_script_whether_a_run_follows(
    process: int | None, moves: bool, file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = [{"task": "flights" if moves else "gates"}]
    document = {"alive": True, "process": 7, "routes": routes} if process else None
    monkeypatch.setattr("isthmus.supervisor.status.read_status", lambda folder: document)
    for verb, is_paused in (("pause", True), ("resume", False)):
        for has_changed in (True, False):
            assert code_of(verb, file, "flights", "--json") == 0
            assert json.loads(capsys.readouterr().out) == {
                "file": file,
                "task": "flights",
                "paused": is_paused,
                "changed": has_changed,
                "process": process,
                "followed": moves,
            }


def test_a_paused_task_that_the_file_has_no_more_is_resumed(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("pause", file, "flights") == 0
    Path(file).write_text(Path(file).read_text().replace("  flights:", "  gates:"))
    assert code_of("resume", file, "other") == 2
    assert code_of("resume", file, "flights") == 0
    assert "task flights continues" in capsys.readouterr().out
    assert code_of("resume", file, "flights") == 2


def test_a_task_of_a_living_run_is_paused_though_the_file_was_changed_since(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(file).write_text(Path(file).read_text().replace("  flights:", "  gates:"))
    assert code_of("pause", file, "flights") == 2
    document = {"alive": True, "process": 7, "routes": [{"task": "flights"}]}
    monkeypatch.setattr("isthmus.supervisor.status.read_status", lambda _: document)
    assert code_of("pause", file, "flights") == 0
    assert "task flights is paused; the run by process 7 follows within a second" in capsys.readouterr().out
    assert code_of("resume", file, "flights") == 0


class FakePlay:
    lost = 0

    def __init__(self, folder: Path, messages: int, show: Callable[[Scene], None]) -> None:
        self.messages, self.show = messages, show

    def perform(self) -> dict[str, Any]:
        self.show(Scene("act", 1.0, self.messages, {"EWR": 1}, {"EWR": 2}, [ROUTE]))
        return {
            "sent": self.messages,
            "lost": self.lost,
            "duplicated": 0,
            "out_of_order": 0,
            "messages_per_second": 10,
            "p50_ms": 1.0,
            "p99_ms": 2.0,
            "received": {"ewr": self.messages},
            "burst": {"messages": 1, "arrived_seconds": 1.0},
            "paced": {"per_second": 300.0},
            "memory_bytes": 1,
            "set_up_seconds": 1.0,
            "seconds": 2.0,
            "comparisons": [],
        }


@pytest.mark.parametrize(("lost", "code"), [(0, 0), (1, 1)])
def test_the_demos_last_line_is_its_report(
    lost: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(play_module, "Play", FakePlay)
    monkeypatch.setattr(FakePlay, "lost", lost)
    assert code_of("demo", "--messages", "300", "--json") == code
    report = last_line(capsys)
    assert (report["sent"], report["lost"]) == (300, lost)
    assert {"duplicated", "out_of_order", "messages_per_second", "p50_ms", "p99_ms"} <= set(report)


def test_the_demo_does_not_write_into_a_folder_in_use(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    assert code_of("demo", "--keep", str(tmp_path)) == 2


def test_verify_finds_nothing_clean_in_a_file_without_tasks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """E.g. one of pairs alone: nothing is read, and nothing is proved."""
    head = TEXT.partition("tasks:")[0]
    (tmp_path / "isthmus.yaml").write_text(f"{head}pairs:\n  contoso: {{primary: ewr, secondary: jfk}}\n")
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(tmp_path / "isthmus.yaml")])
    assert (ended.value.code, "has no tasks" in capsys.readouterr().err) == (2, True)


def test_a_full_disk_below_its_output_ends_no_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Full(io.StringIO):
        error: OSError = OSError(errno.ENOSPC, "No space left on device")

        def flush(self) -> None:
            raise self.error

    monkeypatch.setattr("sys.stdout", Full())
    lines = run_verb._Lines(as_json=True)
    for phase in ("starting", "moving"):
        lines({"state": "running", "routes": [ROUTE | {"phase": phase}]})
    assert [each.message for each in caplog.records] == ["standard output refuses lines: No space left on device"]
    monkeypatch.setattr(Full, "error", BrokenPipeError())
    with pytest.raises(BrokenPipeError):
        lines({"state": "ended", "routes": [ROUTE]})
