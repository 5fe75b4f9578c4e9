"""Keys, web tokens, limits of links and statuses, as the unmodified SDK gets them over sockets."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import ClientAuthenticationError
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus._pyamqp.authentication import SASLPlainAuth
from azure.servicebus._pyamqp.client import SendClient
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus._pyamqp.message import Message
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
)
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    EntityStatus,
    ServiceBusAdministrationClient,
)
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from isthmus.testing.namespace import NamespaceProcess, namespace

CONFIG = """
authorization_rules:
  sender: {rights: [Send], primary_key: env:SENDER_KEY}
jwt: {issuer: https://issuer.example/, keys: issuer.pem}
queues:
  orders:
    authorization_rules:
      partner: {rights: [Send, Listen], primary_key: env:PARTNER_KEY}
  idle: {}
  status: {}
  rotated: {}
"""
# A namespace of its own: on a loaded machine any other test is idle for a second now and then.
HASTY = """
limits: {link_idle_timeout: 1s, event_hub_link_idle_timeout: 1s}
queues: {idle: {}}
event_hubs: {quiet: {partition_count: 1}}
"""
KEY = rsa.generate_private_key(65537, 2048)
REFUSED = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    data = tmp_path_factory.mktemp("secure")
    (data / "issuer.pem").write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SENDER_KEY", "sender-key-in-the-environment")
        patch.setenv("PARTNER_KEY", "partner-key-in-the-environment")
        with namespace(data, config=CONFIG) as running:
            yield running


@pytest.fixture(scope="module")
def hasty() -> Iterator[NamespaceProcess]:
    with namespace(config=HASTY) as running:
        yield running


def keyed(served: NamespaceProcess, name: str, key: str) -> ServiceBusClient:
    endpoint = served.connection_string.split(";")[0]
    text = f"{endpoint};SharedAccessKeyName={name};SharedAccessKey={key};UseDevelopmentEmulator=true"
    return ServiceBusClient.from_connection_string(text, retry_total=0)


def send(client: ServiceBusClient, queue: str, body: str = "x") -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(ServiceBusMessage(body))


def receive(client: ServiceBusClient, queue: str) -> list[str]:
    with client.get_queue_receiver(queue) as receiver:
        messages = receiver.receive_messages(max_wait_time=5)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


def eventually(check: Any, seconds: float = 15.0) -> None:
    limit = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < limit
        time.sleep(0.2)


def test_rules_of_the_file_permit_what_they_say(served: NamespaceProcess) -> None:
    with keyed(served, "sender", "sender-key-in-the-environment") as client:
        send(client, "orders", "by the namespace's rule")
        with pytest.raises(REFUSED):
            receive(client, "orders")
    with keyed(served, "partner", "partner-key-in-the-environment") as client:
        assert receive(client, "orders") == ["by the namespace's rule"]
        with pytest.raises(REFUSED):
            send(client, "idle")


def test_an_entity_s_key_by_sasl_plain_opens_that_entity(served: NamespaceProcess) -> None:
    # The SDK itself shows tokens only; its AMQP client speaks PLAIN as well.
    def plain(key: str, entity: str) -> SendClient:
        auth = SASLPlainAuth("partner", key)
        return SendClient(f"127.0.0.1:{served.ports['amqp']}", entity, auth=auth, use_tls=False, timeout=5)

    with plain("partner-key-in-the-environment", "orders") as sender:
        sender.send_message(Message(data=[b"by plain"]))
    with keyed(served, "partner", "partner-key-in-the-environment") as client:
        assert receive(client, "orders") == ["by plain"]
    with pytest.raises(AMQPException), plain("partner-key-in-the-environment", "idle") as sender:
        sender.send_message(Message(data=[b"x"]))
    assert "partner-key-in-the-environment" not in served.log()


class Issued:
    """A credential that issues its own tokens."""

    def __init__(self, *roles: str, **claims: Any) -> None:
        self._claims = {"roles": list(roles), **claims}

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        expires = int(time.time()) + 600
        claims = {"iss": "https://issuer.example/", "aud": "https://servicebus.azure.net", "exp": expires}
        parts = [{"alg": "RS256", "typ": "JWT"}, claims | self._claims]
        text = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
        signature = KEY.sign(text.encode(), padding.PKCS1v15(), SHA256())
        token = f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"
        return AccessToken(token, expires)


def with_token(served: NamespaceProcess, credential: Issued) -> ServiceBusClient:
    host = f"127.0.0.1:{served.ports['amqp']}"
    return ServiceBusClient(host, credential, use_tls=False, retry_total=0)  # type: ignore[arg-type]


def test_web_tokens_open_what_their_roles_say(served: NamespaceProcess) -> None:
    with with_token(served, Issued("Azure Service Bus Data Sender")) as client:
        send(client, "orders", "by a web token")
        with pytest.raises(REFUSED):
            receive(client, "orders")
    with with_token(served, Issued("Listen")) as client:
        assert receive(client, "orders") == ["by a web token"]
    for claims in ({"iss": "https://other/"}, {"aud": "https://other"}, {"exp": 1}):
        refused = with_token(served, Issued("Send", **claims))
        with refused as client, pytest.raises((*REFUSED, ServiceBusConnectionError)):
            send(client, "orders")


def test_web_tokens_administer_with_manage(served: NamespaceProcess) -> None:
    options: dict[str, Any] = {"connection_verify": str(served.ca_file), "retry_total": 0}
    host = f"localhost:{served.ports['http']}"
    with ServiceBusAdministrationClient(host, Issued("Manage"), **options) as admin:  # type: ignore[arg-type]
        assert "orders" in {queue.name for queue in admin.list_queues()}
    with (
        ServiceBusAdministrationClient(host, Issued("Send", "Listen"), **options) as admin,  # type: ignore[arg-type]
        pytest.raises(ClientAuthenticationError),
    ):
        admin.get_queue("orders")


def keys(served: NamespaceProcess, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "isthmus", "namespace", "keys", "--data", str(served.data), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, check=True, env=dict(os.environ))
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_key_is_rotated_without_a_cut_and_the_old_one_opens_nothing_more(served: NamespaceProcess) -> None:
    [old] = keys(served, "--rule", "sender", "--show")["rules"]
    assert keys(served)["rules"][0].keys() == {"name", "rights"}
    with keyed(served, "sender", old["primary_key"]) as first, keyed(served, "sender", old["secondary_key"]) as second:
        going_on = second.get_queue_sender("rotated")
        with going_on, first.get_queue_sender("rotated") as cut:
            for sender in (cut, going_on):
                sender.send_messages(ServiceBusMessage("before"))
            [new] = keys(served, "--rule", "sender", "--regenerate", "primary", "--show")["rules"]
            assert new["primary_key"] != old["primary_key"]
            assert new["secondary_key"] == old["secondary_key"]

            def is_cut() -> bool:
                going_on.send_messages(ServiceBusMessage("meanwhile"))
                try:
                    cut.send_messages(ServiceBusMessage("x"))
                except ServiceBusError:
                    return True
                return False

            eventually(is_cut)
    with keyed(served, "sender", new["primary_key"]) as client:
        send(client, "rotated")


def test_an_entity_s_rules_by_the_administration_api(served: NamespaceProcess) -> None:
    options: dict[str, Any] = {"connection_verify": str(served.ca_file), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(served.admin_connection_string, **options) as admin:
        queue = admin.get_queue("rotated")
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule", claim_type="SharedAccessKey", claim_value="None",
            rights=[AccessRights.SEND], key_name="adhoc", primary_key="p" * 44, secondary_key="s" * 44,
            created_at_utc=None, modified_at_utc=None,
        )  # fmt: skip
        queue.authorization_rules = [rule]
        admin.update_queue(queue)
        with keyed(served, "adhoc", "s" * 44) as client, client.get_queue_sender("rotated") as sender:
            sender.send_messages(ServiceBusMessage("x"))
            queue = admin.get_queue("rotated")
            queue.authorization_rules = []
            admin.update_queue(queue)

            def is_refused() -> bool:
                try:
                    sender.send_messages(ServiceBusMessage("x"))
                except ServiceBusError:
                    return True
                return False

            eventually(is_refused)


def test_an_idle_link_is_detached_and_the_sdk_continues(hasty: NamespaceProcess) -> None:
    with (
        ServiceBusClient.from_connection_string(hasty.connection_string) as client,
        client.get_queue_sender("idle") as sender,
        client.get_queue_receiver("idle") as receiver,
    ):
        sender.send_messages(ServiceBusMessage("first"))
        [message] = receiver.receive_messages(max_wait_time=5)
        receiver.complete_message(message)
        eventually(lambda: hasty.log().count("condition=amqp:link:detach-forced") >= 2)
        sender.send_messages(ServiceBusMessage("second"))
        [message] = receiver.receive_messages(max_wait_time=5)
        assert str(message) == "second"
        receiver.complete_message(message)


def test_idle_event_hub_links_are_detached_and_the_sdk_continues(hasty: NamespaceProcess) -> None:
    def detached(what: str) -> int:
        return hasty.log().count(f"AmqpEventHub{what}.IdleTimerExpired: Idle timeout: 00:00:01.")

    bodies: list[str] = []
    connection = f"{hasty.connection_string};EntityPath=quiet"
    with (
        EventHubProducerClient.from_connection_string(connection) as producer,
        EventHubConsumerClient.from_connection_string(connection, consumer_group="$Default") as consumer,
    ):
        take = partial(consumer.receive, lambda _, event: bodies.append(event.body_as_str()), starting_position="-1")
        reader = threading.Thread(target=take, daemon=True)
        reader.start()
        producer.send_event(EventData("first"))
        eventually(lambda: detached("Publisher") and detached("Consumer") and bodies == ["first"])
        producer.send_event(EventData("second"))
        eventually(lambda: bodies == ["first", "second"])
    reader.join(10)
    assert not reader.is_alive()


def test_a_status_applies_to_existing_links_and_to_new_ones(served: NamespaceProcess) -> None:
    options: dict[str, Any] = {"connection_verify": str(served.ca_file), "retry_total": 0}
    with (
        ServiceBusAdministrationClient.from_connection_string(served.admin_connection_string, **options) as admin,
        ServiceBusClient.from_connection_string(served.connection_string, retry_total=0) as client,
        client.get_queue_sender("status") as sender,
    ):
        sender.send_messages(ServiceBusMessage("x"))
        admin.update_queue(admin.get_queue("status"), status=EntityStatus.SEND_DISABLED)
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage("y"))
        with pytest.raises(MessagingEntityDisabledError):
            send(client, "status")
        assert receive(client, "status") == ["x"]
        admin.update_queue(admin.get_queue("status"), status=EntityStatus.RECEIVE_DISABLED)
        with pytest.raises(MessagingEntityDisabledError):
            receive(client, "status")
        send(client, "status", "z")
        admin.update_queue(admin.get_queue("status"), status=EntityStatus.ACTIVE)
        assert receive(client, "status") == ["z"]
