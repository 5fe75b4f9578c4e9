"""Mailboxes of replication subscriptions, and the action when a source fills."""

from __future__ import annotations

import pytest

from isthmus.testing.administration import FakeAdministration
from isthmus.topology import QueueState, TopicState, lint, plan, read, wanted
from isthmus.topology.route import routes

HEAD = "isthmus: 1\nnamespaces:\n  ewr: {connection: env:A}\n  jfk: {connection: env:B}\n  lga: {connection: env:C}\ntasks:\n"
ALL = HEAD + "  flights: {pattern: all-active, topic: flights, members: [ewr, jfk, lga], mailbox: true}\n"


def test_each_replication_subscription_forwards_to_a_queue_of_its_name() -> None:
    at_ewr = wanted(read(ALL))["ewr"]
    topic = next(each for each in at_ewr if isinstance(each, TopicState) and each.name == "flights")
    own = {each.name: each for each in topic.subscriptions if each.rules}
    assert {name: each.forward_to for name, each in own.items()} == {
        "isthmus.flights.jfk": "isthmus.flights.jfk",
        "isthmus.flights.lga": "isthmus.flights.lga",
    }
    queues = {each.name: each for each in at_ewr if isinstance(each, QueueState)}
    assert set(queues) == set(own)
    for name, queue in queues.items():
        assert queue.max_delivery_count == 2000
        assert queue.lock_duration_ms == own[name].lock_duration_ms
        assert queue.partitioned is False


def test_routes_read_mailboxes_and_stay_routes_of_the_topic() -> None:
    plain = {each.name: each for each in routes(read(ALL.replace(", mailbox: true", "")))}
    found = {each.name: each for each in routes(read(ALL))}
    assert set(found) == set(plain)
    route = found["flights.ewr.jfk"]
    assert str(route.source) == "ewr/isthmus.flights.jfk"
    assert route.options.feed == plain[route.name].source.entity
    assert route.entered == plain[route.name].entered == "flights"
    assert route.options.mark == plain[route.name].options.mark


def test_the_time_to_live_of_active_passive_is_the_mailboxes_too() -> None:
    task = "  flights: {pattern: active-passive, topic: flights, primary: ewr, secondary: jfk, failover_within: 5m, mailbox: true}\n"
    at_ewr = wanted(read(HEAD + task))["ewr"]
    topic = next(each for each in at_ewr if isinstance(each, TopicState) and each.name == "flights")
    (queue,) = (each for each in at_ewr if isinstance(each, QueueState))
    subscription = topic.subscription(queue.name)
    assert subscription is not None
    assert queue.default_ttl_ms == subscription.default_ttl_ms
    assert queue.dead_letters_expired == subscription.dead_letters_expired


@pytest.mark.parametrize(
    ("task", "reported"),
    [
        ("{pattern: move, source: ewr, target: jfk, queue: a, mailbox: true}", "no replication subscription"),
        (
            "{pattern: move, source: ewr, target: jfk, queue: a, when_full: drop}",
            "the task has none; write mailbox: true",
        ),
        ("{pattern: archive, source: ewr, topic: a, table: t, when_full: spool}", "has a spool already"),
        ("{pattern: copy, source: ewr, target: jfk, topic: a, mailbox: true, when_full: throw}", "unknown value"),
    ],
)
def test_what_cannot_be_is_reported(task: str, reported: str) -> None:
    faults = lint(HEAD + f"  a: {task}\n")
    assert any(reported in str(each) for each in faults), faults


def test_a_spool_in_the_state_folder_is_refused_where_executors_are_elsewhere() -> None:
    text = HEAD + "  a: {pattern: copy, source: ewr, target: jfk, topic: a, when_full: spool}\n"
    assert not lint(text)
    remote = (
        text
        + "spark: {master: 'spark://cluster:7077', checkpoints: 's3a://bucket/checkpoints', control: {host: 10.0.0.1}}\n"
    )
    assert any("executors on other machines cannot access" in str(each) for each in lint(remote)), lint(remote)


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (ALL, ALL.replace(", mailbox: true", ""), ["isthmus.flights.jfk", "isthmus.flights.lga"]),
        (
            HEAD + "  a: {pattern: split, source: ewr, queue: q, targets: [{to: jfk, queue: a}]}\n",
            HEAD + "  a: {pattern: move, source: ewr, queue: q, target: jfk, target_queue: a}\n",
            ["isthmus.a"],
        ),
        (ALL.replace(", mailbox: true", ""), ALL, []),
    ],
)
def test_what_is_left_where_nothing_reads_any_more_is_reported(before: str, after: str, left: list[str]) -> None:
    namespaces = {alias: FakeAdministration(f"{alias}.test") for alias in ("ewr", "jfk", "lga")}
    for text in (before, after):
        federation = read(text)
        found = plan(
            federation, {alias: namespaces[alias].observe(alias, each) for alias, each in wanted(federation).items()}
        )
        for change in found.changes:
            namespaces[change.alias].make(change)
    reported = [
        note for note in found.notes if "are no longer moved by any task of this file" in note and " at ewr " in note
    ]
    assert [note.split()[2] for note in reported] == left
