"""The verbs lint, plan, apply, init and schema, with namespaces in memory."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
from typer.testing import CliRunner

import isthmus.connectors.administration
from isthmus.cli.app import create_app
from isthmus.connectors.administration import AdministrationError
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.supervisor.claim.claim import TaskClaimedError
from isthmus.supervisor.pause import PauseFile
from isthmus.supervisor.status import Footprint, StatusFile
from isthmus.testing.administration import FakeAdministration
from isthmus.topology import Change, NamespaceRef, NamespaceState, SubscriptionState, TopicState, lint
from isthmus.topology.file.name import state_folder

KEY = "bm90LWEta2V5LWJ1dC1sb25n"
INSTEAD = "write a reference instead: connection: env:NAME, file:/path#key or keyvault:vault/name"
SOUND = """\
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {connection: env:JFK_CONNECTION}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""
BROKEN = SOUND.replace("jfk]", "lax]").replace("topic:", "topik:") + f"colour: 'SharedAccessKey={KEY}'\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def namespaces(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeAdministration]:
    found = {alias: FakeAdministration(f"{alias}.test") for alias in ("ewr", "jfk")}

    def opener(namespace: NamespaceRef) -> FakeAdministration:
        return found[namespace.alias]

    defaults = isthmus.connectors.administration.Administrations.__init__.__defaults__
    assert defaults is not None
    monkeypatch.setattr(isthmus.connectors.administration.Administrations.__init__, "__defaults__", (opener,))
    return found


def call(verb: str, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(create_app(verb), [verb, *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def call_json(verb: str, *arguments: str) -> tuple[int, Any]:
    code, output = call(verb, *arguments, "--json")
    assert output.count("\n") == 1
    return code, json.loads(output)


def test_lint_says_all_faults_and_exits_with_2(folder: Path) -> None:
    (folder / "isthmus.yaml").write_text(BROKEN)
    code, output = call("lint")
    assert code == 2
    assert output.splitlines() == [
        "isthmus.yaml:6:3: task flights has no topic; write topic: flights, or queue: flights",
        "isthmus.yaml:6:34: task flights has no setting 'topik'; write topic",
        "isthmus.yaml:6:65: no namespace has the alias 'lax'; write one of ewr, jfk",
        "isthmus.yaml:7:1: the file has no setting 'colour'; write one of isthmus, namespaces, tasks, spark, pairs",
        f"isthmus.yaml:7:9: a secret is in the file; {INSTEAD}",
    ]
    code, answer = call_json("lint", "isthmus.yaml")
    assert code == 2
    assert not answer["ok"]
    assert [(fault["line"], fault["column"]) for fault in answer["faults"]] == [
        (6, 3),
        (6, 34),
        (6, 65),
        (7, 1),
        (7, 9),
    ]


def test_lint_of_a_sound_file(folder: Path) -> None:
    (folder / "a.yaml").write_text(SOUND)
    assert call("lint", "a.yaml") == (0, "a.yaml: 2 namespaces, 1 task, no fault\n")
    assert call_json("lint", "a.yaml") == (0, {"file": "a.yaml", "ok": True, "faults": [], "warnings": []})


def test_lint_warns_of_what_fills_a_topic_and_finds_no_fault_in_it(folder: Path) -> None:
    (folder / "a.yaml").write_text(SOUND.replace("jfk]}", "jfk], audit: off, subscriptions: [audit]}"))
    code, output = call("lint", "a.yaml")
    assert code == 0
    assert output.startswith("warning: a.yaml:")
    assert "keeps its messages for ever" in output
    assert "write audit: 1d" in output
    code, reported = call_json("lint", "a.yaml")
    assert (code, reported["ok"], len(reported["warnings"])) == (0, True, 1)


@pytest.mark.parametrize("verb", ["lint", "plan", "apply"])
def test_a_file_that_is_not_there_is_bad_input(folder: Path, verb: str) -> None:
    assert call(verb) == (2, "isthmus.yaml: there is no such file; start with one from: isthmus init all-active\n")
    code, answer = call_json(verb)
    assert code == 2
    assert answer["faults"][0]["message"] == "there is no such file"


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_a_file_with_faults_touches_no_namespace(
    folder: Path, namespaces: dict[str, FakeAdministration], verb: str
) -> None:
    (folder / "isthmus.yaml").write_text(BROKEN)
    code, output = call(verb)
    assert code == 2
    assert len(output.splitlines()) == 5
    assert KEY not in output
    assert not any(namespace.changes for namespace in namespaces.values())


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_namespaces_that_do_not_answer_are_named_at_once(
    folder: Path, namespaces: dict[str, FakeAdministration], verb: str
) -> None:
    (folder / "isthmus.yaml").write_text(SOUND)
    for namespace in namespaces.values():
        namespace.away = True
    code, answer = call_json(verb)
    assert (code, answer["error"]["retryable"]) == (1, True)
    assert [fault["line"] for fault in answer["faults"]] == [3, 4]


def test_what_only_the_operator_can_mend_is_bad_input_though_another_namespace_is_unavailable(
    folder: Path, namespaces: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "isthmus.yaml").write_text(SOUND)
    namespaces["jfk"].away = True

    def refused(*_: object) -> None:
        raise AdministrationError("ewr.test", "refused the key")

    monkeypatch.setattr(namespaces["ewr"], "observe", refused)
    code, output = call("plan")
    assert (code, "refused the key" in output, "jfk.test: cannot be reached" in output) == (2, True, True)


def test_plan_shows_what_apply_makes(folder: Path, namespaces: dict[str, FakeAdministration]) -> None:
    (folder / "isthmus.yaml").write_text(SOUND)
    code, answer = call_json("plan")
    assert code == 0
    assert answer["ok"]
    assert not any(namespace.changes for namespace in namespaces.values())
    code, output = call("plan")
    assert code == 0
    assert "flights/Subscriptions/isthmus.flights.jfk" in output
    assert "2 routes" in output
    code, applied = call_json("apply")
    assert code == 0
    assert applied["applied"] == answer["changes"]
    assert applied["failed"] is None
    assert call_json("plan")[1]["changes"] == []
    assert "Nothing to change" in call("apply")[1]


def test_a_conflict_is_bad_input_and_changes_nothing(folder: Path, namespaces: dict[str, FakeAdministration]) -> None:
    (folder / "isthmus.yaml").write_text(SOUND.replace("topic: flights", "topic: flights, duplicates: message-id"))
    namespaces["jfk"] = FakeAdministration("jfk.test", [TopicState(name="flights", duplicate_detection_ms=0)])
    for verb in ("plan", "apply"):
        code, output = call(verb)
        assert code == 2
        assert "cannot be turned on" in output
        code, answer = call_json(verb)
        assert code == 2
        assert answer["faults"][0]["line"] == 4
    assert not any(namespace.changes for namespace in namespaces.values())


def test_a_run_that_is_alive_is_reported_where_something_changes(
    folder: Path, namespaces: dict[str, FakeAdministration]
) -> None:
    """A member that was added would get its copies twice: they bear the mark that it has read."""
    (folder / "isthmus.yaml").write_text(SOUND)
    status = StatusFile(state_folder(folder / "isthmus.yaml"))
    reported = f"a run of this file is alive, process {os.getpid()}"
    assert not any(reported in each for each in call_json("plan")[1]["notes"])
    status.write("running", [], Footprint())
    for verb in ("plan", "apply"):
        (note,) = [each for each in call_json(verb)[1]["notes"] if reported in each]
        assert note.endswith("end it before apply, and restart it")
    assert not any(reported in each for each in call_json("apply")[1]["notes"])  # nothing changes


def test_a_failed_apply_distinguishes_done_from_not_begun(
    folder: Path, namespaces: dict[str, FakeAdministration]
) -> None:
    (folder / "isthmus.yaml").write_text(SOUND)
    namespaces["jfk"].refuse_after = 1
    code, output = call("apply")
    assert code == 1
    assert "refused with 403" in output
    assert "changes not begun" in output
    namespaces["jfk"].refuse_after = None
    assert call("apply")[0] == 0
    assert call_json("plan")[1]["changes"] == []


def _interrupted(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, Any]:
    """Of a verb that gets Ctrl-C while its first change is made: exit code, and what it prints as JSON."""
    make = FakeAdministration.make

    def made(administration: FakeAdministration, change: Change) -> None:
        make(administration, change)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(FakeAdministration, "make", made)
        result = CliRunner().invoke(create_app(arguments[0]), [*arguments, "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_ctrl_c_ends_apply_after_the_change_that_is_under_way_and_what_was_done_is_reported(
    folder: Path, namespaces: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended in the middle of a change, and printed nothing."""
    (folder / "isthmus.yaml").write_text(SOUND)
    planned = call_json("plan")[1]["changes"]
    code, reported = _interrupted(monkeypatch, "apply")
    assert (code, reported["ok"], reported["failed"]) == (130, False, None)
    assert [len(reported["applied"]), len(reported["pending"])] == [1, len(planned) - 1]
    assert sum(len(each.changes) for each in namespaces.values()) == 1
    code, reported = call_json("apply")
    assert (code, reported["ok"], len(reported["applied"])) == (0, True, len(planned) - 1)


def test_ctrl_c_ends_remove_after_the_deletion_that_is_under_way(
    shrunk: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, reported = _interrupted(monkeypatch, "remove", "isthmus.yaml", "lga", "--yes")
    assert (code, reported["ok"]) == (130, False)
    assert [len(reported["removed"]["applied"]), len(reported["removed"]["pending"])] == [1, 5]
    code, reported = call_json("remove", "isthmus.yaml", "lga", "--yes")
    assert (code, len(reported["removed"]["applied"])) == (0, 5)


def test_init_writes_a_file_without_faults_once(folder: Path) -> None:
    assert call("init", "all-active")[0] == 0
    assert lint((folder / "isthmus.yaml").read_text()) == []
    for arguments in (["all-active"], ["spillover"], ["all-activ"]):
        result = CliRunner().invoke(create_app("init"), ["init", *arguments])
        assert result.exit_code != 0
        assert getattr(result.exception, "code", "") == "invalid-argument"
    assert call_json("init", "all-active", "--force") == (0, {"file": "isthmus.yaml", "pattern": "all-active"})
    assert call("init", "all-active", "-") == (0, (folder / "isthmus.yaml").read_text())


def test_schema_is_json() -> None:
    assert call_json("schema")[1]["title"] == "isthmus federation file"
    assert json.loads(call("schema")[1]) == call_json("schema")[1]


THREE = SOUND.replace("tasks:", "  lga: {connection: env:LGA_CONNECTION}\ntasks:").replace("jfk]", "jfk, lga]")


@pytest.fixture
def shrunk(
    folder: Path, namespaces: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> dict[str, FakeAdministration]:
    """Three members that were applied, of which the file now has two."""
    namespaces["lga"] = FakeAdministration("lga.test")
    (folder / "isthmus.yaml").write_text(THREE)
    assert call("apply")[0] == 0
    (folder / "isthmus.yaml").write_text(THREE.replace("jfk, lga]", "jfk]"))
    namespaces["ewr"].messages["flights/Subscriptions/isthmus.flights.lga"] = 1234
    monkeypatch.setattr("isthmus.supervisor.claim.removal.held_claims", lambda *_: nullcontext())
    return namespaces


def test_apply_prunes_only_with_consent_and_names_what_waits(shrunk: dict[str, FakeAdministration]) -> None:
    code, output = call("apply", "--prune")
    assert code == 0
    assert "5 entities that no task needs" in output
    assert "1,234" in output
    assert "Nothing was deleted; add --yes" in output
    assert not any(change.action == "delete" for each in shrunk.values() for change in each.changes)
    assert any("lga" in each and "fills up" in each for each in call_json("apply", "--prune")[1]["notes"])
    code, answer = call_json("apply", "--prune", "--yes")
    assert not any("fills up" in each for each in answer["notes"])
    assert (code, answer["ok"], len(answer["orphans"]), answer["unknown_tasks"]) == (0, True, 5, [])
    assert [row["messages"] for row in answer["orphans"] if row["messages"]] == [1234]
    assert {change["action"] for change in answer["removed"]["applied"]} == {"delete"}
    code, answer = call_json("apply", "--prune")
    assert (answer["orphans"], answer["removed"]) == ([], None)


def test_apply_prunes_what_forwards_to_a_task_that_names_another_queue(
    folder: Path, namespaces: dict[str, FakeAdministration]
) -> None:
    file = folder / "isthmus.yaml"
    head = SOUND[: SOUND.index("tasks:")]
    text = f"{head}tasks:\n  pay: {{pattern: spillover, queue: payments, members: [ewr, jfk], deadline: 10m}}\n"
    file.write_text(text)
    assert call("apply")[0] == 0
    file.write_text(text.replace("queue: payments", "queue: refunds"))
    assert "queue refunds did not forward to it" in " ".join(call("apply")[1].split())
    code, output = call("apply", "--prune")
    assert code == 0
    assert "queue payments at ewr forwards its dead-lettered messages to isthmus.pay" in " ".join(output.split())
    assert "add --yes to end it" in output
    code, answer = call_json("apply", "--prune", "--yes")
    assert (code, answer["ok"]) == (0, True)
    assert [(row["namespace"], row["path"]) for row in answer["forwarding"]] == [
        ("ewr", "payments"),
        ("jfk", "payments"),
    ]
    assert len(answer["ended"]["applied"]) == 2
    assert call_json("apply", "--prune")[1]["forwarding"] == []


def test_yes_goes_with_prune(folder: Path) -> None:
    result = CliRunner().invoke(create_app("apply"), ["apply", "--yes"])
    assert "--yes goes with --prune" in str(result.exception)


def test_remove_takes_what_a_member_or_a_task_left(shrunk: dict[str, FakeAdministration], folder: Path) -> None:
    file = folder / "isthmus.yaml"
    code, output = call("remove", "isthmus.yaml", "lga")
    assert (code, "5 entities" in output, "Nothing was deleted" in output) == (0, True, True)
    assert call("remove", "isthmus.yaml", "lga", "--yes")[0] == 0
    assert call("remove", "isthmus.yaml", "lga") == (0, "The namespaces of isthmus.yaml have nothing of lga.\n")
    file.write_text(file.read_text().replace("flights: {", "gates: {").replace("topic: flights", "topic: gates"))
    assert call("apply")[0] == 0
    _, output = call("apply", "--prune")
    assert "task flights has entities at ewr, jfk and is not in this file" in output
    assert "isthmus remove isthmus.yaml flights" in output
    paused = PauseFile(state_folder(file))
    assert paused.pause("flights")
    assert call_json("remove", "isthmus.yaml", "flights")[0] == 0
    assert "flights" in paused.tasks()
    code, answer = call_json("remove", "isthmus.yaml", "flights", "--yes")
    assert (code, answer["ok"], len(answer["orphans"])) == (0, True, 4)
    assert not paused.tasks(), "a task that is given its name would begin paused"
    assert not any(
        topic.name == "isthmus.claims" and len(topic.subscriptions) != 1 for topic in shrunk["ewr"].inventory("ewr")
    )


def test_a_claim_that_another_operator_made_meanwhile_stays(
    shrunk: dict[str, FakeAdministration], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic of claims goes with the last claim that was seen there; a run elsewhere may hold one since."""
    lga, make = shrunk["lga"], FakeAdministration.make
    claims = [
        Change(
            alias="lga",
            action="create",
            kind="subscription",
            topic="isthmus.claims",
            subscription="gates",
            after=SubscriptionState(name="gates"),
        )
    ]

    def interrupted(self: FakeAdministration, change: Change) -> None:
        while self is lga and claims:
            make(lga, claims.pop())
        make(self, change)

    monkeypatch.setattr(FakeAdministration, "make", interrupted)
    code, answer = call_json("remove", "isthmus.yaml", "lga", "--yes")
    assert (code, answer["ok"], answer["removed"]["pending"]) == (0, True, [])
    assert "isthmus.claims" not in {each["path"] for each in answer["removed"]["applied"]}
    claims_topic = lga.inventory("lga").topic("isthmus.claims")
    assert claims_topic is not None
    assert [each.name for each in claims_topic.subscriptions] == ["gates"]


def test_what_waits_in_a_spool_of_a_removed_task_is_reported(
    shrunk: dict[str, FakeAdministration], folder: Path
) -> None:
    """Its source has it no more, and no run of the file would send it."""
    spool = state_folder(folder / "isthmus.yaml") / "spools" / "gates.ewr.jfk" / "in"
    writer = SpoolWriter(spool).open()
    writer.append([Record("ewr/gates id", number, 0, b"message") for number in range(3)])
    writer.sync()
    writer.close()
    for verb in (("remove", "isthmus.yaml", "gates", "--yes"), ("apply", "--prune")):
        code, answer = call_json(*verb)
        assert (code, answer["spools"]) == (0, [{"spool": str(spool), "messages": 3}])
        reported = " ".join(call(*verb)[1].split())
        assert f"spool {spool} has 3 messages that were taken from their source" in reported
    assert "spools" not in call_json("apply")[1]


def test_what_was_deleted_before_a_namespace_went_away_is_reported(
    shrunk: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> None:
    lga, make = shrunk["lga"], FakeAdministration.make

    def goes(self: FakeAdministration, change: Change) -> None:
        make(self, change)
        lga.away = change.topic == "isthmus.claims"

    monkeypatch.setattr(FakeAdministration, "make", goes)
    code, answer = call_json("remove", "isthmus.yaml", "lga", "--yes")
    removed = answer["removed"]
    assert (code, removed["failed"]["path"], removed["failed"]["error"]["code"], removed["pending"]) == (
        1,
        "isthmus.claims",
        "namespace-unreachable",
        [],
    )
    assert len(removed["applied"]) == len(answer["orphans"])


def test_what_came_into_an_orphan_until_nothing_forwarded_to_it_is_not_deleted_unsaid(
    namespaces: dict[str, FakeAdministration], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application's queue continues to forward into the topic of a split while its messages are counted."""
    task = "  gone: {pattern: split, source: ewr, queue: q, targets: [{to: jfk, queue: a}]}\n"
    (folder / "isthmus.yaml").write_text(SOUND + task)
    assert call("apply")[0] == 0
    (folder / "isthmus.yaml").write_text(SOUND)
    monkeypatch.setattr("isthmus.supervisor.claim.removal.held_claims", lambda *_: nullcontext())
    ewr, make = namespaces["ewr"], FakeAdministration.make
    path = "isthmus.gone/Subscriptions/isthmus.gone.jfk"

    def forwarded(self: FakeAdministration, change: Any) -> None:
        if (change.action, change.topic) == ("update", "q"):
            ewr.messages[path] = 3
        make(self, change)

    monkeypatch.setattr(FakeAdministration, "make", forwarded)
    code, answer = call_json("remove", "isthmus.yaml", "gone", "--yes")
    assert (code, answer["ok"], answer["error"]["code"]) == (1, False, "orphan-filled")
    assert "3 messages" in answer["error"]["message"]
    assert [(each["action"], each["path"]) for each in answer["removed"]["applied"]] == [("update", "q")]
    code, answer = call_json("remove", "isthmus.yaml", "gone", "--yes")
    assert (code, answer["ok"]) == (0, True)
    assert {"isthmus.gone"} == {each["path"] for each in answer["orphans"] if each["messages"] == 3}


def test_remove_says_what_was_refused(shrunk: dict[str, FakeAdministration]) -> None:
    shrunk["jfk"].refuse_after = 0
    code, output = call("remove", "isthmus.yaml", "lga", "--yes")
    assert code == 1
    assert "failed: jfk.test: refused with 403" in output
    shrunk["jfk"].refuse_after = None
    assert call("remove", "isthmus.yaml", "lga", "--yes")[0] == 0


def test_an_alias_of_the_same_namespace_loses_no_task_its_entities(
    folder: Path, namespaces: dict[str, FakeAdministration]
) -> None:
    """What a task wants at `ewr` is an orphan at `also`, which is `ewr` by another host name and key."""
    namespaces["ewr"].identity = "one"
    namespaces["jfk"].identity = "another"
    (folder / "isthmus.yaml").write_text(SOUND.replace("tasks:", "  also: {connection: env:ALSO}\ntasks:"))
    namespaces["also"] = namespaces["ewr"]
    assert call("apply") == (0, ANY)
    for arguments in (("apply", "--prune", "--yes"), ("remove", "isthmus.yaml", "ewr", "--yes")):
        code, output = call(*arguments)
        assert (code, "namespace also: ewr.test is namespace ewr too" in output) == (2, True)
    assert not any(change.action == "delete" for change in namespaces["ewr"].changes)


def test_what_was_applied_is_reported_though_the_search_for_orphans_failed(
    shrunk: dict[str, FakeAdministration], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = folder / "isthmus.yaml"
    file.write_text(file.read_text() + "  gates: {pattern: all-active, topic: gates, members: [ewr, jfk]}\n")
    looks = iter([False, False, True])  # of what former topics have, before and after the changes
    inventory = shrunk["lga"].inventory

    def away_the_second_time(alias: str) -> NamespaceState:
        shrunk["lga"].away = next(looks)
        return inventory(alias)

    monkeypatch.setattr(shrunk["lga"], "inventory", away_the_second_time)
    code, answer = call_json("apply", "--prune", "--yes")
    assert (code, answer["ok"]) == (1, False)
    assert "gates" in {change["path"] for change in answer["applied"]}


def test_nothing_is_deleted_under_a_run_that_holds_the_claim(
    shrunk: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def refuse(_: object, wanted: list[tuple[str, str]]) -> None:
        asked.extend(wanted)
        raise TaskClaimedError("flights", "lga", "process 7 on here")

    monkeypatch.setattr("isthmus.supervisor.claim.removal.held_claims", refuse)
    for arguments in (("apply", "--prune", "--yes"), ("remove", "isthmus.yaml", "lga", "--yes")):
        code, answer = call_json(*arguments)
        assert (code, answer["ok"], answer["error"]["code"], answer["removed"]) == (1, False, "task-claimed", None)
        code, output = call(*arguments)
        assert (code, "task flights is run by process 7 on here" in output) == (1, True)
    assert set(asked) == {("flights", alias) for alias in ("ewr", "jfk", "lga")}
    assert not any(change.action == "delete" for each in shrunk.values() for change in each.changes)


def test_what_another_file_with_this_task_still_moves_is_not_deleted_under_its_run(
    folder: Path, namespaces: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files have a task of one name and share a namespace: what the one made there seems to be left over by the other."""
    namespaces["lga"] = FakeAdministration("lga.test")
    (folder / "isthmus.yaml").write_text(THREE.replace("[ewr, jfk, lga]", "[ewr, lga]"))
    assert call("apply")[0] == 0
    (folder / "isthmus.yaml").write_text(SOUND)
    asked: list[tuple[str, str]] = []

    def refuse(_: object, wanted: list[tuple[str, str]]) -> None:
        asked.extend(wanted)
        raise TaskClaimedError("flights", "ewr", "process 7 on here")

    monkeypatch.setattr("isthmus.supervisor.claim.removal.held_claims", refuse)
    code, answer = call_json("apply", "--prune", "--yes")
    assert [row["path"] for row in answer["orphans"]] == ["flights/Subscriptions/isthmus.flights.lga"]
    assert (code, answer["error"]["code"], answer["removed"]) == (1, "task-claimed", None)
    assert ("flights", "ewr") in asked


def test_plan_shows_by_its_exit_code_whether_there_are_changes(
    folder: Path, namespaces: dict[str, FakeAdministration]
) -> None:
    (folder / "isthmus.yaml").write_text(SOUND)
    code, output = call("plan", "--detailed-exitcode")
    assert code == 2
    assert "+ create" in output
    assert call("plan")[0] == 0
    assert call("apply")[0] == 0
    assert call("plan", "--detailed-exitcode")[0] == 0
    (folder / "isthmus.yaml").write_text(BROKEN)
    assert call("plan", "--detailed-exitcode")[0] == 1
    assert call("plan")[0] == 2


def test_init_without_a_pattern_lists_them(folder: Path) -> None:
    code, output = call("init")
    assert code == 0
    assert "all-active" in output
    assert output.splitlines()[-1] == "Write isthmus.yaml with one of them: isthmus init PATTERN"
    assert not (folder / "isthmus.yaml").exists()
    code, answer = call_json("init")
    assert "spillover" in answer["patterns"]


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_what_a_task_has_left_at_its_former_topic_is_noted(
    folder: Path, namespaces: dict[str, FakeAdministration], verb: str
) -> None:
    """Before the new one's are made: then only `--prune` names the former one."""
    (folder / "isthmus.yaml").write_text(SOUND)
    assert call("apply")[0] == 0
    (folder / "isthmus.yaml").write_text(SOUND.replace("topic: flights", "topic: arrivals"))
    code, reported = call_json(verb)
    assert code == 0
    assert [note.partition(",")[0] for note in reported["notes"]] == [
        f"subscription isthmus.flights.{other} of flights at {alias} belongs to task flights"
        for alias, other in (("ewr", "jfk"), ("jfk", "ewr"))
    ]


def test_what_a_namespace_does_not_report_of_former_topics_is_no_fault_of_a_plan(
    folder: Path, namespaces: dict[str, FakeAdministration], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(alias: str) -> NamespaceState:
        raise AdministrationError("ewr.test", "refused with 401")

    (folder / "isthmus.yaml").write_text(SOUND)
    monkeypatch.setattr(namespaces["ewr"], "inventory", refused)
    code, reported = call_json("plan")
    assert (code, reported["ok"]) == (0, True)
