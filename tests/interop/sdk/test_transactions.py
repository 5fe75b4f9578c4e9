"""rhea, a client that knows AMQP 1.0 and nothing of Service Bus: transactions over one and several entities.

It has to follow part 4 of the specification: what is settled and sent in a transaction counts when it is
discharged, all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.client.fault_client import connected, look
from harness.client.sdk_program import Program, Remote, install_javascript
from isthmus.amqp import section
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

ENTITIES = """
queues:
  work: {lock_duration: 5m}
  next: {}
  sessions: {requires_session: true, lock_duration: 5m}
topics:
  flights:
    subscriptions:
      all: {}
"""
DEAD_LETTERS = "/$DeadLetterQueue"


@pytest.fixture(scope="module")
def served() -> Iterator[NamespaceProcess]:
    with namespace(config=ENTITIES) as running:
        yield running


@pytest.fixture(scope="module")
def rhea(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder: Path = tmp_path_factory.mktemp("rhea")
    program = Program(install_javascript(), {}, folder / "log.txt")
    yield program
    program.close()


def connect(rhea: Program, served: NamespaceProcess) -> Remote:
    key = ConnectionString.parse(served.connection_string)
    assert key.key is not None
    return rhea.open("amqp_connect", port=served.ports["amqp"], username=key.key_name, password=key.key.reveal())


@pytest.fixture
def connection(rhea: Program, served: NamespaceProcess) -> Iterator[Remote]:
    for entity in ("work", "next", "work" + DEAD_LETTERS, "flights/Subscriptions/all"):
        assert contents(served, entity) == [], "left by the test before"
    with connect(rhea, served) as opened:
        yield opened


@pytest.fixture
def coordinator(connection: Remote) -> Remote:
    return connection.open("amqp_coordinator")


def put(ns: NamespaceProcess, entity: str, *names: str, session_id: str | None = None) -> None:
    with connected(ns, entity) as client:
        group = {} if session_id is None else {"group_id": session_id}
        messages = [section.encode_message(name.encode(), properties={"message_id": name, **group}) for name in names]
        Sender(client, entity).wait_ready().send_all(messages)


def contents(ns: NamespaceProcess, entity: str) -> list[bytes]:
    with connected(ns, entity) as client:
        return [seen.body for seen in look(client, entity)]


def take(receiver: Remote, count: int) -> list[tuple[str, int]]:
    """Receives so many, and accepts them without a transaction: their bodies and delivery counts."""
    got = receiver.amqp_receive(count=count)
    for message in got:
        receiver.amqp_settle(message=message["handle"], outcome="accepted")
    return [(message["body"], message["delivery_count"]) for message in got]


@dataclass
class Work:
    """Two messages received and accepted in a transaction, and one sent in it; the discharge is up to the test."""

    receiver: Remote
    transaction: str
    got: list[dict[str, Any]]
    answer: dict[str, str]


def work(
    served: NamespaceProcess, connection: Remote, coordinator: Remote, entity: str, session_id: str | None, early: bool
) -> Work:
    put(served, entity, "a", "b", session_id=session_id)
    receiver = connection.open("amqp_receiver", entity=entity, session_id=session_id)
    sender = connection.open("amqp_sender", entity=entity)
    transaction = coordinator.amqp_declare()
    got = receiver.amqp_receive(count=2)
    assert [message["body"] for message in got] == ["a", "b"]
    for message in got:
        receiver.amqp_settle_in(message=message["handle"], transaction=transaction, outcome="accepted", early=early)
    answer = sender.amqp_send(body="c", session_id=session_id, transaction=transaction)
    return Work(receiver, transaction, got, answer)


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("entity", "session_id"), [("work", None), ("sessions", "s")])
def test_a_commit(
    served: NamespaceProcess, connection: Remote, coordinator: Remote, entity: str, session_id: str | None, early: bool
) -> None:
    done = work(served, connection, coordinator, entity, session_id, early)
    assert done.answer == {"transaction": done.transaction, "outcome": "accepted"}
    assert contents(served, entity) == [b"a", b"b"]
    assert coordinator.amqp_discharge(transaction=done.transaction, fails=False) == {"outcome": "accepted"}
    assert contents(served, entity) == [b"c"]
    assert take(done.receiver, 1) == [("c", 0)]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("entity", "session_id"), [("work", None), ("sessions", "s")])
def test_a_roll_back(
    served: NamespaceProcess, connection: Remote, coordinator: Remote, entity: str, session_id: str | None, early: bool
) -> None:
    done = work(served, connection, coordinator, entity, session_id, early)
    assert coordinator.amqp_discharge(transaction=done.transaction, fails=True) == {"outcome": "accepted"}
    assert contents(served, entity) == [b"a", b"b"]
    if not early:  # they are the receiver's still
        for message in done.got:
            done.receiver.amqp_settle(message=message["handle"], outcome="released")
    assert take(done.receiver, 2) == [("a", 0), ("b", 0)]


def test_several_entities_with_a_send_via_one(
    served: NamespaceProcess, connection: Remote, coordinator: Remote
) -> None:
    put(served, "work", "in")
    receiver = connection.open("amqp_receiver", entity="work")
    onward = connection.open("amqp_sender", entity="work", onward="next")
    transaction = coordinator.amqp_declare()
    (message,) = receiver.amqp_receive(count=1)
    receiver.amqp_settle_in(message=message["handle"], transaction=transaction, outcome="accepted", early=False)
    onward.amqp_send(body="out", transaction=transaction)
    assert (contents(served, "work"), contents(served, "next")) == ([b"in"], [])
    assert coordinator.amqp_discharge(transaction=transaction, fails=False) == {"outcome": "accepted"}
    assert (contents(served, "work"), contents(served, "next")) == ([], [b"out"])
    assert take(connection.open("amqp_receiver", entity="next"), 1) == [("out", 0)]


def test_outcomes_other_than_accepted(served: NamespaceProcess, connection: Remote, coordinator: Remote) -> None:
    put(served, "work", "buried", "back")
    receiver = connection.open("amqp_receiver", entity="work")
    transaction = coordinator.amqp_declare()
    for message, outcome in zip(receiver.amqp_receive(count=2), ("rejected", "modified"), strict=True):
        receiver.amqp_settle_in(message=message["handle"], transaction=transaction, outcome=outcome, early=True)
    assert contents(served, "work" + DEAD_LETTERS) == []
    assert coordinator.amqp_discharge(transaction=transaction, fails=False) == {"outcome": "accepted"}
    assert (contents(served, "work"), contents(served, "work" + DEAD_LETTERS)) == ([b"back"], [b"buried"])
    assert [name for name, _ in take(receiver, 1)] == ["back"]
    dead_letters = connection.open("amqp_receiver", entity="work" + DEAD_LETTERS)
    assert [name for name, _ in take(dead_letters, 1)] == ["buried"]


def test_transactions_side_by_side(served: NamespaceProcess, connection: Remote, coordinator: Remote) -> None:
    sender = connection.open("amqp_sender", entity="flights")
    first, second = coordinator.amqp_declare(), coordinator.amqp_declare()
    assert first != second
    for number in range(3):
        sender.amqp_send(body=f"first {number}", transaction=first)
        sender.amqp_send(body=f"second {number}", transaction=second)
    assert coordinator.amqp_discharge(transaction=second, fails=True) == {"outcome": "accepted"}
    assert coordinator.amqp_discharge(transaction=first, fails=False) == {"outcome": "accepted"}
    receiver = connection.open("amqp_receiver", entity="flights/Subscriptions/all")
    assert take(receiver, 3) == [(f"first {number}", 0) for number in range(3)]


def test_the_end_of_the_coordinators_connection_rolls_back(
    served: NamespaceProcess, rhea: Program, connection: Remote
) -> None:
    put(served, "work", "a")
    with connect(rhea, served) as other:
        transaction = other.open("amqp_coordinator").amqp_declare()
        receiver = other.open("amqp_receiver", entity="work")
        (message,) = receiver.amqp_receive(count=1)
        receiver.amqp_settle_in(message=message["handle"], transaction=transaction, outcome="accepted", early=True)
        other.open("amqp_sender", entity="next").amqp_send(body="lost", transaction=transaction)
    assert take(connection.open("amqp_receiver", entity="work"), 1) == [("a", 0)]
    assert contents(served, "next") == []


def test_what_is_no_transaction_any_more(served: NamespaceProcess, connection: Remote, coordinator: Remote) -> None:
    transaction = coordinator.amqp_declare()
    assert coordinator.amqp_discharge(transaction=transaction, fails=False) == {"outcome": "accepted"}
    again = coordinator.amqp_discharge(transaction=transaction, fails=False)
    assert again == {"outcome": "rejected", "condition": "amqp:transaction:unknown-id"}
