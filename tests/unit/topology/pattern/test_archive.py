"""The pattern archive: its faults, wanted entities and route."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.topology.linter import lint, read, warnings
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.pattern.archive import ArchiveTask
from isthmus.topology.route import flows, routes
from isthmus.topology.state import LogState, QueueState, TopicState

HEAD = """\
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
  hub: {kind: kafka, bootstrap: "kafka:9092"}
tasks:
"""


def faults(*tasks: str) -> list[str]:
    return [each.message for each in lint(HEAD + "\n".join(f"  {each}" for each in tasks) + "\n")]


def task_of(text: str) -> ArchiveTask:
    task = read(f"{HEAD}  t: {{pattern: archive, source: {text}}}\n").tasks["t"]
    assert isinstance(task, ArchiveTask)
    return task


def test_a_queue_is_emptied_by_one_ordered_route_into_the_spool_before_the_table() -> None:
    federation = read(
        f"{HEAD}  t: {{pattern: archive, source: ewr, queue: orders, table: lake/orders, batch_interval: 5m}}\n"
    )
    (route,) = routes(federation.anchored(Path("/srv")))
    assert str(route.source) == "ewr/orders"
    assert str(route.target) == "table:/srv/lake/orders"
    assert route.options.ordering == "ordered"
    assert route.options.table is not None
    assert route.options.table.spool == "/srv/lake/orders/_isthmus/spool"
    assert route.options.table.batch_seconds == 300
    ((alias, wanted),) = PATTERNS["archive"].wanted(federation.tasks["t"])
    assert alias == "ewr"
    assert isinstance(wanted, QueueState)


def test_a_topic_gets_a_subscription_of_the_task_with_its_filter() -> None:
    task = task_of("ewr, topic: flights, table: lake, filter: \"carrier = 'UA'\", audit: 1d")
    ((_, wanted),) = PATTERNS["archive"].wanted(task)
    assert isinstance(wanted, TopicState)
    own = next(each for each in wanted.subscriptions if each.name == "isthmus.t.archive")
    assert own.rules is not None
    assert [rule.filter for rule in own.rules] == ["carrier = 'UA'"]
    (flow,) = flows(task)
    assert (flow.witness.entity, flow.filter) == ("flights/Subscriptions/audit", "carrier = 'UA'")
    assert flow.target.is_table


def test_a_subscription_of_an_application_is_emptied_as_it_is() -> None:
    task = task_of("ewr, topic: flights, subscription: boards, table: lake")
    ((_, wanted),) = PATTERNS["archive"].wanted(task)
    assert isinstance(wanted, TopicState)
    assert [(each.name, each.rules) for each in wanted.subscriptions] == [("boards", None)]


def test_a_stream_is_read_by_a_group_of_the_task_without_a_claim() -> None:
    task = task_of("hub, stream: flights, table: lake, start: existing")
    assert task.claim_members == ()
    ((_, wanted),) = PATTERNS["archive"].wanted(task)
    assert isinstance(wanted, LogState)
    assert [(group.name, group.start) for group in wanted.groups] == [("isthmus.t", "existing")]
    (route,) = PATTERNS["archive"].routes(task)
    assert route.options.log.group == "isthmus.t"
    assert not route.is_claimed


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ("source: ewr, table: lake", "task t has no queue, topic or stream"),
        ("source: ewr, queue: a, topic: b, table: lake", "task t has both queue and topic"),
        ("source: ewr, queue: a", "table"),
        ("source: ewr, queue: a, table: 's3://bucket/lake'", "table: s3://bucket/lake is a URI"),
        ("source: ewr, queue: a, table: lake, spool: lake", "spool is the table's own folder"),
        ("source: ewr, queue: a, table: lake, filter: 'x = 1'", "filter needs topic"),
        ("source: ewr, queue: a, table: lake, subscription: s", "subscription needs topic"),
        ("source: ewr, queue: a, table: lake, start: now", "begins with the existing messages"),
        ("source: ewr, topic: a, table: lake, start: existing", "start: existing is impossible"),
        (
            "source: ewr, topic: a, subscription: s, filter: 'x = 1', table: lake",
            "a subscription is emptied as a whole",
        ),
        ("source: ewr, topic: a, table: lake, filter: 'x = '", "filter"),
        ("source: lga, queue: a, table: lake", "no namespace has the alias 'lga'"),
        ("source: ewr, stream: a, table: lake", "ewr is of kind servicebus and has no stream"),
        ("source: hub, queue: a, table: lake", "hub is of kind kafka and has no queue"),
        ("source: hub, stream: a, table: lake, lock_duration: 5s", "a stream has no locks"),
        ("source: ewr, queue: a, table: lake, canary: 5s", "canary"),
        ("source: ewr, queue: isthmus.a, table: lake", "isthmus's own"),
        ("source: ewr, queue: a, table: lake, batch_interval: 10ms", "batch_interval"),
    ],
)
def test_a_fault_is_reported_before_anything_runs(settings: str, fault: str) -> None:
    (found, *_) = faults(f"t: {{pattern: archive, {settings}}}")
    assert fault in found


def test_two_tasks_do_not_share_a_table_a_spool_or_a_queue() -> None:
    one = "a: {pattern: archive, source: ewr, queue: x, table: lake, spool: s}"
    assert faults(one, "b: {pattern: archive, source: ewr, queue: y, table: lake}") == [
        "task a writes table lake already"
    ]
    assert faults(one, "b: {pattern: archive, source: ewr, queue: y, table: m, spool: s}") == [
        "task a writes spool s already"
    ]
    assert "task a reads ewr/X already" in faults(one, "b: {pattern: archive, source: ewr, queue: X, table: m}")[0]
    assert "task m empties ewr/x already" in faults("m: {pattern: move, source: ewr, queue: x, target: jfk}", one)[0]
    assert (
        faults(
            "a: {pattern: archive, source: ewr, topic: x, table: l}",
            "b: {pattern: archive, source: ewr, topic: x, table: m}",
        )
        == []
    )


def test_a_table_is_in_no_other_table_and_is_no_ledger() -> None:
    """What reads one of them would read the other, too."""
    one = "a: {pattern: archive, source: ewr, queue: x, table: lake}"
    within = "b: {pattern: archive, source: ewr, queue: y, table: %s}"
    assert "task a writes table lake/../lake already" in faults(one, within % "lake/../lake")
    assert faults(one, within % "lake/y") == ["the table lake/y is inside the table lake of task a, or contains it"]
    assert faults(within % "lake/y", one) == ["the table lake is inside the table lake/y of task b, or contains it"]
    assert faults(one, within % "lakes") == []
    ledger = "m: {pattern: move, source: ewr, queue: z, target: jfk, ledger: {path: ./%s}}"
    assert faults(one, ledger % "lake") == ["the table lake is the ledger of task m"]
    assert faults(one, ledger % "lake/ledger") == []


def test_lint_warns_that_a_queue_is_emptied() -> None:
    text = f"{HEAD}  t: {{pattern: archive, source: ewr, queue: a, table: lake}}\n"
    assert "empties ewr/a" in warnings(text)[0].message
