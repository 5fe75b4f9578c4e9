"""The kind `amqp` at a real ActiveMQ Artemis: listeners, durable subscriptions, rejected messages, and tasks of a federation file."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.bridge.hosted_lease import carried, carry
from harness.conformance.artemis_end import ArtemisEnd, Browser
from harness.conformance.servicebus_end import ServiceBusEnd
from harness.server.artemis_broker import ArtemisBroker, artemis
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, SourceLost, SourceOpened
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.administration import Administrations
from isthmus.connectors.amqp.browse import QueueBrowse
from isthmus.connectors.amqp.connector import AmqpSources
from isthmus.connectors.amqp.option import read_target
from isthmus.connectors.amqp.remote import open_client, sender_terms
from isthmus.connectors.amqp.system import SYSTEM
from isthmus.connectors.servicebus.port import outcome_wait
from isthmus.errors import IsthmusError, UnauthorizedError
from isthmus.replication.route_spec import route_spec
from isthmus.testing.bridge.message import key_of, message
from isthmus.topology import plan, read
from isthmus.topology.route import routes
from isthmus.transport import Sender

WAIT_SECONDS = 120.0
PASSWORD = "hunter2-of-artemis"
COUNT = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArtemisBroker]:
    with artemis(tmp_path_factory.mktemp("artemis"), is_secure=True) as running:
        yield running


@pytest.fixture
def end(broker: ArtemisBroker) -> Iterator[ArtemisEnd]:
    made = ArtemisEnd(broker)
    yield made
    made.close()


def keys(start: int, stop: int) -> list[str]:
    return [f"k/{number}" for number in range(start, stop)]


def wait(condition: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def clients(broker: ArtemisBroker) -> dict[str, str]:
    return {"url": f"amqp://127.0.0.1:{broker.port}"}


def moved(folder: Path, source: dict[str, str], target: dict[str, str]) -> None:
    """Moves what is there, and ends."""
    spec = RouteSpec(name="a/b", source=End("amqp", "a", source), target=End("amqp", "b", target), only_present=True)
    folder.mkdir()
    carry(folder, spec)


@pytest.mark.parametrize("listener", ["amqp", "ws", "amqps-external", "amqps-plain"])
def test_what_is_there_moves_over_every_listener(
    broker: ArtemisBroker, end: ArtemisEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listener: str
) -> None:
    """isthmus.connectors.amqp.source, I6: the run ends by itself."""
    monkeypatch.setenv("ARTEMIS_PASSWORD", PASSWORD)
    certificate, key = broker.certificate
    login = {"username": "isthmus", "password": "env:ARTEMIS_PASSWORD"}
    options = {
        "amqp": {"url": f"amqp://127.0.0.1:{broker.port}"},
        "ws": {"url": f"ws://127.0.0.1:{broker.port}/amqp"} | login,
        "amqps-external": {"certificate_file": str(certificate), "key_file": str(key)},
        "amqps-plain": login,
    }[listener]
    if listener.startswith("amqps"):
        options |= {"url": f"amqps://localhost:{broker.tls_port}", "ca_file": str(broker.ca_file)}
    source, target = f"{listener}.source", f"{listener}.target"
    for each in (source, target):
        broker.create_queue(each)
    end.publish(source, keys(0, COUNT), b"x" * 100, 0)
    end.publish(source, keys(COUNT, COUNT + 2), b"x" * 1_000_000, 0)  # each in several transfers
    moved(
        tmp_path / "lease",
        options | {"entity": source, "entity_type": "queue"},
        options | {"entity": target, "entity_type": "queue"},
    )
    assert end.arrived(target) == keys(0, COUNT + 2)
    assert broker.count(source) == 0


def test_a_durable_subscription_keeps_what_is_published_without_a_reader(
    broker: ArtemisBroker, end: ArtemisEnd, tmp_path: Path
) -> None:
    """OASIS AMQP 1.0, 3.5.3: the link is detached and not closed, so its terminus stays."""
    source = clients(broker) | {"entity": "flights", "entity_type": "topic", "subscription": "isthmus.t.b"}
    target = clients(broker) | {"entity": "flights.copy", "entity_type": "queue"}
    broker.create_queue("flights.copy")
    moved(tmp_path / "first", source, target)
    publish_to_topic(broker, "flights", keys(0, COUNT))
    moved(tmp_path / "second", source, target)
    assert end.arrived("flights.copy") == keys(0, COUNT)
    publish_to_topic(broker, "flights", keys(COUNT, COUNT + 5))
    moved(tmp_path / "third", source, target)
    assert end.arrived("flights.copy") == keys(0, COUNT + 5), "what was settled does not come again"


def publish_to_topic(broker: ArtemisBroker, topic: str, names: list[str]) -> None:
    publish(broker, clients(broker) | {"entity": topic, "entity_type": "topic"}, names)


def publish(broker: ArtemisBroker, options: dict[str, str], names: list[str]) -> None:
    spec = clients(broker) | {"entity": options["entity"], "entity_type": options["entity_type"]}
    with open_client(read_target(spec), "publisher") as client:
        sender = Sender(client, spec["entity"], terms=sender_terms(spec["entity"], spec["entity_type"])).wait_ready()
        sender.send_all([section.encode_header(section.Header(durable=True)) + message(name) for name in names])


class Reader:
    """An ordered source, as a route has it.

    Args:
        options: of the source.
    """

    def __init__(self, options: dict[str, str]) -> None:
        self._pool = AmqpSources()
        self.source: Any = self._pool.source(1, options, ordered=True)
        self.keys: list[str] = []
        self.positions: list[int] = []  # of these
        self.losses: list[str] = []
        self.is_open = False

    def open(self) -> None:
        """Opens it, or waits until that has failed."""
        count = len(self.losses)
        self.source.open()
        wait(lambda: self.read() and (self.is_open or len(self.losses) > count))

    def read(self) -> bool:
        """Takes what there is."""
        self._pool.flush()
        self._pool.service(dict.fromkeys((fd for fd, _ in self._pool.descriptors()), 1), time.monotonic())
        for event in self.source.poll(time.monotonic()):
            if isinstance(event, Arrived):
                self.keys += map(key_of, event.payloads)
                self.positions += event.positions
            elif isinstance(event, SourceOpened):
                self.is_open = True
            elif isinstance(event, SourceLost):
                self.is_open = False
                assert not event.is_fatal
                self.losses.append(event.text)
        return True

    def lose(self) -> int:
        """Loses the connection; a descriptor by which the broker still has it."""
        client = self.source.client
        kept = os.dup(client.fileno())
        client.abandon()
        return kept

    def close(self) -> None:
        self.source.close()
        self._pool.close()


@pytest.mark.parametrize("kind", ["queue", "subscription"])
def test_what_was_in_transit_over_a_lost_connection_comes_first(broker: ArtemisBroker, kind: str) -> None:
    """Also where the broker has not noticed the loss when the source is opened again."""
    names, options = keys(0, 10), clients(broker) | {"entity": f"lost.{kind}", "entity_type": "queue"}
    if kind == "queue":
        broker.create_queue(options["entity"])
    else:
        options |= {"entity_type": "topic", "subscription": "copy", "container_id": "box"}
    with closing(Reader(options)) as reader:
        reader.open()
        publish(broker, options, names)
        reader.source.grant(5)
        reader._pool.flush()
        queue = options["entity"] if kind == "queue" else "box.copy"
        wait(lambda: broker.attribute(f"queue.{queue}", "deliveringCount") == 5)
        kept = reader.lose()
        try:
            wait(lambda: reader.read() and reader.losses)
            reader.open()
            assert not reader.is_open, "the broker has delivered some over the lost connection"
        finally:
            os.close(kept)
        while not reader.is_open:
            reader.open()
        reader.source.grant(10)
        wait(lambda: reader.read() and len(reader.keys) >= len(names))
    assert reader.keys == names
    assert len(reader.losses) >= 2


def test_a_message_that_is_set_aside_goes_where_the_broker_sends_rejected_ones(
    broker: ArtemisBroker, end: ArtemisEnd, tmp_path: Path
) -> None:
    """OASIS AMQP 1.0, 3.4.2: rejected; the broker's dead-letter address is its own."""
    for each in ("large.source", "large.target", "large.dla"):
        broker.create_queue(each)
    broker.call(
        "broker", "addAddressSettings", "large.source", '{"DLA": "large.dla", "deadLetterAddress": "large.dla"}'
    )
    queue = clients(broker) | {"entity_type": "queue"}
    end.publish("large.source", keys(0, 3), b"", 0)
    end.publish("large.source", keys(3, 4), b"x" * 50_000, 0)
    end.publish("large.source", keys(4, 6), b"", 0)
    target = queue | {"entity": "large.target", "max_message_bytes": "10000"}
    moved(tmp_path / "lease", queue | {"entity": "large.source", "rejects": "true"}, target)
    assert end.arrived("large.target") == [*keys(0, 3), *keys(4, 6)]
    with closing(Browser(broker, "large.dla")) as dead:
        assert [key for key, _ in dead.messages()] == keys(3, 4)


def test_a_full_address_of_dead_letters_is_reported_and_loses_nothing(
    broker: ArtemisBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker grants no credit. However often the source connects again, it does not count as a delivery attempt."""
    monkeypatch.setattr(outcome_wait, "OUTCOME_SECONDS", 1.0)
    for each in ("stuck.source", "stuck.dead"):
        broker.create_queue(each)
    full = '{"maxSizeBytes": 100, "pageSizeBytes": 50, "addressFullMessagePolicy": "BLOCK"}'
    broker.call("broker", "addAddressSettings", "stuck.dead", full)
    broker.call("broker", "addAddressSettings", "stuck.source", '{"maxDeliveryAttempts": 2}')
    options = clients(broker) | {"entity": "stuck.source", "entity_type": "queue"}
    publish(broker, options | {"entity": "stuck.dead"}, ["fills it"])
    publish(broker, options, keys(0, 2))

    def set_aside(reader: Reader) -> None:
        reader.open()
        count = len(reader.positions)
        reader.source.grant(5)
        wait(lambda: reader.read() and len(reader.positions) == count + 2)
        for position in reader.positions[count:]:
            reader.source.settle(position, position, Disposition("dead-letter", "Odd", ""))

    with closing(Reader(options | {"dead_letters": "stuck.dead"})) as reader:
        for times in range(1, 5):
            set_aside(reader)
            wait(lambda: reader.read() and len(reader.losses) == times)  # noqa: B023
            assert reader.losses[-1].startswith("'stuck.dead': no outcome of the sent messages")
            assert broker.count("stuck.source") == 2
        broker.call("queue.stuck.dead", "removeAllMessages")
        set_aside(reader)
        wait(lambda: reader.read() and broker.count("stuck.source") == 0)
        assert broker.count("stuck.dead") == 2


def test_without_a_place_for_it_a_message_that_would_be_set_aside_stays(
    broker: ArtemisBroker, end: ArtemisEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker without dead-letter addresses drops what is rejected."""
    monkeypatch.setattr(
        "harness.bridge.hosted_lease.LEASE_SECONDS", 10.0
    )  # since the message stays, only this ends the route
    for each in ("kept.source", "kept.target"):
        broker.create_queue(each)
    end.publish("kept.source", keys(0, 1), b"x" * 50_000, 0)
    queue = clients(broker) | {"entity_type": "queue"}
    target = queue | {"entity": "kept.target", "max_message_bytes": "10000"}
    moved(tmp_path / "lease", queue | {"entity": "kept.source"}, target)
    with closing(Browser(broker, "kept.source")) as kept:
        assert [key for key, _ in kept.messages()] == keys(0, 1)


def test_a_federation_file_moves_messages_in_both_directions(
    broker: ArtemisBroker, end: ArtemisEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """plan, apply and the routes of tasks between Artemis and Service Bus."""
    (tmp_path / "servicebus").mkdir()
    with closing(ServiceBusEnd(tmp_path / "servicebus")) as servicebus:
        server = servicebus.server(0)
        servicebus.make("out", "source", {})
        servicebus.make("in", "target", {})
        monkeypatch.setenv("EWR", server.admin_connection_string)
        monkeypatch.setenv("ISTHMUS_CA_FILE", str(server.ca_file))
        federation = read(
            f"""isthmus: 1
namespaces:
  ewr: {{connection: env:EWR}}
  mq: {{kind: amqp, url: "amqp://127.0.0.1:{broker.port}"}}
tasks:
  in: {{pattern: move, queue: in, source: mq, target: ewr}}
  out: {{pattern: move, queue: out, source: ewr, target: mq}}
"""
        )
        for name in ("in", "out"):
            broker.create_queue(name)
        with Administrations(federation) as administrations:
            administrations.apply(plan(federation, administrations.observe()))
            assert plan(federation, administrations.observe()).changes == ()
        with carried(tmp_path, [route_spec(each, federation) for each in routes(federation)]):
            end.publish("in", keys(0, COUNT), b"", 0)
            servicebus.publish("out", keys(0, COUNT), b"", 0)
            wait(lambda: len(servicebus.arrived("in")) >= COUNT)
            wait(lambda: len(end.arrived("out")) >= COUNT)
        assert servicebus.arrived("in") == keys(0, COUNT)
        assert end.arrived("out") == keys(0, COUNT)
    browse = QueueBrowse(clients(broker), "out")
    copy = browse(1, 1)[0]
    browse.close()
    properties = section.decode_map(copy, section.locate(copy).application_properties)
    assert str(properties["repl-origin"]).startswith("ewr"), properties


def test_a_browser_gives_pages_from_any_position_and_takes_nothing(broker: ArtemisBroker, end: ArtemisEnd) -> None:
    """isthmus.connectors.amqp.browse, I1 and I2."""
    broker.create_queue("browsed")
    end.publish("browsed", keys(0, 25), b"", 0)
    browse = SYSTEM.peek(clients(broker), "browsed")
    assert isinstance(browse, QueueBrowse)
    assert [key_of(each) for each in browse(1, 10)] == keys(0, 10)
    assert [key_of(each) for each in browse(21, 10)] == keys(20, 25)
    assert not browse(26, 10)
    assert [key_of(each) for each in browse(2, 3)] == keys(1, 4)
    browse.close()
    assert broker.count("browsed") == 25


def test_what_a_broker_refuses_is_reported_in_its_words(
    broker: ArtemisBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("ARTEMIS_PASSWORD", PASSWORD)
    secure = {"url": f"amqps://localhost:{broker.tls_port}", "ca_file": str(broker.ca_file)}
    with pytest.raises(UnauthorizedError) as refused:
        SYSTEM.check(secure | {"sasl": "anonymous"}, "q", reads=True)
    assert "ANONYMOUS" in str(refused.value)
    login = {"username": "isthmus", "password": "env:ARTEMIS_PASSWORD"}
    with pytest.raises(IsthmusError, match=r"localhost:1: .*refused"):
        SYSTEM.check(login | {"url": "amqps://localhost:1"}, "q", reads=True)
    assert PASSWORD not in caplog.text
    assert SYSTEM.addresses(secure) == [f"localhost:{broker.tls_port}"]
