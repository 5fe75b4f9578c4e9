"""An IoT hub as source and target, against a server written from the vendor's public contract (tests/harness/server/iothub_server.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.eventhub import EventHubProducerClient
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from harness.bridge.kafka_join import join, route, wait
from harness.server.iothub_server import IotHubServer
from isthmus.amqp import section
from isthmus.bridge.route_spec import End
from isthmus.connectors.administration import Administrations
from isthmus.connectors.iothub.endpoint import events_endpoint
from isthmus.connectors.iothub.option import read_hub, read_source
from isthmus.connectors.servicebus.connection_string import ConnectionStringError
from isthmus.replication.route_spec import route_spec
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.topology import plan
from isthmus.topology.file.source import load
from isthmus.topology.route import routes

CONFIG = """
queues: {telemetry: {}, commands: {}, orders: {}}
event_hubs: {iothub-ehub-contoso: {partition_count: 2}}
"""
HUB = "iothub-ehub-contoso"
SECONDS = 60.0


@pytest.fixture(name="served", scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("ewr"), config=CONFIG) as running:
        yield running


@pytest.fixture(name="hub")
def _hub(served: NamespaceProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[IotHubServer]:
    with IotHubServer(served, HUB) as running:
        monkeypatch.setenv("IOT", running.connection_string)
        monkeypatch.setenv("EWR", served.connection_string)
        yield running


def until(condition: Callable[[], Any], what: str) -> None:
    wait(condition, what, SECONDS)


def test_the_endpoint_behind_a_hub_is_found(hub: IotHubServer, served: NamespaceProcess) -> None:
    found = events_endpoint(read_hub({"connection": "env:IOT"}))
    assert (found.hub, found.endpoint.port) == (HUB, served.ports["amqp"])
    ((_, operation, body),) = hub.tokens()
    assert operation == "put-token"
    assert str(body).startswith("SharedAccessSignature sr=127.0.0.1&sig=")


def test_device_to_cloud_messages_keep_what_the_hub_says_of_them(
    hub: IotHubServer, served: NamespaceProcess, tmp_path: Path
) -> None:
    annotations = {
        "iothub-connection-device-id": "d1",
        "iothub-connection-auth-generation-id": "637",
        "iothub-enqueuedtime": 1,
        "iothub-message-source": "Telemetry",
    }
    with EventHubProducerClient.from_connection_string(served.connection_string, eventhub_name=HUB) as producer:
        for number in range(20):
            message = AmqpAnnotatedMessage(
                data_body=b"%d" % number,
                annotations=annotations,
                application_properties={"level": number, "tenant": "enriched"},
            )
            producer.send_event(message, partition_id=str(number % 2))
    source = End("iothub", "iot", {"connection": "env:IOT", "checkpoints": str(tmp_path), "message_ids": "offset"})
    target = End("servicebus", "ewr", {"connection": "env:EWR", "entity": "telemetry"})
    with (
        join(route(source, target)),
        ServiceBusClient.from_connection_string(served.connection_string) as client,
        client.get_queue_receiver("telemetry") as receiver,
    ):
        found: list[Any] = []

        def is_all() -> bool:
            found.extend(receiver.receive_messages(20, max_wait_time=1))
            return len(found) >= 20

        until(is_all, "all telemetry")
        first = next(each for each in found if str(each) == "0")
        reported = {key.decode(): value for key, value in (first.application_properties or {}).items()}
        assert reported["iothub-connection-device-id"] in ("d1", b"d1")
        assert reported["iothub-message-source"] in ("Telemetry", b"Telemetry")
        assert (reported["tenant"], reported["level"]) == (b"enriched", 0)
        assert first.message_id == f"{HUB}/0/0"
        until(lambda: len(list(tmp_path.rglob("*.json"))) == 2, "checkpoints")


def device_route(**options: str) -> Any:
    source = End("servicebus", "ewr", {"connection": "env:EWR", "entity": options.pop("entity")})
    return route(source, End("iothub", "iot", {"connection": "env:IOT", **options}))


def left(served: NamespaceProcess, queue: str) -> int:
    with (
        ServiceBusClient.from_connection_string(served.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        return len(receiver.peek_messages(10))


def test_messages_reach_their_devices(hub: IotHubServer, served: NamespaceProcess) -> None:
    with (
        ServiceBusClient.from_connection_string(served.connection_string) as client,
        client.get_queue_sender("commands") as sender,
    ):
        sender.send_messages(
            ServiceBusMessage("on", message_id="m1", session_id="d 1", application_properties={"a": 1})
        )
        sender.send_messages(ServiceBusMessage("off", to="/devices/d2/messages/devicebound"))
    with join(device_route(entity="commands")):
        until(lambda: len(hub.sent()) == 2 and left(served, "commands") == 0, "both to be settled")
    read = [_fields(each) for each in hub.sent()]
    assert [each[0]["to"] for each in read] == [
        "/devices/d%201/messages/devicebound",
        "/devices/d2/messages/devicebound",
    ]
    assert read[0][0]["message_id"] == "m1"
    assert read[0][1] == {"a": 1}
    assert read[1][0]["message_id"]


def test_a_message_is_settled_when_its_device_has_it(hub: IotHubServer, served: NamespaceProcess) -> None:
    with (
        ServiceBusClient.from_connection_string(served.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        for number in range(3):
            sender.send_messages(ServiceBusMessage(str(number), message_id=f"o{number}", session_id=f"d{number}"))
    with join(device_route(entity="orders", acknowledged_by="device")):
        until(lambda: len(hub.sent()) == 3, "all to be sent")
        assert [_fields(each)[1]["iothub-ack"] for each in hub.sent()] == ["full"] * 3
        assert left(served, "orders") == 3  # the hub has them, and no device
        foreign = hub.give_feedback("another", "d0", "Success")
        hub.give_feedback("o0", "d0", "Success")
        hub.give_feedback("o2", "d2", "Success")
        until(lambda: left(served, "orders") == 1, "what devices have to be settled")
        # What expires in the device's queue is set aside with the hub's text.
        hub.give_feedback("o1", "d1", "Expired", "Message expired")
        until(lambda: left(served, "orders") == 0, "the third to be set aside")
        assert foreign not in hub.queues["/messages/serviceBound/feedback"].fates
    with (
        ServiceBusClient.from_connection_string(served.connection_string) as client,
        client.get_queue_receiver("orders", sub_queue="deadletter") as receiver,
    ):
        (dead,) = receiver.peek_messages(10)
    assert (dead.message_id, dead.dead_letter_reason) == ("o1", "RefusedByDevice")
    assert "device 'd1': Expired: Message expired" in str(dead.dead_letter_error_description)


def _fields(message: bytes) -> tuple[dict[str, Any], dict[Any, Any]]:
    found = section.locate(message)
    return section.decode_properties(message, found.properties), section.decode_map(
        message, found.application_properties
    )


def test_a_key_that_is_no_base64_is_refused_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IOT", "HostName=contoso.azure-devices.net;SharedAccessKeyName=service;SharedAccessKey=hunter2!")
    with pytest.raises(ConnectionStringError, match="base64") as refused:
        events_endpoint(read_hub({"connection": "env:IOT"}))
    assert "hunter2" not in str(refused.value)


def test_an_iot_hub_is_declared_in_a_federation_file(
    hub: IotHubServer, served: NamespaceProcess, tmp_path: Path
) -> None:
    file = tmp_path / "isthmus.yaml"
    file.write_text(
        f"""
isthmus: 1
namespaces:
  ewr: {{connection: env:EWR, ca_file: {served.ca_file}}}
  iot: {{kind: iothub, connection: env:IOT, checkpoints: checkpoints}}
tasks:
  telemetry: {{pattern: stream-to-queue, source: iot, stream: events, target: ewr, queue: telemetry, group: $Default,
              start: existing, duplicate_detection: off}}
"""
    )
    federation = load(file).anchored(tmp_path)
    with Administrations(federation) as administrations:
        made = plan(federation, administrations.observe())
        applied = administrations.apply(made)
        assert applied.error is None, applied.error
        assert not plan(federation, administrations.observe()).changes
    (route_,) = routes(federation)
    spec = route_spec(route_, federation)
    assert (spec.source.kind, spec.source.options["topic"]) == ("iothub", "events")
    read_source(spec.source.options)
