"""What a verification reads, and what it expects to find."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.amqp import section, types
from isthmus.replication import verify as verify_module
from isthmus.replication.identity import identify
from isthmus.replication.reach import Reach
from isthmus.replication.reconcile import Reconciliation
from isthmus.replication.verify import verify
from isthmus.topology import read

FILE = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
tasks:
  flights: {pattern: all-active, members: [ewr, jfk], subscriptions: [audit], %s}
"""


def asked(monkeypatch: pytest.MonkeyPatch, task: str) -> dict[str, Any]:
    """What the audit of a federation's only task is asked for."""
    seen: dict[str, Any] = {}

    def audit(name: str, routes: Any, subscriptions: Any, peek: Any, **more: Any) -> Reconciliation:
        seen.update(more, subscriptions=subscriptions)
        return Reconciliation(name, ())

    monkeypatch.setattr(verify_module, "audit", audit)
    monkeypatch.setattr(Reach, "identities", lambda self, aliases: {alias: alias for alias in aliases})
    list(verify(read(FILE % task)))
    return seen


def test_a_topic_may_have_a_slash(monkeypatch: pytest.MonkeyPatch) -> None:
    found = asked(monkeypatch, "topic: east/flights")["subscriptions"]
    assert str(found["ewr"]) == "ewr/east/flights/Subscriptions/audit"


def selected(monkeypatch: pytest.MonkeyPatch, task: str, own: dict[str, Any]) -> bool:
    message = section.encode_message(
        b"x",
        annotations={
            types.Symbol("x-opt-sequence-number"): types.Long(3),
            types.Symbol("x-opt-enqueued-time"): types.Timestamp(1),
        },
        properties={"subject": "board"},
        application_properties=own,
    )
    found = asked(monkeypatch, task)["selects"](message, identify(message))
    assert isinstance(found, bool)
    return found


@pytest.mark.parametrize(
    ("task", "own", "expected"),
    [
        ("topic: f", {}, True),
        ("topic: f", {"replication": 1}, True),
        ("topic: f, mark: replication", {"replication": 1}, False),
        ("topic: f, mark: replication", {"Replication": types.Long(1)}, False),
        ("topic: f, mark: replication", {"replication": 0}, True),
        ("topic: f, mark: replication", {"replication": "1"}, True),
        ("topic: f, mark: replication", {"replication": b"\1"}, True),
        ("topic: f, mark: replication", {"replication": 1, "repl-origin": "jfk/f"}, True),
        ("topic: f, mark: seen", {"replication": 1}, True),
        ("topic: f, filter: \"carrier = 'UA'\"", {"carrier": "UA"}, True),
        ("topic: f, filter: \"carrier = 'UA'\"", {"carrier": "AA"}, False),
        ("topic: f, filter: \"carrier = 'UA'\"", {}, False),
        ("topic: f, mark: replication, filter: \"carrier = 'UA'\"", {"carrier": "UA", "replication": 1}, False),
        ("topic: f, filter: \"sys.Label = 'board' AND 1 / n > 0\"", {"n": 0}, False),
        ("topic: f, filter: \"sys.Label = 'board' AND 1 / n > 0\"", {"n": 1}, True),
    ],
)
def test_what_the_tasks_rule_keeps_back_is_not_expected(
    monkeypatch: pytest.MonkeyPatch, task: str, own: dict[str, Any], expected: bool
) -> None:
    assert selected(monkeypatch, task, own) is expected


@pytest.mark.parametrize(("task", "ordered"), [("topic: f", True), ("topic: f, ordering: none", False)])
def test_order_is_expected_where_the_task_promises_it(
    monkeypatch: pytest.MonkeyPatch, task: str, ordered: bool
) -> None:
    assert asked(monkeypatch, task)["ordered"] is ordered
