"""The status of a federation whose run has ended: its last counts, and the present backlog."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.errors import ConnectionLostError
from isthmus.replication.query.route_progress import RouteProgress
from isthmus.replication.query.tally import Counts
from isthmus.supervisor.condition import Condition
from isthmus.supervisor.status import Footprint, StatusFile, describe
from isthmus.supervisor.watch import survey as survey_module
from isthmus.supervisor.watch.fill import Fill
from isthmus.supervisor.watch.survey import survey
from isthmus.topology import read
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.route import routes

FEDERATION = read(
    """isthmus: 1
namespaces:
  ewr: {host: ewr.example.com}
  jfk: {host: jfk.example.com}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""
)


class NamespaceClients:
    """Of two namespaces one is away; in the other a message waits."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def peek(self, endpoint: Endpoint) -> Any:
        if endpoint.alias == "jfk":
            raise ConnectionLostError("jfk.example.com: Connection refused")
        annotations = {Symbol("x-opt-sequence-number"): Long(1), Symbol("x-opt-enqueued-time"): Timestamp(1)}
        message = section.encode_message(b"", annotations=annotations)

        def look(start: int, _: int) -> Sequence[bytes]:
            return [message] if start <= 1 else []

        return look


@pytest.mark.parametrize(("state", "reported"), [("ended", "ended"), ("running", "gone without ending")])
def test_a_run_that_has_ended_keeps_its_last_counts(
    state: str, reported: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey_module, "NamespaceClients", NamespaceClients)
    monkeypatch.setattr(survey_module, "fill_now", lambda *_: [Fill("ewr", "flights", 1 << 29, 1 << 30, 2.5)])
    condition = Condition()
    condition.starting(0)
    condition.seen(1, RouteProgress(counts=Counts(1005, 1000, 3, 2)))
    condition.stopped()
    file = StatusFile(tmp_path)
    file._head["process_started"] = 1.0  # of another process, which has ended
    file.write(state, [describe(route, condition, 2) | {"dropped": 7} for route in routes(FEDERATION)], Footprint())
    found = survey(FEDERATION, tmp_path)
    assert (found["alive"], found["state"]) == (False, reported)
    here, there = found["routes"]
    assert (here["phase"], here["moved"], here["dead_lettered"], here["discarded"]) == ("stopped", 1000, 3, 2)
    assert (here["dropped"], here["waiting"]) == (7, 1)
    assert (found["fill"][0]["percent"], found["fill"][0]["hours_until_full"]) == (50.0, 2.5)
    assert here["oldest_since"].startswith("1970-01-01")
    assert there["away"] == {
        "namespace": "jfk",
        "reason": "jfk cannot be read: jfk (jfk.example.com): Connection refused",
    }


def test_a_source_that_fails_in_another_way_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(NamespaceClients):
        def peek(self, endpoint: Endpoint) -> Any:
            if endpoint.alias == "jfk":
                raise OSError(errno.ENETUNREACH, "Network is unreachable")
            return super().peek(endpoint)

    monkeypatch.setattr(survey_module, "NamespaceClients", Failing)
    monkeypatch.setattr(survey_module, "fill_now", lambda *_: [])
    here, there = survey(FEDERATION, tmp_path)["routes"]
    assert (here["waiting"], there["waiting"], there["away"]["namespace"]) == (1, None, "jfk")


def test_what_is_in_the_spools_of_a_run_that_has_died_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their source no longer has these messages: without them nothing would seem to wait."""
    monkeypatch.setattr(survey_module, "NamespaceClients", NamespaceClients)
    monkeypatch.setattr(survey_module, "fill_now", lambda *_: [])
    text = "isthmus: 1\nnamespaces:\n  ewr: {host: ewr.example.com}\n  jfk: {host: jfk.example.com}\ntasks:\n"
    table = tmp_path / "table"
    tasks = f"""\
  gates: {{pattern: copy, source: ewr, target: jfk, topic: gates, when_full: spool}}
  seats: {{pattern: copy, source: ewr, target: jfk, topic: seats, steps: [{{deduplicate: 10m}}]}}
  meals: {{pattern: archive, source: ewr, queue: meals, table: {table}}}
  crews: {{pattern: copy, source: ewr, target: jfk, topic: crews}}
"""
    federation = read(text + tasks)
    spools = {
        "gates": tmp_path / "spools" / "gates.ewr.jfk" / "in",
        "seats": tmp_path / "spools" / "seats.ewr.jfk" / "out",
        "meals": Path(str(next(route.options.table.spool for route in routes(federation) if route.options.table))),
    }
    for each in spools.values():
        writer = SpoolWriter(each).open()
        writer.append([Record("ewr/gates id", 1, 1, b"m"), Record("ewr/gates id", 2, 1, b"m")])
        writer.sync()
        writer.close()
    found = {route["task"]: route["spool"] for route in survey(federation, tmp_path)["routes"]}
    assert {task: spool and spool["waiting"] for task, spool in found.items()} == {
        "gates": 2,
        "seats": 2,
        "meals": 2,
        "crews": None,
    }


def test_without_any_run_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "NamespaceClients", NamespaceClients)
    monkeypatch.setattr(survey_module, "fill_now", lambda *_: [])
    found = survey(FEDERATION, tmp_path)
    assert (found["alive"], found["state"], found["routes"][0]["moved"]) == (False, "not running", 0)


def test_tasks_that_a_living_run_was_not_asked_to_run_are_named(tmp_path: Path) -> None:
    text = "isthmus: 1\nnamespaces:\n  ewr: {host: ewr.example.com}\n  jfk: {host: jfk.example.com}\ntasks:\n"
    task = "{pattern: all-active, topic: %s, members: [ewr, jfk]}"
    federation = read(f"{text}  flights: {task % 'flights'}\n  gates: {task % 'gates'}\n")
    described = [describe(route, Condition(), 0.0) for route in routes(federation, "flights")]
    StatusFile(tmp_path).write("running", described, Footprint())
    found = survey(federation, tmp_path)
    assert (found["alive"], found["tasks_not_run"]) == (True, ["gates"])
    StatusFile(tmp_path).write(
        "running", [describe(each, Condition(), 0.0) for each in routes(federation)], Footprint()
    )
    assert survey(federation, tmp_path)["tasks_not_run"] == []


def test_a_file_that_was_changed_while_its_run_is_alive_is_reported(tmp_path: Path) -> None:
    """The run continues with what it has read, and every one of its routes may be well."""
    text = "isthmus: 1\nnamespaces:\n  ewr: {host: ewr.example.com}\n  jfk: {host: jfk.example.com}\ntasks:\n"

    def federation(**topics: str) -> Federation:
        task = "{pattern: all-active, topic: %s, members: [ewr, jfk]}"
        return read(text + "".join(f"  {name}: {task % topic}\n" for name, topic in topics.items()))

    before = federation(flights="flights", gates="gates", seats="seats")
    StatusFile(tmp_path).write("running", [describe(each, Condition(), 0.0) for each in routes(before)], Footprint())
    assert survey(before, tmp_path)["tasks_changed"] == []
    found = survey(federation(flights="flights", gates="doors", meals="meals"), tmp_path)
    assert (found["tasks_changed"], found["tasks_not_run"]) == (["gates", "seats"], ["meals"])
