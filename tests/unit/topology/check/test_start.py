"""`start` is followed, or lint reports that it is impossible, with the reason and the alternative."""

from __future__ import annotations

import pytest

from isthmus.topology import lint, plan, read
from isthmus.topology.check.start import Beginning, beginning
from isthmus.topology.linter import warnings
from isthmus.topology.model import Federation
from isthmus.topology.planning.log_planner import wanted_logs
from isthmus.topology.planning.plain_planner import wanted_plain
from isthmus.topology.planning.wanted import wanted
from isthmus.topology.route import routes
from isthmus.topology.state import NamespaceState, SubscriptionState, TopicState

FILE = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
  lga: {connection: env:LGA}
  kafka: {kind: kafka, bootstrap: "127.0.0.1:9092"}
  lake: {kind: kafka, bootstrap: "127.0.0.2:9092"}
  hub: {kind: eventhubs, connection: env:HUB, checkpoints: folder}
  iot: {kind: iothub, connection: env:IOT, checkpoints: folder}
  streams: {kind: rabbitmq-streams, host: 127.0.0.1, tls: false, username: u, password: env:P, checkpoints: folder}
  mq: {kind: rabbitmq, host: 127.0.0.1, tls: false, username: u, password: env:P}
  artemis: {kind: amqp, url: "amqp://127.0.0.1:5673"}
  storage: {kind: queuestorage, connection: env:STORAGE}
  grid: {kind: eventgrid, endpoint: "https://x.eventgrid.azure.net", key: env:GRID}
  hooks: {kind: http, url: "http://hooks", listen: "127.0.0.1:80", spool: spool}
tasks:
  t: {%s}
"""
QUEUE_TARGET = "target: jfk, target_queue: q"

# By task: what its routes begin with.
TASKS = [
    ("pattern: move, source: ewr, queue: q, target: jfk", "existing"),
    ("pattern: move, source: ewr, topic: f, subscription: s, target: jfk", "existing"),
    ("pattern: consolidate, sources: [ewr, lga], queue: q, target: jfk", "existing"),
    ("pattern: queue-to-stream, source: ewr, queue: q, target: kafka, stream: s", "existing"),
    ("pattern: archive, source: ewr, queue: q, table: lake", "existing"),
    ("pattern: archive, source: ewr, topic: f, subscription: s, table: lake", "existing"),
    ("pattern: split, source: ewr, queue: q, targets: [{to: jfk, queue: p}]", "existing"),
    ("pattern: spillover, members: [ewr, jfk], queue: q, deadline: 10m", "existing"),
    ("pattern: all-active, topic: f, members: [ewr, jfk]", "now"),
    ("pattern: all-active, queue: q, members: [ewr, jfk]", "now"),
    ("pattern: all-active, topic: f, members: [ewr, jfk], mailbox: true", "now"),
    ("pattern: active-passive, primary: ewr, secondary: jfk, topic: f, failover_within: 10m", "now"),
    ("pattern: copy, source: ewr, topic: f, target: jfk", "now"),
    ("pattern: consolidate, sources: [ewr, lga], topic: f, target: jfk", "now"),
    ("pattern: fan-out, topic: f, hub: ewr, members: [jfk, lga]", "now"),
    ("pattern: split, source: ewr, topic: f, targets: [{to: jfk, queue: p, filter: a = 1}]", "now"),
    ("pattern: queue-to-stream, source: ewr, topic: f, target: kafka, stream: s", "now"),
    ("pattern: archive, source: ewr, topic: f, table: lake", "now"),
    ("pattern: copy, source: kafka, topic: f, target: lake", "either"),
    ("pattern: all-active, topic: f, members: [kafka, lake]", "either"),
    ("pattern: archive, source: hub, stream: f, table: lake", "either"),
    *[
        (f"pattern: stream-to-queue, source: {alias}, stream: {stream}, target: jfk, queue: q", "either")
        for alias, stream in (("kafka", "s"), ("hub", "s"), ("iot", "events"), ("streams", "s"))
    ],
    (f"pattern: move, source: mq, queue: q, {QUEUE_TARGET}", "existing"),
    (f"pattern: move, source: artemis, queue: q, {QUEUE_TARGET}", "existing"),
    (f"pattern: move, source: storage, queue: q, {QUEUE_TARGET}", "existing"),
    (f"pattern: move, source: grid, queue: q, {QUEUE_TARGET}", "existing"),
    (f"pattern: move, source: hooks, queue: q, {QUEUE_TARGET}", "existing"),
    ("pattern: copy, source: mq, topic: f, target: jfk", "now"),
    ("pattern: copy, source: artemis, topic: f, target: jfk", "now"),
]


def federation(task: str) -> Federation:
    return read(FILE % task)


@pytest.mark.parametrize(("task", "begins"), TASKS)
def test_without_start_a_route_shows_what_it_begins_with(task: str, begins: str) -> None:
    assert {each.options.start for each in routes(federation(task))} == {"now" if begins == "either" else begins}


@pytest.mark.parametrize(("task", "begins"), TASKS)
@pytest.mark.parametrize("start", ["now", "existing"])
def test_start_is_kept_or_refused_with_the_reason_and_what_to_do(task: str, begins: str, start: str) -> None:
    text = FILE % f"{task}, start: {start}"
    if begins in (start, "either"):
        assert lint(text) == []
        assert {each.options.start for each in routes(read(text))} == {start}
        return
    (fault,) = lint(text)
    assert f"start: {start} is impossible" in str(fault)
    if start == "existing":
        assert "reads one that apply creates at" in str(fault)
        assert "write start: now; " in (fault.hint or "")
        assert "pattern move" in (fault.hint or "")
    else:
        assert "begins with the existing messages" in str(fault)
        assert fault.hint == "write start: existing, or remove start"


@pytest.mark.parametrize(
    "task",
    [
        "pattern: consolidate, sources: [ewr, kafka], topic: f, target: lake",
        "pattern: all-active, topic: f, members: [ewr, kafka]",
        "pattern: all-active, topic: f, members: [mq, kafka]",
    ],
)
def test_where_only_some_routes_can_keep_it_lint_warns(task: str) -> None:
    text = FILE % f"{task}, start: existing"
    assert lint(text) == []
    reported = [str(each) for each in warnings(text) if "start: existing does not apply everywhere" in str(each)]
    assert len(reported) == 1
    starts = {each.source.alias: (each.options.start, beginning(each)) for each in routes(read(text))}
    assert starts.pop("kafka") == ("existing", Beginning.AS_WRITTEN)
    assert set(starts.values()) == {("now", Beginning.NOW)}


# ---- plan


def observed(made: Federation, *topics: TopicState) -> dict[str, NamespaceState]:
    used = (*wanted(made), *wanted_logs(made), *wanted_plain(made))
    found = {alias: NamespaceState(alias=alias, endpoint=alias) for alias in used}
    found["ewr"] = NamespaceState(alias="ewr", endpoint="ewr", topics=topics)
    return found


def subscriptions(*names: str) -> TopicState:
    return TopicState(name="f", subscriptions=tuple(SubscriptionState(name=each) for each in names))


def notes(task: str, *topics: TopicState) -> list[str]:
    made = federation(task)
    return [each for each in plan(made, observed(made, *topics)).notes if "messages sent before" in each]


COPY = "pattern: copy, source: ewr, topic: f, target: jfk"


@pytest.mark.parametrize("mailbox", ["", ", mailbox: true"])
def test_plan_shows_what_a_new_subscription_of_a_topic_that_exists_does_not_get(mailbox: str) -> None:
    (note,) = notes(COPY + mailbox, subscriptions("d", "c", "b", "a"))
    assert note == (
        "topic f at ewr exists: messages sent before `apply` creates isthmus.t.jfk, e.g. those in its subscriptions a, b, c and 1 more, are "
        "not moved to jfk/f (start: now). To include them, empty a subscription that has these messages and no readers, by a task of "
        "pattern move; or isthmus export and isthmus import"
    )


def test_plan_shows_no_more_once_the_subscription_is_there_or_where_nothing_holds_what_was_sent() -> None:
    assert notes(COPY, subscriptions("a", "isthmus.t.jfk")) == []
    assert notes(COPY, subscriptions()) == []
    assert notes(COPY, subscriptions("isthmus.other.jfk")) == []
    assert notes(COPY) == []


def test_in_an_all_active_task_nothing_is_to_be_imported_as_it_would_come_back() -> None:
    (note,) = notes("pattern: all-active, topic: f, members: [ewr, jfk]", subscriptions("a"))
    assert "pattern move" in note
    assert "import" not in note
