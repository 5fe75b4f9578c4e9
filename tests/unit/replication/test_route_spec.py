"""The description of a route for the processes that run it: only references, and what the file says about the route."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.bridge.route_spec import RouteSpec
from isthmus.replication.route_spec import claim_key, route_spec
from isthmus.topology import read
from isthmus.topology.pattern.ordering import SESSIONS_AT_ONCE
from isthmus.topology.route import routes

TEXT = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {host: contoso-jfk.servicebus.windows.net, identity: default, ca_file: /etc/ca.pem}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""


@pytest.fixture(autouse=True)
def _no_ca_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ISTHMUS_CA_FILE", raising=False)


def test_i1_ends_hold_references_only() -> None:
    federation = read(TEXT)
    to_jfk, to_ewr = routes(federation)
    spec = route_spec(to_jfk, federation)
    assert (spec.source.kind, spec.source.alias, spec.target.alias) == ("servicebus", "ewr", "jfk")
    assert spec.source.options == {
        "connection": "env:EWR_CONNECTION",
        "entity": "flights/Subscriptions/isthmus.flights.jfk",
        "lock_seconds": "30.0",
    }
    assert spec.target.options == {
        "host": "contoso-jfk.servicebus.windows.net",
        "identity": "default",
        "ca_file": "/etc/ca.pem",
        "entity": "flights",
        "origin": "ewr/flights",
        "target": "jfk",
        "mark": to_jfk.options.mark,
        "mark_value": "message-id",
        "duplicates": "auto",
        "trusts_provenance": "false",
    }
    assert route_spec(to_ewr, federation).target.options["origin"] == "jfk/flights"
    assert RouteSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("namespace", "entity", "numbered", "named"),
    [
        ("{kind: amqp, url: 'amqp://127.0.0.1'}", "queue: flights", "false", None),
        ("{connection: env:EWR_CONNECTION}", "queue: flights", None, None),
        ("{kind: queuestorage, connection: env:EWR_CONNECTION}", "queue: flights", None, "true"),
    ],
)
def test_a_spool_goes_by_numbers_that_the_source_gives(
    tmp_path: Path, namespace: str, entity: str, numbered: str | None, named: str | None
) -> None:
    text = f"""
isthmus: 1
namespaces:
  ewr: {namespace}
tasks:
  flights: {{pattern: archive, {entity}, source: ewr, table: {tmp_path / "table"}}}
"""
    federation = read(text)
    (route,) = routes(federation)
    spec = route_spec(route, federation)
    assert spec.target.kind == "spool"
    assert spec.target.options.get("numbered") == numbered
    assert spec.target.options.get("named") == named


def test_i2_a_claim_is_one_of_a_task_at_a_source() -> None:
    federation = read(TEXT)
    keys = [route_spec(each, federation).claim for each in routes(federation)]
    assert keys == [claim_key("flights", "ewr"), claim_key("flights", "jfk")]
    assert claim_key("b/c", "a") != claim_key("c", "a-b")


def test_what_the_file_says_of_a_route_is_passed_on() -> None:
    refused = read(
        TEXT.replace("topic: flights", "topic: flights, refused: block, steps: [{python: 'a.b:c'}, {set: SET a = 1}]")
    )
    spec = route_spec(routes(refused)[0], refused, only_present=True)
    assert (spec.block_refused, spec.only_present, spec.ordered) == (True, True, True)
    assert spec.steps == tuple(step.to_text() for step in refused.tasks["flights"].steps)
    assert spec.step_names == ("python a.b:c", "set")
    assert spec.target.options["trusts_provenance"] == "true"


def test_a_long_route_and_a_number_of_hops_are_passed_on() -> None:
    plain = read(TEXT)
    spec = route_spec(routes(plain)[0], plain)
    assert (spec.envelope_messages, spec.target.options.get("compression")) == (0, None)
    assert "hop_budget" not in spec.target.options
    far = read(TEXT.replace("topic: flights", "topic: flights, compression: deflate, hop_budget: 3"))
    spec = route_spec(routes(far)[0], far)
    assert (spec.envelope_messages > 1, spec.target.options["compression"]) == (True, "deflate")
    assert spec.target.options["hop_budget"] == "3"


@pytest.mark.parametrize(
    ("ordering", "only_present", "is_spread"), [("ordered", False, False), ("none", False, True), ("none", True, False)]
)
def test_an_unordered_route_is_spread_over_the_readers_unless_what_remains_is_to_be_counted(
    ordering: str, only_present: bool, is_spread: bool
) -> None:
    federation = read(TEXT.replace("topic: flights", f"topic: flights, ordering: {ordering}"))
    (spec, _) = (route_spec(each, federation, only_present=only_present) for each in routes(federation))
    assert spec.is_spread == is_spread


@pytest.mark.parametrize(
    ("ordering", "ordered", "is_strict", "sessions"),
    [
        ("ordered", True, False, None),
        ("session", True, False, str(SESSIONS_AT_ONCE)),
        ("strict", True, True, None),
        ("none", False, False, None),
    ],
)
def test_an_order_is_passed_on_as_it_is_kept(
    ordering: str, ordered: bool, is_strict: bool, sessions: str | None
) -> None:
    federation = read(TEXT.replace("topic: flights", f"topic: flights, ordering: {ordering}"))
    spec = route_spec(routes(federation)[0], federation)
    assert (spec.ordered, spec.is_strict, spec.source.options.get("sessions")) == (ordered, is_strict, sessions)
    assert RouteSpec.from_json(spec.to_json()) == spec


DIVERTS = """
  flights:
    pattern: all-active
    topic: flights
    members: [ewr, jfk]
    duplicates: origin
    refused: block
    steps:
      - validate: {schema: s.json, on_failure: divert, divert_to: {to: jfk, queue: bad}}
      - validate: {schema: s.json, on_failure: divert, divert_to: {to: hub, topic: bad}}
      - validate: {schema: s.json, on_failure: divert, divert_to: {to: old, topic: bad}}
"""
OTHERS = "  hub: {kind: kafka, bootstrap: 'k:9092'}\n  old: {kind: amqp, url: 'amqp://127.0.0.1'}\ntasks:"


def test_a_divert_target_gets_messages_as_they_were_received() -> None:
    federation = read(TEXT.partition("tasks:")[0] + OTHERS + DIVERTS)
    spec = route_spec(routes(federation)[0], federation)
    assert spec.diverted_from == "ewr/flights/Subscriptions/isthmus.flights.jfk"
    assert list(spec.diverts) == ["jfk/bad", "hub/bad", "old/bad"]
    bus, log, plain = spec.diverts.values()
    assert (bus.kind, bus.alias) == ("servicebus", "jfk")
    assert bus.options == {
        "host": "contoso-jfk.servicebus.windows.net",
        "identity": "default",
        "ca_file": "/etc/ca.pem",
        "entity": "bad",
        "origin": "ewr/flights",
        "target": "jfk",
        "mark": "",
        "mark_value": "message-id",
        "duplicates": "origin",
        "trusts_provenance": "false",
        "policy": '{"dead_letters_returning": true}',
    }
    assert (log.kind, log.options["topic"], log.options["mark"]) == ("kafka", "bad", "")
    assert (plain.kind, plain.options["entity"], plain.options["entity_type"]) == ("amqp", "bad", "topic")
    assert spec.target.options["mark"]
    assert spec.block_refused
    assert RouteSpec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("namespace", "seconds"),
    [
        ("{kind: http, url: 'http://127.0.0.1:1'}", 30.0),
        ("{kind: http, url: 'http://127.0.0.1:1', timeout_seconds: 60}", 125.0),
        ("{kind: http, url: 'http://127.0.0.1:1', timeout_seconds: 5}", 30.0),
        ("{kind: kafka, bootstrap: 'localhost:1'}", 30.0),
    ],
)
def test_a_target_has_the_time_that_the_file_gives_its_requests(namespace: str, seconds: float) -> None:
    """A message whose request took 40 s of 60 was sent again every 30 s, and never settled."""
    federation = read(f"""
isthmus: 1
namespaces:
  ewr: {{connection: env:EWR_CONNECTION}}
  far: {namespace}
tasks:
  orders: {{pattern: copy, topic: orders, source: ewr, target: far}}
""")
    (route,) = routes(federation)
    assert route_spec(route, federation).target_seconds == seconds
