"""A route that reads through spools, with fakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isthmus.replication.query.route_progress import RouteProgress, SpoolView
from isthmus.replication.query.tally import Counts
from isthmus.replication.route_spec import route_spec
from isthmus.replication.shuffle.route import SpooledRoute
from isthmus.replication.shuffle.start import route_specs
from isthmus.supervisor.run import RunOptions, _carriers
from isthmus.topology import read
from isthmus.topology.route import routes

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\ntasks:\n"


@dataclass
class Part:
    active: bool = True
    error: str = ""
    all_done: bool = False
    seen: RouteProgress = field(default_factory=RouteProgress)
    stopped: int = 0

    def is_active(self) -> bool:
        return self.active

    def failure(self) -> str:
        return self.error

    def has_all(self) -> bool:
        return self.all_done

    def progress(self) -> RouteProgress:
        return self.seen

    def drain(self) -> None:
        self.active = False

    def drained(self) -> bool:
        return not self.active

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def parts() -> tuple[Part, Part, Part]:
    return Part(), Part(), Part()


def made(parts: tuple[Part, Part, Part], *, is_sent: bool = False, view: SpoolView | None = None) -> SpooledRoute:
    filling, gathering, sending = parts
    return SpooledRoute(filling, sending, gathering, lambda: is_sent, lambda: view or SpoolView())


@pytest.mark.parametrize("which", [0, 1, 2])
def test_one_that_fails_ends_the_route(parts: tuple[Part, Part, Part], which: int) -> None:
    parts[which].active, parts[which].error = False, "broken"
    route = made(parts)
    assert not route.is_active()
    assert route.failure() == "broken"
    route.stop()
    assert [each.stopped for each in parts] == [1, 1, 1]


@pytest.mark.parametrize("which", [0, 2])
def test_either_of_its_targets_may_not_have_answered(parts: tuple[Part, Part, Part], which: int) -> None:
    assert not made(parts).progress().is_awaited
    parts[which].seen = RouteProgress(is_awaited=True)
    assert made(parts).progress().is_awaited


@pytest.mark.parametrize("which", [0, 2])
def test_a_note_for_the_operator_is_passed_on(parts: tuple[Part, Part, Part], which: int) -> None:
    """A route through spools said nothing of a broker that stores no dead letters."""
    parts[which].seen = RouteProgress(note="RabbitMQ accepts no dead letters")
    assert made(parts).progress().note == "RabbitMQ accepts no dead letters"


def test_a_run_with_an_end_ends_when_the_target_has_all(parts: tuple[Part, Part, Part]) -> None:
    parts[0].active = False
    assert made(parts).is_active()
    parts[1].all_done = True
    assert made(parts).is_active()
    assert not made(parts, is_sent=True).is_active()
    assert made(parts, is_sent=True).failure() == ""


def test_moved_is_what_the_target_has_and_what_was_suppressed_counts_as_discarded(
    parts: tuple[Part, Part, Part],
) -> None:
    parts[0].seen = RouteProgress(counts=Counts(settled=10, moved=10, dead_lettered=1))
    parts[2].seen = RouteProgress(ready=False, counts=Counts(settled=4, moved=4, resent=2))
    views = iter([SpoolView(suppressed=5), SpoolView(waiting=3, suppressed=7)])
    route = SpooledRoute(parts[0], parts[2], parts[1], lambda: False, lambda: next(views))
    seen = route.progress()
    assert seen.ready
    assert seen.counts == Counts(settled=10, moved=4, dead_lettered=1, discarded=2, resent=2)
    assert seen.spool == SpoolView(waiting=3, suppressed=7)


def specs(task: str, folder: Path) -> list[tuple[str, str, str, str, tuple[str, ...]]]:
    federation = read(HEAD + f"  t: {task}\n")
    (route,) = routes(federation)
    found = route_specs(route, route_spec(route, federation), folder)
    return [
        (
            each.name,
            each.source.kind,
            each.target.kind,
            each.target.options.get("origin", ""),
            each.step_names,
        )
        for each in found
    ]


def test_a_route_is_carried_as_one_into_the_spool_and_one_out_of_it(tmp_path: Path) -> None:
    task = "{pattern: copy, source: ewr, target: jfk, topic: a, %s}"
    assert specs(task % "mailbox: true", tmp_path) == [("t.ewr.jfk", "servicebus", "servicebus", "ewr/a", ())]
    assert specs(task % "when_full: spool, steps: [{set: SET a = 1}]", tmp_path) == [
        ("t.ewr.jfk", "servicebus", "spool", "", ("set",)),
        ("t.ewr.jfk.out", "spool", "servicebus", "ewr/a", ()),
    ]
    assert specs(task % "steps: [{filter: a = 1}, {deduplicate: 10m}, {set: SET a = 1}]", tmp_path) == [
        ("t.ewr.jfk", "servicebus", "spool", "", ("filter",)),
        ("t.ewr.jfk.out", "spool", "servicebus", "ewr/a", ("set",)),
    ]
    assert specs(task % "steps: [{aggregate: {window: 5m, fields: {n: count}}}]", tmp_path) == [
        ("t.ewr.jfk", "servicebus", "spool", "", ("aggregate",)),
        ("t.ewr.jfk.out", "spool", "servicebus", "ewr/a/t", ()),
    ]


def test_a_ledger_notes_what_the_target_has_and_results_are_no_messages_of_the_source(tmp_path: Path) -> None:
    step = "{aggregate: {window: 5m, fields: {n: count}}}"
    task = f"{{pattern: copy, source: ewr, target: jfk, topic: a, ledger: {{path: ledger}}, steps: [{step}]}}"
    federation = read(HEAD + f"  t: {task}\n")
    (route,) = routes(federation)
    filling, sending = _carriers(route, federation, RunOptions(folder=tmp_path))
    assert filling.target.kind == "spool"
    assert sending.target.kind == "ledger"
    assert "ewr/a/t" in str(sending.target.options)


def test_each_route_of_a_spool_diverts_what_its_own_steps_fail_on(tmp_path: Path) -> None:
    to = "on_failure: divert, divert_to: {to: jfk, queue: %s}"
    steps = f"[{{filter: {{where: a = 1, {to % 'before'}}}}}, %s, {{filter: {{where: b = 1, {to % 'behind'}}}}}]"
    window = f"{{aggregate: {{window: 5m, fields: {{n: count}}, {to % 'odd'}}}}}"
    for shuffle, into in (("{deduplicate: 10m}", ["jfk/before"]), (window, ["jfk/before", "jfk/odd"])):
        federation = read(
            HEAD + f"  t: {{pattern: move, source: ewr, target: jfk, queue: a, steps: {steps % shuffle}}}\n"
        )
        (route,) = routes(federation)
        filling, sending = route_specs(route, route_spec(route, federation), tmp_path)
        assert (list(filling.diverts), list(sending.diverts)) == (into, ["jfk/behind"])
        assert {each.options["trusts_provenance"] for each in filling.diverts.values()} == {"false"}
        (end,) = sending.diverts.values()
        # Steps before the spool may have changed what comes out of it.
        assert end.options["trusts_provenance"] == "true"
        assert end.options["origin"] == sending.target.options["origin"]
        assert filling.diverted_from == sending.diverted_from == "ewr/a"


def test_a_ledger_notes_what_every_part_of_a_route_diverts(tmp_path: Path) -> None:
    to = "on_failure: divert, divert_to: {to: jfk, queue: %s}"
    steps = f"[{{filter: {{where: a = 1, {to % 'before'}}}}}, {{deduplicate: 10m}}, {{filter: {{where: b = 1, {to % 'behind'}}}}}]"
    text = f"  t: {{pattern: move, source: ewr, target: jfk, queue: a, ledger: {{path: /l}}, steps: {steps}}}\n"
    federation = read(HEAD + text)
    (route,) = routes(federation)
    for each in _carriers(route, federation, RunOptions(folder=tmp_path)):
        (end,) = each.diverts.values()
        assert (end.kind, end.options["taken"], end.options["route"]) == ("ledger", "divert", "t.ewr.jfk")
