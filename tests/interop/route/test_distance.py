"""A target that is far away and grants little credit: real namespaces, the sink's host, and a proxy in between."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pytest

from isthmus.amqp import section
from isthmus.bench.load import connect
from isthmus.bridge.delivery_event import Send
from isthmus.bridge.host.sender.sender import SenderHost
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.servicebus.port.target import ServiceBusTarget
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.proxy import Proxy, proxy
from isthmus.transport import Management

CONFIG = """
limits: {sender_credit: 10}
queues:
  far: {}
  detecting: {requires_duplicate_detection: true}
  cut: {requires_duplicate_detection: true}
  keyed: {enable_partitioning: true}
  sessions: {enable_partitioning: true, requires_session: true}
"""
LONG_SECONDS = 120.0


@pytest.fixture(name="served", scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("namespace"), config=CONFIG) as running:
        yield running


@pytest.fixture(name="between")
def _between(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    with proxy(served.ports["amqp"]) as made:
        made.set_round_trip(0.1)
        behind = served.connection_string.replace(f":{served.ports['amqp']}", f":{made.port}")
        monkeypatch.setenv("DISTANCE_TEST", behind)
        yield made


@pytest.fixture(name="sizes")
def _sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were in each envelope that was sent."""
    found: list[int] = []
    send = ServiceBusTarget.send

    def note(target: ServiceBusTarget, effect: Send) -> None:
        if effect.is_envelope:
            found.append(len(effect.payloads))
        send(target, effect)

    monkeypatch.setattr(ServiceBusTarget, "send", note)
    return found


def sink(entity: str) -> SenderHost:
    target = End("servicebus", "b", {"connection": "env:DISTANCE_TEST", "entity": entity})
    spec = RouteSpec(name=entity, source=End("servicebus", "a"), target=target)
    return SenderHost(channel=None, static=(spec,)).start()


def messages(numbers: Sequence[int], key: str = "") -> list[bytes]:
    return [
        section.encode_message(
            b"%d" % n,
            properties={"message_id": f"m{n}", **({"group_id": f"s{n % 3}"} if key == "session" else {})},
            annotations={"x-opt-partition-key": f"k{n % 3}"} if key == "partition" else None,
        )
        for n in numbers
    ]


def hand_over(host: SenderHost, payloads: list[bytes]) -> None:
    offsets = [0]
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    host.hand_over(1, None, b"".join(payloads), offsets)


def remaining(served: NamespaceProcess, entity: str) -> list[str]:
    """The message ids of the contents of an entity."""
    found: list[str] = []
    with connect(served.connection_string, entity) as client:
        node, start = Management(client, entity), 0
        while page := node.peek(start, 250):
            for message in page:
                sections = section.locate(message)
                found.append(str(section.decode_properties(message, sections.properties)["message_id"]))
                start = int(section.decode_map(message, sections.message_annotations)["x-opt-sequence-number"]) + 1
    return found


def test_far_away_messages_go_in_envelopes_and_keep_their_order(
    served: NamespaceProcess, between: Proxy, sizes: list[int]
) -> None:
    host = sink("far")
    for first in range(0, 2000, 100):
        hand_over(host, messages(range(first, first + 100)))
    host.finish()
    assert remaining(served, "far") == [f"m{n}" for n in range(2000)]
    assert sum(sizes) > 1500


def test_duplicate_detection_looks_at_each_message_of_an_envelope(
    served: NamespaceProcess, between: Proxy, sizes: list[int]
) -> None:
    between.set_round_trip(0.0)
    host = sink("detecting")
    hand_over(host, messages(range(200)))
    hand_over(host, messages(range(100, 300)))
    host.finish()
    assert remaining(served, "detecting") == [f"m{n}" for n in range(300)]
    assert sizes


def test_connections_that_are_cut_lose_no_envelope(served: NamespaceProcess, between: Proxy, sizes: list[int]) -> None:
    host = sink("cut")
    for first in range(0, 3000, 100):
        hand_over(host, messages(range(first, first + 100)))
    for _ in range(3):
        limit = time.monotonic() + LONG_SECONDS
        while not between.connections and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(0.3)
        between.cut()
    host.finish()
    assert remaining(served, "cut") == [f"m{n}" for n in range(3000)]
    assert sizes
    assert between.accepted >= 2


def test_messages_that_keys_place_go_alone(served: NamespaceProcess, between: Proxy, sizes: list[int]) -> None:
    between.set_round_trip(0.0)
    host = sink("keyed")
    hand_over(host, messages(range(200), "partition"))
    host.finish()
    assert sorted(remaining(served, "keyed")) == sorted(f"m{n}" for n in range(200))
    assert sizes == []


def test_a_target_that_refuses_envelopes_gets_each_message_alone(
    served: NamespaceProcess, between: Proxy, sizes: list[int]
) -> None:
    """A partitioned entity takes only one session's messages in one envelope."""
    between.set_round_trip(0.0)
    host = sink("sessions")
    for first in range(0, 300, 100):
        hand_over(host, messages(range(first, first + 100), "session"))
    host.finish()
    assert 0 < len(sizes) <= 10
    assert sorted(remaining(served, "sessions")) == sorted(f"m{n}" for n in range(300))
