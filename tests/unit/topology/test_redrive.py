"""The queues with the dead letters of a task, and their targets."""

from __future__ import annotations

import pytest

from isthmus.errors import InvalidArgumentError
from isthmus.topology import read
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.redrive import redrives

FILE = """isthmus: 1
namespaces:
  ewr: {connection: env:A}
  jfk: {connection: env:B}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [all]}
  pay: {pattern: spillover, queue: payments, members: [ewr, jfk], deadline: 10m}
  checked: {pattern: active-passive, topic: checked, primary: ewr, secondary: jfk, failover_within: 1m, subscriptions: [all],
    steps: [{sql: "SELECT * FROM rows"}]}
"""


@pytest.fixture
def federation() -> Federation:
    return read(FILE)


def test_what_a_route_set_aside_goes_to_its_target_as_its_copy(federation: Federation) -> None:
    there, back = redrives(federation, ["flights"])
    assert there.source == Endpoint("ewr", "flights/Subscriptions/isthmus.flights.jfk/$DeadLetterQueue")
    assert (there.route.name, there.route.target) == ("flights.ewr.jfk", Endpoint("jfk", "flights"))
    assert there.route.source == Endpoint(
        "ewr", "flights/Subscriptions/isthmus.flights.jfk"
    )  # where copies say they are from
    assert there.route.options.mark == back.route.options.mark != ""
    assert set(there.route.options.policy.removed) == {"DeadLetterReason", "DeadLetterErrorDescription"}
    assert not there.hindrance


def test_i1_no_queue_is_listed_twice_and_spillover_has_parking_queues_only(federation: Federation) -> None:
    found = redrives(federation)
    assert [each.route.task for each in found] == ["flights", "flights", "checked"]
    assert len({each.source for each in found}) == len(found)
    parked = redrives(federation, parked=True)
    assert [(each.source, each.route.target) for each in parked] == [
        (Endpoint(alias, "payments-parked"), Endpoint(alias, "payments")) for alias in ("ewr", "jfk")
    ]


def test_what_was_parked_keeps_the_mark_and_is_known_by_where_it_was_parked(federation: Federation) -> None:
    each, _ = redrives(federation, ["pay"], parked=True)
    options = each.route.options
    assert (options.mark, options.mark_is_number) == ("isthmus-pay-spilled", True)
    assert options.duplicates == "origin"
    assert each.route.source == each.source
    assert not options.policy.deadline_ms  # its age starts again


def test_a_step_that_only_a_run_carries_out_hinders(federation: Federation) -> None:
    (each,) = redrives(federation, ["checked"])
    assert each.hindrance == "route checked.ewr.jfk has the step sql, which only a run carries out"


@pytest.mark.parametrize(
    ("tasks", "parked", "text"),
    [
        (["gone"], False, "no task gone"),
        (["pay"], False, "write --parked"),
        (["flights"], True, "only tasks of the pattern spillover"),
    ],
)
def test_a_task_without_such_a_queue_is_refused(
    federation: Federation, tasks: list[str], parked: bool, text: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        redrives(federation, tasks, parked=parked)


@pytest.mark.parametrize("step", ["{deduplicate: 10m}", "{aggregate: {window: 5m, fields: {n: count}}}"])
def test_a_step_that_looks_at_several_messages_hinders(step: str) -> None:
    """A message alone would pass a window that it belongs to, and reach the target as it never does in a run."""
    file = FILE.replace('[{sql: "SELECT * FROM rows"}]', f"[{step}]")
    (each,) = redrives(read(file), ["checked"])
    assert "which only a run carries out" in each.hindrance


def test_what_a_mailbox_did_not_take_is_sent_on_too() -> None:
    """It is a dead letter of the subscription that forwards to the mailbox, from which no route reads."""
    mailboxes = FILE.replace("subscriptions: [all]}", "subscriptions: [all], mailbox: true}", 1)
    found = redrives(read(mailboxes), ["flights"])
    assert [str(each.source) for each in found] == [
        "ewr/isthmus.flights.jfk/$DeadLetterQueue",
        "ewr/flights/Subscriptions/isthmus.flights.jfk/$DeadLetterQueue",
        "jfk/isthmus.flights.ewr/$DeadLetterQueue",
        "jfk/flights/Subscriptions/isthmus.flights.ewr/$DeadLetterQueue",
    ]
    assert [each.route.name for each in found] == ["flights.ewr.jfk"] * 2 + ["flights.jfk.ewr"] * 2
    assert all("DeadLetterReason" in each.route.options.policy.removed for each in found)


DIVERTING = """isthmus: 1
namespaces:
  ewr: {connection: env:A}
  jfk: {connection: env:B}
  lga: {connection: env:C}
  hub: {kind: kafka, bootstrap: "k:9092"}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk, lga], subscriptions: [all], %s
    steps: [{validate: {schema: s.json, on_failure: divert, divert_to: {to: lga, queue: bad}}}]}
  elsewhere: {pattern: copy, source: ewr, topic: planes, target: jfk, steps: [
    {filter: {where: "a = 1", on_failure: divert, divert_to: {to: hub, topic: bad}}},
    {filter: {where: "a = 1", on_failure: divert, divert_to: {to: lga, topic: bad-too}}}]}
  spooled: {pattern: move, source: ewr, queue: orders, target: jfk, steps: [{deduplicate: 10m},
    {filter: {where: "a = 1", on_failure: divert, divert_to: {to: lga, queue: BAD}}}]}
  flat: {pattern: copy, source: ewr, topic: flat, target: jfk}
"""


def test_i3_what_is_diverted_once_for_several_routes_goes_to_the_targets_of_all() -> None:
    found = redrives(read(DIVERTING % ""), ["flights"], diverted=True)
    assert [(str(each.source), each.route.entered, [route.name for route in each.routes]) for each in found] == [
        ("lga/bad", "flights", ["flights.ewr.jfk", "flights.ewr.lga"]),
        ("lga/bad", "flights", ["flights.jfk.ewr", "flights.jfk.lga"]),
        ("lga/bad", "flights", ["flights.lga.ewr", "flights.lga.jfk"]),
    ]
    assert all(each.is_diverted and each.may_be_apart and not each.hindrance for each in found)
    assert found[0].known == {"spooled.ewr.jfk", *(route.name for each in found for route in each.routes)}


@pytest.mark.parametrize(
    ("more", "queues", "may_be_apart"), [("duplicates: allow,", 6, False), ("duplicates: origin,", 3, False)]
)
def test_i3_where_doubles_are_allowed_each_route_has_its_own(more: str, queues: int, may_be_apart: bool) -> None:
    found = redrives(read(DIVERTING % more), ["flights"], diverted=True)
    assert (len(found), {each.may_be_apart for each in found}) == (queues, {may_be_apart})
    assert {len(each.routes) for each in found} == {6 // queues}


def test_i1_a_queue_is_known_however_its_name_is_written() -> None:
    (spooled,) = redrives(read(DIVERTING % ""), ["spooled"], diverted=True)
    assert spooled.source.entity == "BAD"
    assert len(spooled.known) == 7
    twice = (DIVERTING % "").replace(
        "steps: [{validate:",
        'steps: [{filter: {where: "a = 1", on_failure: divert, divert_to: {to: lga, queue: Bad}}}, {validate:',
    )
    found = redrives(read(twice), ["flights"], diverted=True)
    assert [(each.route.source.alias, len(each.routes)) for each in found] == [("ewr", 2), ("jfk", 2), ("lga", 2)]


def test_what_cannot_be_read_or_needs_a_run_is_said() -> None:
    kafka, topic, spooled = redrives(read(DIVERTING % ""), ["elsewhere", "spooled"], diverted=True)
    assert (kafka.can_look, topic.can_look) == (False, False)
    assert kafka.hindrance == "steps divert to hub/bad, which redrive does not read: it is no queue of Service Bus"
    assert spooled.can_look
    assert "has the step deduplicate" in spooled.hindrance
    with pytest.raises(InvalidArgumentError, match="task flat has no step with on_failure: divert"):
        redrives(read(DIVERTING % ""), ["flat"], diverted=True)
