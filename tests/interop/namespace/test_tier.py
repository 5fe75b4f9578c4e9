"""A namespace of a tier, and one in place of the vendor's emulator, as the official SDK sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError
from azure.servicebus.management import MessagingSku, ServiceBusAdministrationClient

from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.errors import UnauthorizedError
from isthmus.testing.namespace import NamespaceProcess, NamespaceStartError, namespace

CONFIG = "tier: {}\nqueues: [orders]"
EMULATOR = """{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [
    {"Name": "queue.1", "Properties": {"LockDuration": "PT1M"}}]}], "Logging": {"Type": "File"}}}"""


EMULATOR_STRING = (
    "Endpoint=sb://localhost:{};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)


@pytest.fixture(scope="module")
def basic() -> Iterator[NamespaceProcess]:
    with namespace(config=CONFIG.format("basic")) as running:
        yield running


def administration(ns: NamespaceProcess) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        ns.admin_connection_string, connection_verify=str(ns.ca_file)
    )


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("requires_session", True),
        ("requires_duplicate_detection", True),
        ("auto_delete_on_idle", timedelta(hours=1)),
        ("forward_to", "orders"),
        ("forward_dead_lettered_messages_to", "orders"),
        ("max_message_size_in_kilobytes", 1024),
        ("max_size_in_megabytes", 10240),
        ("default_message_time_to_live", timedelta(days=15)),
    ],
)
def test_basic_refuses_what_the_service_refuses(basic: NamespaceProcess, setting: str, value: Any) -> None:
    with administration(basic) as client, pytest.raises(HttpResponseError) as refused:
        client.create_queue("refused", **{setting: value})
    assert refused.value.status_code == 400
    assert "".join(word.capitalize() for word in setting.split("_")) in str(refused.value)


def test_basic_has_queues_of_small_messages_and_says_what_it_is(basic: NamespaceProcess) -> None:
    with administration(basic) as client:
        properties = client.get_namespace_properties()
        assert (properties.messaging_sku, properties.messaging_units) == (MessagingSku.BASIC, None)
        made = client.create_queue("made")
        assert made.default_message_time_to_live == timedelta(days=14)
        made.lock_duration = timedelta(seconds=10)
        client.update_queue(made)
        with pytest.raises(HttpResponseError, match="no topics"):
            client.create_topic("flights")
    with (
        ServiceBusClient.from_connection_string(basic.connection_string) as client,
        client.get_queue_sender("made") as sender,
    ):
        sender.send_messages(ServiceBusMessage(b"x" * 250_000))
        with pytest.raises(MessageSizeExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 262_144))


@pytest.mark.parametrize(("tier", "sku"), [("standard", MessagingSku.STANDARD), ("premium", MessagingSku.PREMIUM)])
def test_other_tiers_say_what_they_are(tier: str, sku: MessagingSku) -> None:
    with namespace(config=CONFIG.format(tier)) as running, administration(running) as client:
        assert client.get_namespace_properties().messaging_sku == sku
        client.create_topic("flights")
        kilobytes = 102_400 if tier == "premium" else 256
        client.create_queue("large", max_message_size_in_kilobytes=kilobytes)
        if tier == "standard":
            with pytest.raises(HttpResponseError, match="MaxMessageSizeInKilobytes"):
                client.create_queue("larger", max_message_size_in_kilobytes=1024)


def test_what_exists_when_a_tier_is_set_stays_and_what_the_file_names_is_judged(tmp_path: Path) -> None:
    file = tmp_path / "namespace.yaml"
    file.write_text("queues: {ordered: {requires_session: true}, plain: {}}\ntopics: [flights]", encoding="utf-8")
    with namespace(tmp_path / "data", config=file) as running:
        running.stop()
        file.write_text("tier: basic\nqueues: {plain: {}}", encoding="utf-8")
        for _ in range(2):
            running.start()
            with administration(running) as client:
                assert client.get_queue("ordered").requires_session
                assert client.get_queue("plain").default_message_time_to_live == timedelta(days=14)
                assert client.get_topic("flights").name == "flights"
            running.stop()
        file.write_text("tier: basic\nqueues: {ordered: {requires_session: true}}", encoding="utf-8")
        with pytest.raises(NamespaceStartError, match=r"RequiresSession.*'Basic' tier"):
            running.start()


def test_an_application_of_the_emulator_finds_its_key_and_its_queue(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(EMULATOR, encoding="utf-8")
    with namespace(config=config, arguments=["--emulator"]) as running:
        well_known = EMULATOR_STRING.format(running.ports["amqp"])
        for text in (well_known, running.connection_string):
            with ServiceBusClient.from_connection_string(text) as client:
                with client.get_queue_sender("queue.1") as sender:
                    sender.send_messages(ServiceBusMessage("hello"))
                with client.get_queue_receiver("queue.1") as receiver:
                    [message] = receiver.receive_messages(max_wait_time=20)
                    receiver.complete_message(message)
        assert "SAS_KEY_VALUE" not in (running.data / "keys.json").read_text(encoding="utf-8")


def test_the_emulator_s_key_is_taken_on_loopback_and_on_request_only(basic: NamespaceProcess) -> None:
    with (
        pytest.raises(NamespaceStartError, match="emulator's key is known to everybody"),
        namespace(arguments=["--emulator", "--host", "0.0.0.0"]),
    ):
        pass
    text = re.sub("SharedAccessKey=[^;]*", "SharedAccessKey=SAS_KEY_VALUE", basic.connection_string)
    endpoint = endpoint_of_string(ConnectionString.parse(text))
    with pytest.raises(UnauthorizedError):
        open_client(endpoint, "orders", "stranger")
