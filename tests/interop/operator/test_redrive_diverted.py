"""`isthmus redrive --diverted` between served namespaces: what steps diverted is sent to where it would have gone, whatever is killed.

The diverting is done by what a run's sink is made of, without a run.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.management import ServiceBusAdministrationClient

from harness.fixture.set_aside import contents, numbers, reported, send
from isthmus.amqp import section
from isthmus.bridge.divert import explained
from isthmus.cli.app import main
from isthmus.client import mended
from isthmus.entities.queue.run import RunSet
from isthmus.operations.copy_target import CopyTarget, Sent
from isthmus.operations.message import sequence_of
from isthmus.operations.peek import messages
from isthmus.operations.removal.session_sweep import sweep_entity
from isthmus.operations.removal.sweep import Taken
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.route_spec import route_spec
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint, Route
from isthmus.topology.route import routes

TASKS = """
  flights:
    pattern: all-active
    topic: flights
    members: [ewr, jfk, lga]
    subscriptions: [audit]
    lock_duration: 5s
    steps: [{validate: {schema: flight.schema.json, on_failure: divert, divert_to: {to: lga, queue: invalid}}}]
  orders:
    pattern: move
    source: ewr
    queue: orders
    target: jfk
    lock_duration: 5s
    duplicates: allow
    steps: [{validate: {schema: flight.schema.json, on_failure: divert, divert_to: {to: ewr, queue: invalid}}}]
  bookings:
    pattern: move
    source: ewr
    queue: bookings
    target: jfk
    ordering: session
    lock_duration: 5s
    steps: [{validate: {schema: flight.schema.json, on_failure: divert, divert_to: {to: lga, queue: by-session}}}]
"""
ROUNDS = 20
KILLED = 600


@pytest.fixture(name="running")
def _running(tmp_path: Path) -> Iterator[FederationProcess]:
    (tmp_path / "flight.schema.json").write_text('{"type": "object"}')
    with FederationProcess(tmp_path, ("ewr", "jfk", "lga"), written=TASKS) as running:
        lga = running.namespaces["lga"]
        with ServiceBusAdministrationClient.from_connection_string(
            lga.admin_connection_string, connection_verify=str(lga.ca_file)
        ) as client:
            queue = client.get_queue("invalid")
            queue.lock_duration = timedelta(seconds=5)  # what killed processes have locked comes back soon
            client.update_queue(queue)
            client.delete_queue("by-session")
            client.create_queue("by-session", requires_session=True, lock_duration=timedelta(seconds=5))
        yield running


def divert(running: FederationProcess, route: Route) -> int:
    """All that waits before a route, as a step of it diverts it."""
    spec = route_spec(route, running.federation)
    (end,) = spec.diverts.values()
    with NamespaceClients(running.federation) as clients, clients.open(route.source) as client:
        wanted = RunSet()
        for payload in messages(client, route.source.entity):
            sequence = sequence_of(payload)
            wanted.add(sequence, sequence)
        with CopyTarget(replace(spec, target=end, steps=()), client.namespace_id) as target:

            def take(taken: list[Taken], renew: Callable[[], None]) -> list[Taken]:
                why = "ValidationFailed", "step validate: no", spec.diverted_from, spec.name
                verdicts = target.send([explained(each.payload, *why) for each in taken], renew)
                assert all(isinstance(each, Sent) for each in verdicts), verdicts
                return taken

            return sweep_entity(client, route.source.entity, wanted, take)  # type: ignore[arg-type]


def divert_all(running: FederationProcess, task: str, source: str) -> None:
    for route in routes(running.federation, task):
        if route.source.alias == source:
            assert divert(running, route) > 0


def audited(running: FederationProcess, alias: str) -> list[Any]:
    return contents(running, alias, "flights/Subscriptions/audit")


def test_one_diverted_message_goes_to_the_targets_of_all_its_routes(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(running.file)
    send(running, "ewr", "flights", range(20), body=b"{}", ttl_ms=3_000_000)
    divert_all(running, "flights", "ewr")
    assert len(contents(running, "lga", "invalid")) == 20  # known by their origin: once for both routes
    send(running, "jfk", "flights", range(20, 30), body=b"{}")
    divert_all(running, "flights", "jfk")

    looked = reported(capsys, file, "flights", "--diverted")
    there, back, _ = looked["queues"]
    assert (there["from"], there["to"], there["chosen"]) == ("lga/invalid", "jfk/flights, lga/flights", 20)
    assert (back["to"], back["chosen"], back["foreign"]) == ("ewr/flights, lga/flights", 10, 0)
    assert there["reasons"] == {"ValidationFailed": 20}
    assert (looked["sent"], len(contents(running, "lga", "invalid"))) == (0, 30)

    assert reported(capsys, file, "flights", "--diverted", "--yes", "--count", "5")["sent"] == 10
    assert reported(capsys, file, "flights", "--diverted", "--yes")["sent"] == 20
    assert not contents(running, "lga", "invalid")
    for alias in ("jfk", "lga"):
        copies = [each for each in audited(running, alias) if each.properties.get("repl-origin") == "ewr/flights"]
        assert sorted(numbers(copies)) == list(range(20))
        for each in copies:
            assert not [name for name in each.properties if name.startswith("repl-dead-letter")]
            assert each.properties["repl-resent"].startswith("ewr/flights/")
    with NamespaceClients(running.federation) as clients, clients.open(Endpoint("jfk", "flights")) as client:
        lives = [
            section.decode_header(each, section.locate(each).header).ttl_ms
            for each in messages(client, "flights/Subscriptions/audit")
            if b"repl-origin" in each
        ]
    assert all(each is not None and 2_900_000 < each < 3_000_000 for each in lives)
    # They do not come back.
    for alias, other in (("jfk", "ewr"), ("lga", "ewr"), ("lga", "jfk")):
        assert not contents(running, alias, f"flights/Subscriptions/isthmus.flights.{other}")
    result = running.verify("flights")
    assert result.clean, result.to_dict()
    assert (result.total("entered"), result.total("arrived")) == (30, 60)


def test_what_is_still_wrong_stays_and_what_was_mended_continues(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(running.file)
    send(running, "ewr", "flights", range(4))  # their bodies are no JSON
    divert_all(running, "flights", "ewr")
    (row, *_) = reported(capsys, file, "flights", "--diverted", "--yes", code=1)["queues"]
    assert (row["chosen"], row["sent"], row["refused"]) == (4, 0, 4)
    assert row["first_refusal"].startswith("ValidationFailed: step validate")
    with (
        ServiceBusClient.from_connection_string(running.namespaces["lga"].connection_string) as client,
        client.get_queue_receiver("invalid", max_wait_time=5) as receiver,
        client.get_queue_sender("invalid") as sender,
    ):
        for message in receiver.receive_messages(4, max_wait_time=10):
            sender.send_messages(mended(message, '{"flight": 1}'))
            receiver.complete_message(message)
    assert reported(capsys, file, "flights", "--diverted", "--yes")["sent"] == 4
    for alias in ("jfk", "lga"):
        found = audited(running, alias)
        assert {each.body for each in found} == {'{"flight": 1}'}
        assert {each.message_id for each in found} == {f"flights-{number}" for number in range(4)}
    result = running.verify("flights")
    assert result.clean, result.to_dict()


def test_where_doubles_are_allowed_a_message_is_that_of_its_route(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    send(running, "ewr", "orders", range(3), body=b"{}")
    divert_all(running, "orders", "ewr")
    (row,) = reported(capsys, str(running.file), "orders", "--diverted", "--yes")["queues"]
    assert (row["from"], row["to"], row["sent"]) == ("ewr/invalid", "jfk/orders", 3)
    found = contents(running, "jfk", "orders")
    assert numbers(found) == [0, 1, 2]
    assert [each.properties["repl-resent"] for each in found] == ["ewr/orders/1", "ewr/orders/2", "ewr/orders/3"]
    assert not contents(running, "ewr", "invalid")


def test_a_message_of_no_route_stays_and_is_reported(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    send(running, "lga", "invalid", range(3))
    rows = reported(capsys, str(running.file), "flights", "--diverted", "--yes")["queues"]
    assert {(row["found"], row["foreign"], row["sent"]) for row in rows} == {(0, 3, 0)}
    assert len(contents(running, "lga", "invalid")) == 3
    with pytest.raises(SystemExit):
        main(["redrive", str(running.file), "flights", "--diverted"])
    shown = capsys.readouterr().out
    assert "3 messages in lga/invalid are of no route of this file" in shown


def test_a_queue_with_sessions_is_emptied_session_by_session(
    running: FederationProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(running.file)
    for session_id in ("a", "b", "c"):
        send(running, "ewr", "bookings", range(5), body=b"{}", session_id=session_id)
        send(running, "ewr", "bookings", range(5, 6), body=b"no", session_id=session_id)
    divert_all(running, "bookings", "ewr")
    lga = running.namespaces["lga"]
    with (
        ServiceBusClient.from_connection_string(lga.connection_string) as client,
        client.get_queue_receiver("by-session", session_id="b", max_wait_time=5),
    ):
        (row,) = reported(capsys, file, "bookings", "--diverted", "--yes", code=1)["queues"]
    assert (row["chosen"], row["sent"], row["refused"], row["left"]) == (18, 10, 2, 6)
    assert row["locked_sessions"] == ["b"]
    assert (
        row["error"]
        == "another receiver has the session 'b': run it again when that has closed or its lock has expired"
    )
    assert Counter(each.session_id for each in contents(running, "lga", "by-session")) == {"a": 1, "b": 6, "c": 1}

    (row,) = reported(capsys, file, "bookings", "--diverted", "--yes", code=1)["queues"]
    assert (row["chosen"], row["sent"], row["refused"], row["left"]) == (8, 5, 3, 0)
    assert (row["locked_sessions"], row["error"]) == ([], "")
    found = contents(running, "jfk", "bookings")
    assert {each: numbers([copy for copy in found if copy.session_id == each]) for each in "abc"} == {
        each: list(range(5)) for each in "abc"
    }


def test_killed_at_any_time_it_loses_and_doubles_nothing(
    running: FederationProcess, long_count: Callable[[int], int]
) -> None:
    send(running, "ewr", "flights", range(KILLED), body=b"{}")
    divert_all(running, "flights", "ewr")
    command = [sys.executable, "-c", "from isthmus.cli.app import main; main()", "redrive", str(running.file)]
    command += ["flights", "--diverted", "--yes", "--json"]
    choose = random.Random(11)
    arrived = 0
    rounds = long_count(ROUNDS)
    for _ in range(rounds):
        goal = arrived + choose.randrange(1, max(2, KILLED // rounds))
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        limit = time.monotonic() + 120
        while process.poll() is None and arrived < goal:
            assert time.monotonic() < limit
            arrived = len(audited(running, choose.choice(("jfk", "lga"))))
        process.kill()
        process.wait()
    limit = time.monotonic() + 180  # locks of killed processes last for a while
    while contents(running, "lga", "invalid"):
        assert time.monotonic() < limit
        subprocess.run(command, stdout=subprocess.DEVNULL, check=False, timeout=120)
    for alias in ("jfk", "lga"):
        assert Counter(numbers(audited(running, alias))) == Counter(range(KILLED))
    result = running.verify("flights")
    assert result.clean, result.to_dict()
