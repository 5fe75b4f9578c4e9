"""What real namespaces treat as a copy: duplicate keys, marks of any type, and provenance over several hops.

Messages are moved as a route's sink moves them, without Spark: `tests/spark/federation/test_identity.py` has the whole.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Int, Timestamp
from isthmus.connectors.administration import Administrations
from isthmus.connectors.servicebus.message.message_rewriter import VISITED, Mark, MessageRewriter, Refused
from isthmus.message import DUPLICATE_KEYS, name
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.verification.verify import verify
from isthmus.testing.federation import TOPIC, FederationProcess
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import Federation, plan, read
from isthmus.topology.model import Endpoint, Route
from isthmus.topology.route import routes
from isthmus.transport import Receiver, Sender

MARKS: dict[str, Any] = {
    "no": None,
    "zero": Int(0),
    "text": "0",
    "empty": "",
    "one as text": "1",
    "true": True,
    "half": 0.5,
    "uuid": uuid.UUID(int=7),
    "time": Timestamp(1_700_000_000_000),
}


@pytest.fixture(name="federation", scope="module")
def _federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("identity")) as running:
        yield running


@pytest.fixture(name="numbered", scope="module")
def _numbered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path_factory.mktemp("numbered"), settings=["mark: replication"]) as running:
        yield running


def send(federation: FederationProcess | Second, alias: str, messages: Sequence[bytes], *, batch: int = 0) -> None:
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint(alias, TOPIC)) as client:
        Sender(client, TOPIC).wait_ready().send_all(messages, batch=batch)


def contents(federation: FederationProcess | Second, alias: str) -> list[bytes]:
    with NamespaceClients(federation.federation) as clients:
        return list(clients.peek(Endpoint(alias, f"{TOPIC}/Subscriptions/audit"))(0, 10_000))


def body(message: bytes) -> bytes:
    return section.contents(message, *section.locate(message).body)


def own(message: bytes) -> dict[str, Any]:
    return section.decode_map(message, section.locate(message).application_properties)


def message_id(message: bytes) -> Any:
    return section.decode_properties(message, section.locate(message).properties).get("message_id")


def bodies(federation: FederationProcess | Second, alias: str) -> Counter[bytes]:
    return Counter(map(body, contents(federation, alias)))


class Second:
    """A second file over the first one's `jfk` and another namespace, which it calls by the first file's aliases.

    Attributes:
        federation: what it declares.
        namespaces: by its aliases.
    """

    def __init__(self, first: FederationProcess, other: NamespaceProcess) -> None:
        self.namespaces = {"ewr": first.namespaces["jfk"], "jfk": other}
        lines = ["isthmus: 1", "namespaces:"]
        for alias, served in self.namespaces.items():
            connection = first.folder / f"second-{alias}"
            connection.touch(mode=0o600)
            connection.write_text(served.connection_string)
            lines.append(f'  {alias}: {{connection: "file:{connection}", ca_file: {served.ca_file}}}')
        lines.append(
            f"tasks: {{{TOPIC}: {{pattern: all-active, topic: {TOPIC}, members: [ewr, jfk], subscriptions: [audit]}}}}"
        )
        self.federation: Federation = read("\n".join(lines))
        with Administrations(self.federation) as administrations:
            assert administrations.apply(plan(self.federation, administrations.observe())).error is None


class Direction:
    """One direction of a route, from one member to the other, as its sink sends.

    Attributes:
        copies: what was sent last.
        refused: what was not sent last.
    """

    def __init__(self, federation: FederationProcess | Second, source: str) -> None:
        self.federation = federation
        self.route: Route = next(r for r in routes(federation.federation) if r.source.alias == source)
        self.copies: list[bytes] = []
        self.refused: list[Refused] = []

    def take(self, rewriter: MessageRewriter | None = None) -> list[bytes]:
        """The copies of what waits, which is completed."""
        options = self.route.options
        with NamespaceClients(self.federation.federation) as clients, clients.open(self.route.source) as client:
            identities = clients.identities(self.federation.federation.namespaces)
            by_alias = {alias: identity for identity, alias in identities.items() if identity != alias}
            rewriter = rewriter or MessageRewriter(
                f"{self.route.source.alias}/{TOPIC}",
                self.route.target.alias,
                origin_namespace=by_alias[self.route.source.alias],
                target_namespace=by_alias[self.route.target.alias],
                entity=TOPIC,
                mark=Mark(options.mark, is_number=options.mark_is_number),
            )
            receiver = Receiver(client, self.route.source.entity).wait_attached()
            waiting = len(clients.peek(self.route.source)(0, 10_000))
            receiver.grant(max(1, waiting))
            client.wait_until(lambda: receiver.received >= waiting, 20, "messages")
            self.copies, self.refused = [], []
            for run in receiver.take():
                for payload in run.payloads:
                    made = rewriter.copy(payload, time.time_ns() // 1_000_000)
                    if isinstance(made, bytes):
                        self.copies.append(made)
                    else:
                        self.refused.append(made)
                receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
            client.close()
        return self.copies

    def give(self, copies: Sequence[bytes] | None = None, *, batch: int = 0, keyed: bool = True) -> None:
        """Send copies; the link asks for duplicate keys."""
        with NamespaceClients(self.federation.federation) as clients, clients.open(self.route.target) as client:
            sender = Sender(client, TOPIC, (DUPLICATE_KEYS,) if keyed else ()).wait_ready()
            assert sender.offers(DUPLICATE_KEYS) is keyed
            sender.send_all(self.copies if copies is None else copies, batch=batch)

    def move(self) -> None:
        self.take()
        self.give()


def move_all(federation: FederationProcess | Second) -> None:
    for alias in ("ewr", "jfk", "ewr", "jfk"):
        Direction(federation, alias).move()


def test_equal_message_ids_of_two_publishers_are_kept_everywhere_and_a_copy_sent_again_does_not(
    federation: FederationProcess,
) -> None:
    expected: Counter[bytes] = Counter()
    for alias in ("ewr", "jfk"):
        said = [f"{alias} {number}".encode() for number in range(50)]
        expected.update(said)
        send(
            federation,
            alias,
            [section.encode_message(b, properties={"message_id": b.split()[1].decode()}) for b in said],
        )
    directions = [Direction(federation, alias) for alias in ("ewr", "jfk")]
    for direction in directions:
        direction.take()
        direction.give(direction.copies[:30])
        direction.give(batch=7)  # as after a crash, in other units
    for alias, served in federation.namespaces.items():
        served.kill()
        served.start()
        assert bodies(federation, alias) == expected
    for direction in directions:
        direction.give()
    for alias in federation.namespaces:
        assert bodies(federation, alias) == expected
    assert federation.verify().clean


def test_only_a_link_that_asks_has_its_copies_compared(federation: FederationProcess) -> None:
    send(federation, "ewr", [section.encode_message(b"asked", properties={"message_id": "asked"})])
    direction = Direction(federation, "ewr")
    direction.take()
    direction.give()
    direction.give(keyed=False)
    assert bodies(federation, "jfk")[b"asked"] == 2
    assert federation.verify().total("duplicated") == 1


def test_what_an_application_sends_with_a_copys_properties_is_new(federation: FederationProcess) -> None:
    send(federation, "ewr", [section.encode_message(b"first", properties={"message_id": "first"})])
    move_all(federation)
    copy = next(message for message in contents(federation, "jfk") if body(message) == b"first")
    assert own(copy)[name.ORIGIN] == "ewr/flights"
    again = [
        section.encode_message(b"answer", properties={"message_id": "answer"}, application_properties=own(copy)),
        section.encode_message(b"nameless", application_properties=own(copy)),
        section.encode_message(
            b"forged",
            application_properties={name.ORIGIN: "ewr/flights", name.SEQUENCE: "1", name.OFFSET: "1", name.TIME: "t"},
        ),
    ]
    before = federation.verify()
    send(federation, "jfk", again)
    move_all(federation)
    for alias in federation.namespaces:
        found = bodies(federation, alias)
        assert [found[said] for said in (b"answer", b"nameless", b"forged")] == [1, 1, 1], alias
    arrived = next(message for message in contents(federation, "ewr") if body(message) == b"answer")
    assert own(arrived)[name.ORIGIN] == "jfk/flights"
    after = federation.verify()
    assert after.total("arrived") == before.total("arrived") + 3
    assert after.total("lost") == 0


def test_a_copy_goes_no_further_in_its_task_even_where_a_rule_lets_it(federation: FederationProcess) -> None:
    send(federation, "ewr", [section.encode_message(b"once", properties={"message_id": "once"})])
    direction = Direction(federation, "ewr")
    direction.move()
    (copy,) = [message for message in contents(federation, "jfk") if body(message) == b"once"]
    with NamespaceClients(federation.federation) as clients:
        identities = {
            alias: identity for identity, alias in clients.identities(["ewr", "jfk"]).items() if identity != alias
        }
    mark = Mark(direction.route.options.mark)
    back = MessageRewriter(
        "jfk/flights", "ewr", origin_namespace=identities["jfk"], target_namespace=identities["ewr"], mark=mark
    ).copy(copy, 0)
    assert isinstance(back, Refused)
    assert (back.disposition, back.reason) == ("complete", VISITED)
    onward = MessageRewriter(
        "jfk/flights", "lga", origin_namespace=identities["jfk"], target_namespace="x", mark=mark
    ).copy(copy, 0)
    assert isinstance(onward, Refused)
    assert onward.reason == "Copied"
    # Another file gives the alias to another namespace, and its task has a mark of its own.
    other = MessageRewriter(
        "jfk/flights", "ewr", origin_namespace=identities["jfk"], target_namespace="x", mark=Mark("other")
    )
    made = other.copy(copy, 0)
    assert isinstance(made, bytes)
    assert own(made)[name.NAMESPACE] == f"{identities['ewr']};{identities['jfk']}"


def test_a_chosen_mark_keeps_back_only_the_number_one(numbered: FederationProcess) -> None:
    messages = [
        section.encode_message(
            kind.encode(), properties={"message_id": kind}, application_properties={"replication": mark}
        )
        for kind, mark in MARKS.items()
    ]
    send(numbered, "ewr", [*messages, section.encode_message(b"stays", application_properties={"replication": Int(1)})])
    move_all(numbered)
    assert bodies(numbered, "jfk") == Counter(kind.encode() for kind in MARKS)
    assert {own(message)["replication"] for message in contents(numbered, "jfk")} == {1}
    assert numbered.verify().clean
    send(numbered, "jfk", [section.encode_message(b"bytes", application_properties={"replication": b"\1"})])
    copied = own(contents(numbered, "jfk")[0])
    send(numbered, "jfk", [section.encode_message(b"kept back", application_properties=copied)])
    move_all(numbered)
    result = numbered.verify()
    reported = [result.total(kind) for kind in ("incomparable", "stopped", "lost")]
    assert (reported, result.clean) == ([1, 1, 0], False)


def test_old_marks_make_no_loop_and_lose_nothing_when_the_rules_change(tmp_path: Path) -> None:
    """Copies made under the rule `replication` arrive where the task's own mark rules already."""
    with FederationProcess(tmp_path) as federation:
        old = MessageRewriter("ewr/flights", "jfk", mark=Mark("replication", is_number=True))
        send(federation, "ewr", [section.encode_message(b"old", properties={"message_id": "old"})])
        direction = Direction(federation, "ewr")
        (copy,) = direction.take(old)
        direction.give([copy], keyed=False)
        move_all(federation)
        assert bodies(federation, "jfk") == {b"old": 1}
        # By its alias alone nothing proves that it has been at ewr: it goes back once, and no further.
        move_all(federation)
        assert bodies(federation, "ewr")[b"old"] <= 2
        assert bodies(federation, "jfk") == {b"old": 1}


def test_two_files_with_the_same_names_stop_nothing_of_each_other(tmp_path: Path) -> None:
    """ewr - jfk and jfk - third; both tasks are called flights, and the second file calls its members ewr and jfk, too."""
    with FederationProcess(tmp_path) as first, namespace() as third:
        second = Second(first, third)
        send(first, "ewr", [section.encode_message(b"from ewr", properties={"message_id": "1"})])
        send(second, "jfk", [section.encode_message(b"from third", properties={"message_id": "1"})])
        send(first, "jfk", [section.encode_message(b"from jfk", properties={"message_id": "1"})])
        for _ in range(2):
            move_all(first)
            move_all(second)
        expected = Counter([b"from ewr", b"from third", b"from jfk"])
        for federation in (first, second):
            for alias in federation.namespaces:
                assert bodies(federation, alias) == expected
            (result,) = verify(federation.federation)
            assert result.clean, result.to_dict()
            assert (result.total("arrived"), result.total("unknown")) == (3, 0)
