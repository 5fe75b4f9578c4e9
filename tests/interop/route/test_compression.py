"""A long distance with few bytes: routes to a namespace of isthmus deflate what they send, and everything arrives as it was."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.bridge.hosted_lease import carry, queue_route
from harness.client.fault_client import connected, look
from isthmus.amqp import section
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.proxy import proxy
from isthmus.transport import Sender

COUNT = 2_000
LEAST_TIMES = 3


@pytest.fixture(name="served", scope="module")
def _served() -> Iterator[NamespaceProcess]:
    with namespace(
        config="queues: {from-plain: {}, from-far: {}, from-mixed: {}, plain: {}, far: {}, mixed: {}}"
    ) as ns:
        yield ns


def body_of(number: int, padding: bytes = b"") -> bytes:
    body = {"number": number, "carrier": "UA", "origin": "EWR", "dest": "IAH", "delays": [number % 7] * 60}
    return json.dumps(body).encode() + padding


def flight(number: int, padding: bytes = b"") -> bytes:
    return section.encode_message(
        body_of(number, padding),
        properties={"message_id": f"m{number}", "subject": "flight", "content_type": "application/json"},
        application_properties={"number": number, "carrier": "UA"},
    )


def carried(tmp_path: Path, ns: NamespaceProcess, monkeypatch: pytest.MonkeyPatch, name: str, **options: str) -> int:
    """Moves a queue through a proxy; how many bytes went to the target."""
    with proxy(ns.ports["amqp"]) as between:
        common = {"connection": "env:ISTHMUS_TEST_FAR", "ca_file": str(ns.ca_file)}
        near = {"connection": "env:ISTHMUS_TEST_NEAR", "ca_file": str(ns.ca_file)}
        monkeypatch.setenv("ISTHMUS_TEST_NEAR", ns.connection_string)
        behind = ns.connection_string.replace(f":{ns.ports['amqp']}", f":{between.port}")
        monkeypatch.setenv("ISTHMUS_TEST_FAR", behind)
        messages = 200 if options else 0
        route = queue_route(
            near | {"entity": f"from-{name}"},
            common | {"entity": name} | options,
            only_present=True,
            envelope_messages=messages,
        )
        carry(tmp_path / name, route)
        return between.bytes_there


def test_a_third_of_the_bytes_and_the_same_messages(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = {}
    for name, options in (("plain", {}), ("far", {"compression": "deflate"})):
        (tmp_path / name).mkdir()
        with connected(served, f"from-{name}") as client:
            Sender(client, f"from-{name}").wait_ready().send_all([flight(n) for n in range(COUNT)], batch=100)
        sent[name] = carried(tmp_path, served, monkeypatch, name, **options)
        with connected(served, name) as client:
            found = [json.loads(each.body) for each in look(client, name)]
        assert [each["number"] for each in found] == list(range(COUNT))
    print(sent)
    assert sent["plain"] > LEAST_TIMES * sent["far"], sent


def test_what_cannot_be_made_smaller_goes_as_it_is(
    served: NamespaceProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does what is small, and what would be too much when it is expanded."""
    (tmp_path / "mixed").mkdir()
    paddings = [b"", os.urandom(2_000), bytes(100_000), os.urandom(200_000), b"x"]
    bodies = [body_of(number, paddings[number % len(paddings)]) for number in range(40)]
    with connected(served, "from-mixed") as client:
        Sender(client, "from-mixed").wait_ready().send_all([section.encode_message(body) for body in bodies])
    carried(tmp_path, served, monkeypatch, "mixed", compression="deflate")
    with connected(served, "mixed") as client:
        assert [each.body for each in look(client, "mixed")] == bodies
