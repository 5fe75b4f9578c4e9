"""Copy, move, consolidate, fan-out and split in one run: every message is where its pattern says, once, and in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient
from azure.servicebus.exceptions import OperationTimeoutError

from harness.client.sdk_client import DELETE, receive
from isthmus.amqp import section
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.transport import Sender

pytestmark = pytest.mark.spark

MEMBERS = ("ewr", "jfk", "lga")
TASKS = """\
  boards: {pattern: copy, source: ewr, topic: boards, target: jfk, target_queue: boards-copy, filter: "number > 10", action: "SET seen = 1"}
  gates: {pattern: move, source: ewr, queue: gates, target: jfk}
  screens: {pattern: move, source: ewr, topic: boards, subscription: screens, target: lga, target_queue: screens}
  weather: {pattern: consolidate, sources: [ewr, jfk], topic: weather, target: lga, target_queue: weather, duplicates: origin}
  flights: {pattern: fan-out, topic: flights, hub: ewr, members: {jfk: [lga]}, audit: 1d}
  orders:
    pattern: split
    source: ewr
    queue: orders
    first: true
    targets:
      - {to: jfk, queue: orders-low, filter: "number <= 20"}
      - {to: lga, queue: orders-even, filter: "even = TRUE", action: "SET kind = 'even'"}
    otherwise: {to: lga, name: rest, queue: orders-rest}
  trips: {pattern: move, source: ewr, queue: trips, target: jfk, ordering: session}
  legs:
    pattern: all-active
    topic: legs
    members: [ewr, jfk]
    ordering: session
    audit: 1d
    subscriptions: {crews: {filter: "1 = 1", sessions: true}}
  crates: {pattern: active-passive, primary: ewr, secondary: lga, queue: crates, failover_within: 10m, ordering: session, audit: 1d}
  parcels: {pattern: move, source: ewr, queue: parcels, target: lga, ordering: strict}
"""
COUNT = 60
SESSIONS = 12


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("patterns"), MEMBERS, written=TASKS) as federation:
        for alias, entity in [
            ("ewr", "boards"),
            ("ewr", "gates"),
            ("ewr", "flights"),
            ("ewr", "orders"),
            ("ewr", "parcels"),
        ]:
            publish(federation, alias, entity)
        for alias, entity in [("ewr", "trips"), ("ewr", "legs"), ("jfk", "legs"), ("ewr", "crates")]:
            publish(federation, alias, entity, sessions=SESSIONS)
        for alias in ("ewr", "jfk"):
            publish(federation, alias, "weather", message_id="same")
        run = federation.run("--json", "--retry-first", "1")
        run.wait_phase(("waiting", "moving"))
        federation.wait_moved()
        federation.wait_moved()  # what a member of the fan-out passes on may have come behind the first look at its route
        assert run.end() == 0, run.log()[-3000:]
        yield federation


def publish(federation: FederationProcess, alias: str, entity: str, message_id: str = "m", sessions: int = 0) -> None:
    messages = [
        section.encode_message(
            b"x",
            properties={"message_id": f"{message_id}-{number}"}
            | ({"group_id": f"{alias}-{number % sessions}"} if sessions else {}),
            application_properties={"publisher": alias, "number": number, "even": number % 2 == 0},
        )
        for number in range(1, COUNT + 1)
    ]
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint(alias, entity)) as client:
        Sender(client, entity).wait_ready().send_all(messages, batch=COUNT)


def found(federation: FederationProcess, alias: str, entity: str) -> list[dict[str, Any]]:
    """The application properties of the contents of an entity, in order."""
    rows: list[dict[str, Any]] = []
    with NamespaceClients(federation.federation) as clients:
        peek = clients.peek(Endpoint(alias, entity))
        start = 0
        while page := peek(start, 250):
            rows += (section.decode_map(each, section.locate(each).application_properties) for each in page)
            start = peeked_message(page[-1]).sequence + 1
    return rows


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [row["number"] for row in rows]


def test_a_topic_is_copied_into_a_queue_by_filter_and_action(moved: FederationProcess) -> None:
    rows = found(moved, "jfk", "boards-copy")
    assert numbers(rows) == list(range(11, COUNT + 1))
    assert {row["seen"] for row in rows} == {1}
    assert {row["repl-origin"] for row in rows} == {"ewr/boards"}


def test_queue_and_subscription_are_emptied(moved: FederationProcess) -> None:
    assert numbers(found(moved, "jfk", "gates")) == list(range(1, COUNT + 1))
    assert found(moved, "ewr", "gates") == []
    assert numbers(found(moved, "lga", "screens")) == list(range(1, COUNT + 1))
    assert found(moved, "ewr", "boards/Subscriptions/screens") == []


def test_equal_message_ids_of_two_regions_stay_two_messages(moved: FederationProcess) -> None:
    rows = found(moved, "lga", "weather")
    assert Counter(row["repl-origin"] for row in rows) == {"ewr/weather": COUNT, "jfk/weather": COUNT}
    for alias in ("ewr", "jfk"):
        assert numbers([row for row in rows if row["publisher"] == alias]) == list(range(1, COUNT + 1))


def test_a_tree_of_hubs_passes_on_what_it_gets(moved: FederationProcess) -> None:
    for alias, path in [("jfk", "ewr/flights"), ("lga", "ewr/flights;jfk/flights")]:
        rows = found(moved, alias, "flights/Subscriptions/audit")
        assert numbers(rows) == list(range(1, COUNT + 1))
        assert {row["repl-origin"] for row in rows} == {path}


def test_a_queue_is_split_to_the_first_target_that_fits(moved: FederationProcess) -> None:
    assert numbers(found(moved, "jfk", "orders-low")) == list(range(1, 21))
    even = found(moved, "lga", "orders-even")
    assert numbers(even) == list(range(22, COUNT + 1, 2))
    assert {row["kind"] for row in even} == {"even"}
    assert numbers(found(moved, "lga", "orders-rest")) == list(range(21, COUNT + 1, 2))
    assert found(moved, "ewr", "orders") == []


def sessions_of(federation: FederationProcess, alias: str, **where: str) -> dict[str, list[int]]:
    """The numbers that the official SDK receives in each session, in its order, until no session is left."""
    read: dict[str, list[int]] = {}
    with ServiceBusClient.from_connection_string(federation.namespaces[alias].connection_string) as client:
        while True:
            make = client.get_subscription_receiver if "topic_name" in where else client.get_queue_receiver
            try:
                with make(**where, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1, receive_mode=DELETE) as receiver:
                    found = receive(receiver, COUNT, wait=0.5)
                    numbers = read.setdefault(receiver.session.session_id, [])
                    numbers += [int(message.application_properties[b"number"]) for message in found]
            except OperationTimeoutError:
                return read


def expected(*aliases: str) -> dict[str, list[int]]:
    return {
        f"{alias}-{session}": [number for number in range(1, COUNT + 1) if number % SESSIONS == session]
        for alias in aliases
        for session in range(SESSIONS)
    }


def test_a_queue_with_sessions_is_moved_session_by_session(moved: FederationProcess) -> None:
    assert found(moved, "ewr", "trips") == []
    assert sessions_of(moved, "jfk", queue_name="trips") == expected("ewr")


def test_sessions_are_copied_in_both_directions_and_verified_by_session(moved: FederationProcess) -> None:
    for task in ("legs", "crates"):
        result = moved.verify(task)
        assert result.clean, result.to_dict()
        assert (result.total("lost"), result.total("out_of_order"), result.total("duplicated")) == (0, 0, 0)
    assert sessions_of(moved, "jfk", topic_name="legs", subscription_name="crews") == expected("ewr", "jfk")
    assert sessions_of(moved, "lga", topic_name="crates", subscription_name="consumers") == expected("ewr")


def test_strict_order(moved: FederationProcess) -> None:
    assert numbers(found(moved, "lga", "parcels")) == list(range(1, COUNT + 1))
