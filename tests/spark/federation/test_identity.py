"""Which messages a federation treats as copies: equal MessageIds, marks of any type, and provenance over several hops."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.amqp.types import Int, Timestamp
from isthmus.message import name
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.testing.federation import TOPIC, FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.transport import Sender

pytestmark = pytest.mark.spark

COUNT = 25
MARKS: dict[str, Any] = {
    "none": None,
    "zero": Int(0),
    "text": "0",
    "empty": "",
    "one as text": "1",
    "true": True,
    "half": 0.5,
    "uuid": uuid.UUID(int=7),
    "time": Timestamp(1_700_000_000_000),
}


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FederationProcess]:
    """A federation and one run of it, which moves what each test sends."""
    with FederationProcess(tmp_path_factory.mktemp("identity"), ("ewr", "jfk", "lga"), ["mark: replication"]) as opened:
        run = opened.run("--json", "--retry-first", "1")
        run.wait_phase(("waiting", "moving"))
        yield opened
        assert run.end() == 0, run.log()[-3000:]


def send(federation: FederationProcess, alias: str, messages: Sequence[bytes]) -> None:
    with NamespaceClients(federation.federation) as clients, clients.open(Endpoint(alias, TOPIC)) as client:
        Sender(client, TOPIC).wait_ready().send_all(messages)


def contents(federation: FederationProcess, alias: str) -> list[bytes]:
    with NamespaceClients(federation.federation) as clients:
        return list(clients.peek(Endpoint(alias, f"{TOPIC}/Subscriptions/audit"))(0, 10_000))


def bodies(federation: FederationProcess, alias: str) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for message in contents(federation, alias):
        found[section.contents(message, *section.locate(message).body)] += 1
    return found


def own(message: bytes) -> dict[str, Any]:
    return section.decode_map(message, section.locate(message).application_properties)


def test_only_copies_are_taken_for_copies(federation: FederationProcess) -> None:
    expected: list[bytes] = []
    for alias in ("ewr", "jfk"):  # both number their messages alike
        said = [f"{alias} says {number}".encode() for number in range(COUNT)]
        expected += said
        send(
            federation,
            alias,
            [section.encode_message(body, properties={"message_id": f"m{n}"}) for n, body in enumerate(said)],
        )
    marked = [f"marked {kind}".encode() for kind in MARKS]
    expected += marked
    send(
        federation,
        "ewr",
        [
            section.encode_message(
                body, properties={"message_id": body.decode()}, application_properties={"replication": m}
            )
            for body, m in zip(marked, MARKS.values(), strict=True)
        ],
    )
    forged = b"forged"
    expected.append(forged)
    been = {name.ORIGIN: "jfk/flights;lga/flights", name.SEQUENCE: "1;1", name.OFFSET: "1;1", name.TIME: "t;t"}
    send(federation, "ewr", [section.encode_message(forged, application_properties=been)])
    federation.wait_moved()
    for alias in ("ewr", "jfk", "lga"):
        assert bodies(federation, alias) == Counter(expected), alias
    result = federation.verify()
    assert result.clean, result.to_dict()
    assert result.total("arrived") == 2 * len(expected)


def test_a_mark_that_nothing_can_be_compared_with_is_reported_by_verify(federation: FederationProcess) -> None:
    send(federation, "lga", [section.encode_message(b"bytes", application_properties={"replication": b"\0"})])
    federation.wait_moved()
    result = federation.verify()
    reported = [result.total(kind) for kind in ("incomparable", "lost")]  # reported once, at its origin
    assert (reported, result.clean) == ([1, 0], False)
