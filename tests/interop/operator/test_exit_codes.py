"""docs/reference/exit-codes.md: every command ends with every code of its row, and every command has a help.

A cell of the page without a case here fails, and so does a case without a cell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from azure.servicebus import ServiceBusMessage

from isthmus.cli.app import create_app, main
from isthmus.client import DurableSender
from isthmus.demo.drill.drill import DrillReport
from isthmus.errors import IsthmusError
from isthmus.operations.replay import Replayed
from isthmus.replication.spark.class_archive import ClassArchive, ClassArchiveError
from isthmus.testing.federation import FederationProcess

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "exit-codes.md"
AWAY = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"
VERBS = "tests/unit/cli/supervision/test_supervision_verbs.py"
TOPOLOGY = "tests/unit/cli/federation/test_topology_verbs.py"
SERVE = "tests/unit/cli/namespace/test_namespace_verb.py"
HEALTH = "tests/unit/cli/namespace/test_health.py"


class Stage(NamedTuple):
    """What a case may use; `file` is a federation that was applied."""

    folder: Path
    file: Path
    data: Path
    patch: pytest.MonkeyPatch


Words = Sequence[str]
Case = Words | Callable[[Stage], Words] | str


def exported(stage: Stage) -> Words:
    ended("export", "flights/Subscriptions/audit", str(stage.folder / "messages"))
    return ("import", str(stage.folder / "messages"), "flights")


def outbox(stage: Stage) -> Words:
    with DurableSender(AWAY, "orders", stage.folder / "box", drain=False) as sender:
        sender.send_messages(ServiceBusMessage("x"))
    return ("outbox", "status", str(stage.folder / "box"))


def undelivered(stage: Stage) -> Words:
    outbox(stage)
    return ("outbox", "drain", str(stage.folder / "box"), "--connection", "env:AWAY", "--timeout", "0.2")


def waiting(stage: Stage) -> Words:
    ended("send", "flights", "x")
    return ("receive", "flights/Subscriptions/audit", "--max", "0", "--wait", "0.5")


def measured(stage: Stage) -> Words:
    stage.patch.setattr("isthmus.bench.namespace.measure_namespace", lambda *_: {"rate": 1})
    return ("bench", "namespace", "--data", str(stage.folder))


def not_measured(stage: Stage) -> Words:
    def fail(*_: Any) -> None:
        raise IsthmusError("the namespace has ended")

    stage.patch.setattr("isthmus.bench.namespace.measure_namespace", fail)
    return ("bench", "namespace", "--data", str(stage.folder))


def blocked(verb: str) -> Callable[[Stage], Words]:
    """The state folder would be below a file."""

    def made(stage: Stage) -> Words:
        (stage.folder / "taken").touch()
        return (verb, str(stage.file), "flights", "--state", str(stage.folder / "taken" / "state"))

    return made


def selected(stage: Stage) -> Words:
    (stage.folder / "message.json").write_text('{"user": {"carrier": "UA"}}')
    return ("rules", "eval", "--filter", "carrier = 'UA'", "--message", str(stage.folder / "message.json"))


def replayed(damaged: int) -> Callable[[Stage], Words]:
    """A replay that finds rows of which some are damaged."""

    def made(stage: Stage) -> Words:
        def chosen(_: Path, __: object, found: Replayed) -> Iterator[None]:
            found.damaged = damaged
            yield None

        stage.patch.setattr("isthmus.operations.replay.chosen", chosen)
        return ("replay", "{archive}", "kept", "ewr/flights")

    return made


def drilled(lost: int) -> Callable[[Stage], Words]:
    """A drill that has lost messages."""

    def made(stage: Stage) -> Words:
        report = DrillReport(
            rpo_messages=0, rto_seconds=1.0, sent=10, handled=10 - lost, handled_twice=0, suppressed=0, lost=lost
        )
        stage.patch.setattr("isthmus.demo.drill.drill.rehearse", lambda *_: report)
        return ("drill", "all-active")

    return made


def prepared(fault: str = "") -> Callable[[Stage], Words]:
    """An archive of Spark's classes that is written at once, or not."""

    def made(stage: Stage) -> Words:
        def write(archive: ClassArchive) -> None:
            if fault:
                raise ClassArchiveError(str(archive.file), fault)
            archive.folder.mkdir(parents=True)
            archive.file.touch()

        stage.patch.setattr("sys.prefix", str(stage.folder))
        stage.patch.setattr("isthmus.replication.spark.class_training.write_archive", write)
        return ("prepare",)

    return made


CASES: dict[tuple[str, int], Case] = {
    ("lint", 0): ("lint", "{file}"),
    ("lint", 2): ("lint", "{bad}"),
    ("schema", 0): ("schema",),
    ("schema", 2): ("schema", "--nonsense"),
    ("init", 0): ("init", "all-active", "-"),
    ("init", 2): ("init", "all-activ", "-"),
    ("completion", 0): ("completion", "bash"),
    ("completion", 2): ("completion", "cmd"),
    ("prepare", 0): prepared(),
    ("prepare", 1): prepared("No space left on device"),
    ("prepare", 2): ("prepare", "--nonsense"),
    ("plan", 0): ("plan", "{file}"),
    ("plan", 1): ("plan", "{away}"),
    ("plan", 2): ("plan", "{bad}"),
    ("plan --detailed-exitcode", 0): ("plan", "--detailed-exitcode", "{file}"),
    ("plan --detailed-exitcode", 1): ("plan", "--detailed-exitcode", "{bad}"),
    ("plan --detailed-exitcode", 2): ("plan", "--detailed-exitcode", "{more}"),
    ("apply", 0): ("apply", "{file}"),
    ("apply", 1): ("apply", "{away}"),
    ("apply", 2): ("apply", "{bad}"),
    ("remove", 0): ("remove", "{file}", "trains"),
    ("remove", 1): ("remove", "{away}", "trains", "--yes"),
    ("remove", 2): ("remove", "{file}", "flights"),
    ("doctor", 0): ("doctor", "{file}"),
    ("doctor", 1): ("doctor", "{away}"),
    ("doctor", 2): ("doctor", "{bad}"),
    ("run", 0): f"{VERBS}::test_run_shows_changes_and_the_end",
    ("run", 1): f"{VERBS}::test_run_shows_changes_and_the_end",
    ("run", 2): ("run", "{bad}"),
    ("status", 0): f"{VERBS}::test_status_of_a_living_run_shows_by_its_code_whether_all_routes_are_well",
    ("status", 1): ("status", "{file}"),
    ("status", 2): ("status", "{bad}"),
    ("verify", 0): f"{VERBS}::test_verify_fails_on_what_is_lost_doubled_or_out_of_order",
    ("verify", 1): f"{VERBS}::test_verify_fails_on_what_is_lost_doubled_or_out_of_order",
    ("verify", 2): ("verify", "{bad}"),
    ("verify", 3): ("verify", "{away}"),
    ("pause", 0): ("pause", "{file}", "flights", "--state", "{folder}"),
    ("pause", 1): blocked("pause"),
    ("pause", 2): ("pause", "{file}", "trains"),
    ("resume", 0): ("resume", "{file}", "flights", "--state", "{folder}"),
    ("resume", 1): blocked("resume"),
    ("resume", 2): ("resume", "{file}", "trains"),
    ("redrive", 0): ("redrive", "{file}"),
    ("redrive", 1): ("redrive", "{away}"),
    ("redrive", 2): ("redrive", "{file}", "--yes", "--dry-run"),
    ("resubmit", 0): ("resubmit", "flights/Subscriptions/audit"),
    ("resubmit", 1): ("resubmit", "nowhere"),
    ("resubmit", 2): ("resubmit", "flights/Subscriptions/audit", "--filter", "carrier ="),
    ("purge", 0): ("purge", "flights/Subscriptions/audit"),
    ("purge", 1): ("purge", "nowhere"),
    ("purge", 2): ("purge", "flights/Subscriptions/audit", "--filter", "carrier ="),
    ("export", 0): ("export", "flights/Subscriptions/audit", "{folder}/messages"),
    ("export", 1): ("export", "nowhere", "{folder}/messages"),
    ("export", 2): ("export", "flights/Subscriptions/audit", "{folder}/messages", "--filter", "carrier ="),
    ("import", 0): exported,
    ("import", 1): ("import", "{folder}/none", "nowhere"),
    ("import", 2): ("import", "{folder}/none", "flights", "--new-message-ids", "--keep-message-ids"),
    ("replay", 0): replayed(damaged=0),
    ("replay", 1): replayed(damaged=1),
    ("replay", 2): ("replay", "{file}", "flights", "ewr/orders"),
    ("peek", 0): ("peek", "flights/Subscriptions/audit"),
    ("peek", 1): ("peek", "nowhere"),
    ("peek", 2): ("peek", "flights/Subscriptions/audit", "--filter", "carrier ="),
    ("entity", 0): ("entity", "list"),
    ("entity", 1): ("entity", "show", "nowhere"),
    ("entity", 2): ("entity", "create", "made", "no_such_setting=1"),
    ("send", 0): ("send", "flights", "x"),
    ("send", 1): ("send", "nowhere", "x"),
    ("send", 2): ("send", "flights", "x", "--property", "malformed"),
    ("receive", 0): waiting,
    ("receive", 1): ("receive", "nowhere"),
    ("receive", 2): ("receive", "flights/Subscriptions/audit", "--max", "-1"),
    ("namespace serve", 0): f"{SERVE}::test_it_prints_one_object_and_ends_cleanly",
    ("namespace serve", 1): f"{SERVE}::test_a_folder_in_use_is_refused",
    ("namespace serve", 2): f"{SERVE}::test_faults_of_a_file_are_reported_all_at_once_with_exit_code_2",
    ("namespace health", 0): ("namespace", "health", "--data", "{data}"),
    ("namespace health", 1): ("namespace", "health", "--data", "{folder}"),
    ("namespace stats", 0): ("namespace", "stats", "--interval", "0.1"),
    ("namespace stats", 1): ("namespace", "stats", "--connection", "env:AWAY"),
    ("namespace stats", 2): ("namespace", "stats", "--connection", "env:AWAY", "--data", "{data}"),
    ("namespace keys", 0): ("namespace", "keys", "--data", "{data}"),
    ("namespace keys", 2): ("namespace", "keys", "--data", "{folder}"),
    ("namespace backup", 0): ("namespace", "backup", "{folder}/backup", "--data", "{data}"),
    ("namespace backup", 1): ("namespace", "backup", "{folder}/backup", "--data", "{folder}/none"),
    ("namespace backup", 2): ("namespace", "backup", "{folder}", "--data", "{data}"),
    ("pair", 0): ("pair", "create", "contoso", "{file}", "--state", "{folder}/pair", "--dry-run"),
    ("pair", 1): ("pair", "create", "contoso", "{away}", "--state", "{folder}/pair", "--dry-run"),
    ("pair", 2): ("pair", "status", "acme", "{file}"),
    ("outbox", 0): outbox,
    ("outbox", 1): undelivered,
    ("outbox", 2): ("outbox", "status", "{folder}/none"),
    ("rules", 0): selected,
    ("rules", 2): ("rules", "eval", "--filter", "carrier =", "--message", "{file}"),
    ("demo", 0): f"{VERBS}::test_the_demos_last_line_is_its_report",
    ("demo", 1): f"{VERBS}::test_the_demos_last_line_is_its_report",
    ("demo", 2): ("demo", "--keep", "{data}"),
    ("drill", 0): drilled(lost=0),
    ("drill", 1): drilled(lost=1),
    ("drill", 2): ("drill", "spillover"),
    ("bench", 0): measured,
    ("bench", 1): not_measured,
    ("bench", 2): ("bench", "namespace", "--messages", "none"),
}  # fmt: skip


def cells() -> set[tuple[str, int]]:
    """Each command of the page with each code that its row says something about."""
    found = set()
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        commands, *meanings, other = re.split(r"\s*\|\s*", line)[1:-1]
        codes = [code for code, meaning in enumerate(meanings) if meaning]
        codes += [int(code) for code in re.findall(r"\d+(?=:)", other)]
        found |= {(command, code) for command in re.findall(r"`([^`]+)`", commands) for code in codes}
    return found


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def ended(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


@pytest.fixture(scope="module", name="running")
def _running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("codes"), settings=["audit: 1d"]) as opened:
        yield opened


@pytest.fixture(name="stage")
def _stage(running: FederationProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWAY", AWAY)
    monkeypatch.setenv("ISTHMUS_CONNECTION", running.namespaces["ewr"].connection_string)
    return Stage(tmp_path, running.file, running.namespaces["ewr"].data, monkeypatch)


def files(stage: Stage) -> dict[str, str]:
    """What the arguments of a case name: the file, one with faults, one of which a namespace is away, one with a further task."""
    text = stage.file.read_text(encoding="utf-8")
    pair = "pairs: {contoso: {primary: ewr, secondary: jfk}}\n"
    written = {
        "file": text + pair,
        "bad": text.replace("pattern:", "patern:"),
        "away": re.sub(r"  jfk: .*", "  jfk: {connection: env:AWAY}", text) + pair,
        "archive": text + "  kept: {pattern: archive, source: ewr, topic: flights, table: lake}\n",
        "more": text + "  trains: {pattern: all-active, topic: trains, members: [ewr, jfk]}\n",
    }
    found = {"folder": str(stage.folder), "data": str(stage.data)}
    for name, content in written.items():
        path = stage.file.parent / f"{name}.yaml"
        path.write_text(content, encoding="utf-8")
        found[name] = str(path)
    return found


def test_every_cell_has_a_case_and_every_case_a_cell() -> None:
    assert sorted(CASES) == sorted(cells())


@pytest.mark.parametrize(
    ("command", "code"), [key for key, case in CASES.items() if not isinstance(case, str)], ids=str
)
def test_a_command_ends_with_the_code_of_the_page(
    command: str, code: int, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    case = CASES[command, code]
    assert not isinstance(case, str)
    arguments = case(stage) if callable(case) else case
    named = files(stage)
    found = ended(*(word.format(**named) for word in arguments))
    reported = capsys.readouterr()
    assert found == code, (arguments, reported)
    assert "Traceback" not in reported.err
    assert code in (0, 130) or reported.out + reported.err


@pytest.mark.parametrize("case", sorted({case for case in CASES.values() if isinstance(case, str)}))
def test_a_case_elsewhere_is_there(case: str) -> None:
    path, _, name = case.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_ctrl_c_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("isthmus.topology.file.source.Path.read_text", interrupted)
    assert ended("lint") == 130


@pytest.mark.parametrize("path", [" ".join(each) for each in commands(typer.main.get_command(create_app()))])
def test_every_command_has_a_help_that_fits_80_columns(
    path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert ended(*path.split(), "--help") == 0
    shown = capsys.readouterr().out
    assert f"isthmus {path}".strip() in shown
    assert max(map(len, shown.splitlines())) <= 80
