"""isthmus.topology: namespaces whose entities are plain queues and topics, in the file, in plans and in flows of verify."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.errors import ConfigError
from isthmus.replication.route_spec import route_spec
from isthmus.topology import NamespaceState, lint, plan, read, routes
from isthmus.topology.file.reader import KIND_SETTING
from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind import KINDS, NamespaceKind, Shape
from isthmus.topology.linter import warnings
from isthmus.topology.planning.plain_planner import wanted_plain
from isthmus.topology.route import flows
from isthmus.topology.state import PlainState

HEAD = """isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  mq: {kind: plainmq, address: "mq-1:5672"}
  mq2: {kind: plainmq, address: "mq-2:5672"}
  hub: {kind: kafka, bootstrap: "k:9092"}
  sink: {kind: plainsink, address: "http://sink"}
  drops: {kind: droppingmq, address: "mq-3:5672"}
  keeps: {kind: droppingmq, address: "mq-4:5672", rejects: true}
tasks:
"""


@pytest.fixture(autouse=True)
def _kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    address = Setting(name="address", kind=Kind.TEXT, required=True, description="Where.", example="mq:5672")
    mq = NamespaceKind(name="plainmq", title="a queue", shape=Shape.QUEUE, settings=(address,), address="address")
    monkeypatch.setitem(KINDS, "plainmq", mq)
    rejects = Setting(
        name="rejects", kind=Kind.BOOLEAN, default=False, description="Whether it keeps what is rejected."
    )
    dropping = replace(
        mq,
        name="droppingmq",
        settings=(address, rejects),
        dead_letters=False,
        dead_letters_by="rejects",
        takes_dead_letters=True,
    )
    monkeypatch.setitem(KINDS, "droppingmq", dropping)
    monkeypatch.setitem(KINDS, "plainsink", replace(mq, name="plainsink", reads=False))
    monkeypatch.setattr("isthmus.topology.file.reader.KIND_SETTING", replace(KIND_SETTING, choices=tuple(KINDS)))


def faults(tasks: str) -> list[str]:
    return [each.message for each in lint(HEAD + tasks)]


def test_a_move_from_a_plain_queue_is_claimed_at_service_bus() -> None:
    federation = read(HEAD + "  t: {pattern: move, queue: orders, source: mq, target: ewr}\n")
    (route,) = routes(federation)
    assert (route.is_claimed, route.claim_alias) == (True, "ewr")
    spec = route_spec(route, federation)
    assert spec.source.kind == "plainmq"
    assert spec.source.options["entity"] == "orders"
    assert spec.source.options["entity_type"] == "queue"
    assert spec.source.options["address"] == "mq-1:5672"
    assert wanted_plain(federation) == {"mq": (PlainState(name="orders"),)}


def test_between_two_plain_namespaces_there_is_no_claim() -> None:
    federation = read(HEAD + "  t: {pattern: move, queue: orders, source: mq, target: mq2, target_topic: all}\n")
    (route,) = routes(federation)
    assert not route.is_claimed
    assert route_spec(route, federation).target.options["entity_type"] == "topic"
    assert wanted_plain(federation) == {
        "mq": (PlainState(name="orders"),),
        "mq2": (PlainState(name="all", is_topic=True),),
    }


def test_a_copy_of_a_plain_topic_has_a_subscription_of_its_own() -> None:
    federation = read(HEAD + "  t: {pattern: copy, topic: flights, source: mq, target: ewr}\n")
    (route,) = routes(federation)
    options = route_spec(route, federation).source.options
    assert (options["entity"], options["entity_type"], options["subscription"]) == ("flights", "topic", "isthmus.t.ewr")
    assert wanted_plain(federation)["mq"] == (
        PlainState(name="flights", is_topic=True, subscriptions=("isthmus.t.ewr",)),
    )


def test_a_plan_makes_what_is_missing_and_then_nothing() -> None:
    """isthmus.topology.planning.plain_planner, I1 and I3."""
    federation = read(HEAD + "  t: {pattern: copy, topic: flights, source: mq, target: mq2}\n")
    empty = {alias: NamespaceState(alias=alias, endpoint=alias) for alias in ("mq", "mq2")}
    made = [(each.alias, each.kind, each.path) for each in plan(federation, empty).changes]
    assert sorted(made[:2]) == [("mq", "topic", "flights"), ("mq2", "topic", "flights")]
    assert made[2:] == [("mq", "subscription", "flights/Subscriptions/isthmus.t.mq2")]
    topic = PlainState(name="flights", is_topic=True)
    states = {
        "mq": replace(empty["mq"], plain=(replace(topic, subscriptions=("isthmus.t.mq2",)),)),
        "mq2": replace(empty["mq2"], plain=(topic,)),
    }
    assert plan(federation, states).changes == ()


def test_what_a_system_says_of_a_queue_that_is_read_is_reported() -> None:
    federation = read(
        HEAD
        + "  t: {pattern: move, queue: orders, source: mq, target: mq2}\n"
        + "  u: {pattern: move, queue: parts, source: mq2, target: mq}\n"
    )
    wanted = wanted_plain(federation)
    assert {each.name: each.is_read for each in wanted["mq"]} == {"orders": True, "parts": False}
    states = {alias: NamespaceState(alias=alias, endpoint=alias, plain=wanted[alias]) for alias in wanted}
    dropping = replace(wanted["mq"][0], remarks=("queue orders has a delivery limit",))
    states["mq"] = replace(states["mq"], plain=(dropping, wanted["mq"][1]))
    found = plan(federation, states)
    assert found.changes == ()
    assert "queue orders has a delivery limit (mq)" in found.notes


def test_what_exists_already_is_reported_where_a_subscription_is_new() -> None:
    federation = read(HEAD + "  t: {pattern: copy, topic: flights, source: mq, target: mq2}\n")
    topic = PlainState(name="flights", is_topic=True)
    states = {alias: NamespaceState(alias=alias, endpoint=alias, plain=(topic,)) for alias in ("mq", "mq2")}
    found = plan(federation, states)
    assert [each.path for each in found.changes] == ["flights/Subscriptions/isthmus.t.mq2"]
    assert any("published before" in note for note in found.notes)


@pytest.mark.parametrize(
    ("task", "text"),
    [
        (
            "{pattern: active-passive, topic: flights, primary: ewr, secondary: mq, failover_within: 1m}",
            "needs subscriptions with rules: mq is of kind plainmq",
        ),
        ("{pattern: move, queue: q, source: sink, target: ewr}", "sink is of kind plainsink, which cannot be a source"),
        (
            "{pattern: move, queue: q, source: mq, target: ewr, lock_duration: 10s}",
            "lock_duration is not supported at the source, mq",
        ),
        (
            '{pattern: copy, topic: t, source: mq, target: ewr, filter: "a = 1"}',
            "filter is not supported at the source, mq",
        ),
        (
            "{pattern: move, queue: q, source: mq, target: mq2, audit: 1d}",
            "audit is not supported at the source, mq, mq2",
        ),
    ],
)
def test_what_a_plain_end_cannot_honour_is_a_fault(task: str, text: str) -> None:
    """isthmus.topology.pattern.transfer.plain, I1."""
    assert any(text in each for each in faults(f"  t: {task}\n")), faults(f"  t: {task}\n")


def test_two_aliases_of_one_address_are_a_fault() -> None:
    head = HEAD.replace("mq-2:5672", "mq-1:5672")
    with pytest.raises(ConfigError, match="namespaces mq and mq2 are the same namespace"):
        read(head + "  t: {pattern: move, queue: q, source: mq, target: mq2}\n")


def test_a_plain_queue_is_emptied_and_lint_says_so() -> None:
    found = warnings(HEAD + "  t: {pattern: move, queue: q, source: mq, target: ewr}\n")
    assert any("empties mq/q" in each.message for each in found)


def test_verify_compares_nothing_that_comes_from_a_plain_queue() -> None:
    federation = read(HEAD + "  t: {pattern: move, queue: q, source: mq, target: ewr}\n")
    (flow,) = flows(federation.tasks["t"])
    assert flow.witness.entity == ""


def test_a_stream_goes_to_a_plain_queue() -> None:
    federation = read(HEAD + "  t: {pattern: stream-to-queue, source: hub, stream: s, target: mq, queue: q}\n")
    (route,) = routes(federation)
    assert not route.is_claimed
    assert route_spec(route, federation).target.options["entity"] == "q"
    assert wanted_plain(federation) == {"mq": (PlainState(name="q"),)}


def test_a_plain_queue_goes_to_a_stream_by_a_move() -> None:
    federation = read(HEAD + "  t: {pattern: move, queue: q, source: mq, target: hub, target_topic: s}\n")
    (route,) = routes(federation)
    assert not route.is_claimed
    assert route_spec(route, federation).target.options["topic"] == "s"
    found = faults("  t: {pattern: queue-to-stream, queue: q, source: mq, target: hub, stream: s}\n")
    assert found == ["queue-to-stream needs a namespace with queues and topics as source: mq is of kind plainmq"]


@pytest.mark.parametrize(
    ("source", "setting", "refused"),
    [
        ("mq", "", "dead-letter"),
        ("drops", "", "block"),
        ("keeps", "", "dead-letter"),
        ("keeps", ", refused: block", "block"),
        ("drops", ", dead_letter_queue: aside", "dead-letter"),
    ],
)
def test_refusals_block_where_nothing_keeps_what_is_set_aside(source: str, setting: str, refused: str) -> None:
    federation = read(HEAD + f"  t: {{pattern: move, queue: orders, source: {source}, target: ewr{setting}}}\n")
    (route,) = routes(federation)
    assert route.options.refused == refused
    spec = route_spec(route, federation)
    assert spec.block_refused == (refused == "block")
    if "aside" in setting:
        assert spec.source.options["dead_letters"] == "aside"
        assert wanted_plain(federation)["drops"] == (PlainState(name="orders"), PlainState(name="aside"))
    else:
        assert "dead_letters" not in spec.source.options


@pytest.mark.parametrize(("member", "refused"), [("drops", "block"), ("keeps", "dead-letter")])
def test_an_all_active_task_blocks_at_members_that_drop_what_is_rejected(member: str, refused: str) -> None:
    federation = read(HEAD + f"  t: {{pattern: all-active, topic: flights, members: [ewr, {member}]}}\n")
    found = {route.name: route.options.refused for route in routes(federation)}
    assert found == {f"t.ewr.{member}": "dead-letter", f"t.{member}.ewr": refused}


def test_a_place_for_dead_letters_that_leads_nowhere_is_a_fault() -> None:
    assert faults("  t: {pattern: move, queue: a, source: ewr, target: mq, dead_letter_queue: b}\n") == [
        "dead_letter_queue needs a source that is neither Service Bus nor a log"
    ]
    assert faults("  t: {pattern: move, queue: a, source: mq, target: ewr, dead_letter_queue: b}\n") == [
        "mq does not support dead_letter_queue"
    ]
    assert faults("  t: {pattern: move, queue: a, source: drops, target: ewr, dead_letter_queue: a}\n") == [
        "dead_letter_queue is the source itself"
    ]
    assert faults("  t: {pattern: move, queue: a, source: drops, target: ewr, refused: dead-letter}\n") == [
        "nothing declares that drops keeps messages that are set aside: it would drop them"
    ]


@pytest.mark.parametrize(
    ("source", "setting", "is_warned"),
    [("drops", "", True), ("keeps", "", False), ("drops", ", dead_letter_queue: b", False)],
)
def test_a_step_that_sets_messages_aside_needs_a_place_for_them(source: str, setting: str, is_warned: bool) -> None:
    steps = "steps: [{validate: {schema: s.json}}]"
    text = HEAD + f"  t: {{pattern: move, queue: a, source: {source}, target: ewr, {steps}{setting}}}\n"
    assert sum("dead_letter_queue: NAME" in str(each) for each in warnings(text)) == is_warned


@pytest.mark.parametrize("name", ["rabbitmq", "amqp", "eventgrid"])
def test_kinds_that_may_drop_what_is_rejected_say_so(name: str) -> None:
    kind = KINDS[name]
    assert not kind.dead_letters
    assert kind.dead_letters_by in {each.name for each in kind.settings}
