"""An IoT hub for tests, written from the vendor's public contract; no emulator of the service exists.

What it is: the hub's AMQP endpoint in this process (`isthmus.testing.peer`), which redirects readers of device-to-cloud messages to an event hub
of a namespace, takes cloud-to-device messages, and gives feedback. Contract: Microsoft Learn, "Communicate with your IoT hub by using the AMQP
protocol", "Read device-to-cloud messages from the built-in endpoint" and "Send cloud-to-device messages from an IoT hub", as of November 2026.
What it is not: devices, their identities, quotas, or queues that expire.
"""

from __future__ import annotations

import json
from typing import Any

from isthmus.amqp import Error, section
from isthmus.amqp.types import Symbol, UInt
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.testing.namespace import NamespaceProcess
from isthmus.testing.peer import Peer

__all__ = ["IotHubServer"]

DEVICE_BOUND = "/messages/devicebound"
FEEDBACK = "/messages/serviceBound/feedback"


class IotHubServer(Peer):
    """The hub; a context manager.

    Args:
        events: the namespace that contains the device-to-cloud messages.
        hub: name of their event hub there.
    """

    def __init__(self, events: NamespaceProcess, hub: str) -> None:
        super().__init__(DEVICE_BOUND, FEEDBACK)
        port = events.ports["amqp"]
        self._events = events
        self.redirects["/messages/events"] = Error(
            Symbol("amqp:link:redirect"),
            "redirected",
            {
                Symbol("hostname"): "127.0.0.1",
                Symbol("network-host"): "127.0.0.1",
                Symbol("port"): UInt(port),
                Symbol("address"): f"amqp://127.0.0.1:{port}/{hub}/ConsumerGroups/$Default/Partitions/0",
            },
        )

    @property
    def connection_string(self) -> str:
        """As the portal shows it, with the policy that the namespace behind it has as well."""
        parsed = ConnectionString.parse(self._events.connection_string)
        assert parsed.key is not None
        return (
            f"HostName=127.0.0.1:{self.port};SharedAccessKeyName={parsed.key_name};SharedAccessKey={parsed.key.reveal()};"
            "UseDevelopmentEmulator=true"
        )

    def tokens(self) -> list[tuple[Any, ...]]:
        """The requests to `$cbs`."""
        with self.lock:
            return [each for each in self.requests if each[0] == "$cbs"]

    def sent(self) -> list[bytes]:
        """The messages to devices, in their order."""
        with self.lock:
            return list(self.queues[DEVICE_BOUND].messages.values())

    def give_feedback(self, message_id: str, device: str, status: str, description: str = "") -> int:
        """Gives feedback; its number."""
        record = {
            "originalMessageId": message_id,
            "deviceId": device,
            "statusCode": status,
            "description": description or status,
            "enqueuedTimeUtc": "2026-11-23T00:00:00Z",
        }
        made = section.encode_message(
            json.dumps([record]).encode(), properties={"content_type": "application/vnd.microsoft.iothub.feedback.json"}
        )
        with self.lock:
            return self.queues[FEEDBACK].put(made)
