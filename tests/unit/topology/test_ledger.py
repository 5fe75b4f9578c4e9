"""The setting `ledger`."""

from __future__ import annotations

from pathlib import Path

from isthmus.topology.ledger import LedgerOptions
from isthmus.topology.linter import lint, read
from isthmus.topology.route import routes

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:EWR}\n  jfk: {connection: env:JFK}\ntasks:\n"
TASK = "  t: {{pattern: move, source: ewr, queue: q, target: jfk, ledger: {}}}\n"


def test_each_route_of_a_task_has_its_ledger_below_the_file() -> None:
    federation = read(HEAD + TASK.format("{path: lake/ledger, bodies: true}")).anchored(Path("/srv"))
    assert [route.options.ledger for route in routes(federation)] == [LedgerOptions("/srv/lake/ledger", bodies=True)]
    assert [route.options.ledger for route in routes(read(HEAD + TASK.format("{path: l}")))] == [LedgerOptions("l")]


def test_faults_of_a_ledger_are_reported_at_their_place() -> None:
    (uri,) = lint(HEAD + TASK.format("{path: 's3://bucket/x'}"))
    assert (uri.message, uri.line) == ("path: s3://bucket/x is a URI", 6)
    (missing,) = lint(HEAD + TASK.format("{bodies: true}"))
    assert "path" in missing.message
    (unknown,) = lint(HEAD + TASK.format("{path: l, body: true}"))
    assert "body" in unknown.message
    assert lint(HEAD + TASK.format("lake"))
