"""isthmus.topology.pattern.part.mixed_member: members of all-active that are logs or plain topics."""

from __future__ import annotations

import json

import pytest

from isthmus.replication.route_spec import route_spec
from isthmus.topology import lint, plan, read, routes
from isthmus.topology.linter import warnings
from isthmus.topology.model import Federation, Route
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.route import flows
from isthmus.topology.state import LogState, NamespaceState, PlainState, TopicState

HEAD = """isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  iad: {connection: env:IAD}
  jfk: {kind: kafka, bootstrap: "kafka:9092"}
  lga: {kind: rabbitmq, host: "rabbit:5672", username: isthmus, password: env:RABBIT, management: "http://rabbit:15672"}
  hub: {kind: eventhubs, connection: env:HUB, checkpoints: checkpoints}
  art: {kind: amqp, url: "amqp://artemis:5672"}
  stq: {kind: queuestorage, connection: env:STORAGE}
  grid: {kind: eventgrid, endpoint: "https://x.eventgrid.azure.net", key: env:GRID}
  web: {kind: http, url: "http://web", listen: "127.0.0.1:80", spool: spool}
  iot: {kind: iothub, connection: env:IOT, checkpoints: device-checkpoints}
tasks:
"""
FOUR = "  flights: {pattern: all-active, topic: flights, members: [ewr, jfk, lga, hub]}\n"


def task(settings: str = "", members: str = "ewr, jfk, lga, hub", entity: str = "topic: flights") -> str:
    return f"{HEAD}  flights: {{pattern: all-active, {entity}, members: [{members}]{settings}}}\n"


def by_name(federation: Federation) -> dict[str, Route]:
    return {route.name: route for route in routes(federation)}


def faults(text: str) -> list[str]:
    return [each.message for each in lint(text)]


def test_four_systems_are_members_of_one_task() -> None:
    federation = read(HEAD + FOUR)
    wanted = dict(PATTERNS["all-active"].wanted(federation.tasks["flights"]))
    assert {alias: type(each) for alias, each in wanted.items()} == {
        "ewr": TopicState,
        "jfk": LogState,
        "lga": PlainState,
        "hub": LogState,
    }
    assert len(routes(federation)) == 12
    log, plain = wanted["hub"], wanted["lga"]
    assert isinstance(log, LogState)
    assert isinstance(plain, PlainState)
    assert [each.name for each in log.groups] == [f"isthmus.flights.{each}" for each in ("ewr", "jfk", "lga")]
    assert plain.is_topic
    assert plain.subscriptions == tuple(f"isthmus.flights.{each}" for each in ("ewr", "jfk", "hub"))


def test_each_route_reads_what_no_other_route_takes() -> None:
    federation = read(HEAD + FOUR)
    read_from = {
        name: (end["entity"] if "entity" in end else end["topic"], end.get("group", end.get("subscription", "")))
        for name, route in by_name(federation).items()
        if (end := route_spec(route, federation).source.options)
    }
    assert len({(name.split(".")[1], *where) for name, where in read_from.items()}) == 12
    assert read_from["flights.jfk.lga"] == ("flights", "isthmus.flights.lga")
    assert read_from["flights.lga.hub"] == ("flights", "isthmus.flights.hub")
    assert read_from["flights.ewr.lga"] == ("flights/Subscriptions/isthmus.flights.lga", "")


def test_every_copy_is_marked_with_its_message_id() -> None:
    """isthmus.topology.pattern.part.mixed_member, I1: the mark and the provenance are written at every target."""
    federation = read(HEAD + FOUR)
    reported = [route_spec(route, federation).target.options for route in routes(federation)]
    assert {each["mark_value"] for each in reported} == {"message-id"}
    assert len({each["mark"] for each in reported}) == 1
    assert all(each["mark"] and each["origin"].endswith("/flights") for each in reported)


@pytest.mark.parametrize("members", ["jfk, lga", "lga, art", "jfk, hub", "ewr, iad, jfk, lga, hub, art"])
def test_members_without_rules_are_no_cycle(members: str) -> None:
    """isthmus.topology.graph.edge: what a route stops itself does not circulate."""
    assert faults(task(members=members)) == []


def test_a_copy_between_two_of_its_members_is_a_cycle_with_a_return_route() -> None:
    text = task(members="ewr, jfk, lga") + (
        "  there: {pattern: move, queue: q, source: lga, target: ewr, target_queue: p}\n"
        "  back: {pattern: move, queue: p, source: ewr, target: lga, target_queue: q}\n"
    )
    assert any("circulate for ever" in each for each in faults(text)), faults(text)


def test_a_step_sees_no_copy_that_the_task_has_made() -> None:
    """isthmus.topology.pattern.part.mixed_member, I1: where no rule leaves copies out, a filter before the steps does."""
    federation = read(task(', steps: [{set: "SET sys.MessageId = newid()"}]'))
    found = {name: [json.loads(each) for each in route.options.steps] for name, route in by_name(federation).items()}
    assert [list(each) for each in found["flights.ewr.jfk"]] == [["set"]]
    mark = routes(federation)[0].options.mark
    for name in ("flights.jfk.ewr", "flights.lga.jfk", "flights.hub.lga"):
        first, *others = found[name]
        assert first == {
            "filter": {"where": f"[{mark}] IS NULL OR [{mark}] <> sys.MessageId", "on_failure": "drop"},
        }
        assert [list(each) for each in others] == [["set"]]


def test_routes_without_steps_have_none() -> None:
    assert {route.options.steps for route in routes(read(HEAD + FOUR))} == {()}


@pytest.mark.parametrize("alias", ["stq", "grid", "web", "iot"])
def test_what_not_every_route_can_read_is_no_member(alias: str) -> None:
    """Two routes that read one queue of Queue Storage would each get half of it, and take the copies away from its consumers."""
    (found,) = faults(task(members=f"ewr, {alias}"))
    assert "cannot be read by every route of the task" in found


@pytest.mark.parametrize(
    ("settings", "entity", "text"),
    [
        (", filter: \"carrier = 'UA'\"", "topic: flights", "filter is not supported at jfk, hub, lga"),
        (", mark: replication", "topic: flights", "mark is not supported at jfk, hub, lga"),
        (", duplicate_detection: 10m", "topic: flights", "duplicate_detection is not supported at jfk, hub, lga"),
        (", canary: 30s", "topic: flights", "canary is not supported at jfk, hub, lga"),
        ("", "queue: flights", "queue is not supported at jfk, hub, lga"),
        ("", "topic: a/b", "'a/b' is no name of a stream at jfk"),
    ],
)
def test_what_a_member_cannot_honour_is_a_fault(settings: str, entity: str, text: str) -> None:
    found = faults(task(settings, entity=entity))
    assert any(text in each for each in found), found


def test_routes_are_claimed_where_one_end_can_hold_a_claim() -> None:
    federation = read(HEAD + FOUR)
    claims = {name: route.claim_alias if route.is_claimed else "" for name, route in by_name(federation).items()}
    assert {name for name, alias in claims.items() if not alias} == {
        f"flights.{source}.{target}" for source in ("jfk", "lga", "hub") for target in ("jfk", "lga", "hub") if source != target
    }  # fmt: skip
    assert {alias for alias in claims.values() if alias} == {"ewr"}


@pytest.mark.parametrize(("members", "is_warned"), [("ewr, jfk", False), ("ewr, jfk, lga", True), ("jfk, lga", True)])
def test_routes_without_a_claim_are_warned_of(members: str, is_warned: bool) -> None:
    found = [each.message for each in warnings(task(members=members)) if "have no claim" in each.message]
    assert len(found) == is_warned


def test_the_plan_shows_for_an_exchange_only_what_is_set() -> None:
    federation = read(task(members="lga, ewr"))
    states = {alias: NamespaceState(alias=alias, endpoint=alias) for alias in ("ewr", "lga")}
    made = {each.path: each.details for each in plan(federation, states).changes if each.alias == "lga"}
    assert made == {"flights": (), "flights/Subscriptions/isthmus.flights.ewr": ()}


def test_an_exchange_is_recorded_for_verification() -> None:
    federation = read(task(", audit: 1d"))
    wanted = dict(PATTERNS["all-active"].wanted(federation.tasks["flights"]))
    plain = wanted["lga"]
    assert isinstance(plain, PlainState)
    assert plain.subscriptions[-1] == plain.audit == "isthmus.flights.$audit"
    assert plain.audit_ms == 86_400_000
    ends = {
        (each.origin.alias, each.target.alias): (each.witness.entity, each.target.entity)
        for each in flows(federation.tasks["flights"])
    }
    assert ends["lga", "jfk"] == ("isthmus.flights.$audit", "flights")
    assert ends["jfk", "lga"] == ("flights", "isthmus.flights.$audit")
    recorded = [
        (each.origin.alias, each.target.alias)
        for each in flows(federation.tasks["flights"])
        if each.origin_is_recorded or each.target_is_recorded
    ]
    assert len(recorded) == 6


def test_an_exchange_without_administration_or_audit_is_not_recorded() -> None:
    for text in (
        task(),
        task(", audit: 1d").replace(', management: "http://rabbit:15672"', ""),
        task(", audit: 1d", "ewr, art"),
    ):
        federation = read(text)
        assert not any(
            each.origin_is_recorded or each.target_is_recorded for each in flows(federation.tasks["flights"])
        )


def test_a_record_is_kept_as_long_as_the_audit() -> None:
    for written, kept_ms in (("off", 0), ("2h", 7_200_000)):
        federation = read(task(f", audit: {written}, subscriptions: [boards, audit]"))
        wanted = dict(PATTERNS["all-active"].wanted(federation.tasks["flights"]))
        plain = wanted["lga"]
        assert isinstance(plain, PlainState)
        assert plain.audit_ms == kept_ms


def test_the_plan_says_what_a_record_is() -> None:
    federation = read(task(", audit: 1d", "lga, ewr"))
    states = {alias: NamespaceState(alias=alias, endpoint=alias) for alias in ("ewr", "lga")}
    made = {each.path: each for each in plan(federation, states).changes if each.alias == "lga"}
    record = made["flights/Subscriptions/isthmus.flights.$audit"]
    assert record.details == ("keeps messages 1d",)
    assert list(made)[-1] == record.path
    assert made["flights"].details == made["flights/Subscriptions/isthmus.flights.ewr"].details == ()
