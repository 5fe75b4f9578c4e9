"""What the tests share that kill the stores of partitioned entities or make them fail: six fragments over three stores."""

from __future__ import annotations

import time

from azure.servicebus import ServiceBusClient, ServiceBusReceiver

from isthmus.entities.fragment.message_key import place
from isthmus.testing.namespace import NamespaceProcess

LIMITS = "limits: {partitions_per_entity: 6, partition_stores: 3}"


def client_of(served: NamespaceProcess) -> ServiceBusClient:
    """A client that tries nothing twice."""
    return ServiceBusClient.from_connection_string(served.connection_string, retry_total=0)


def complete_all(receiver: ServiceBusReceiver, count: int) -> list[str]:
    """The bodies of so many messages, and of whatever comes within a second after them; each is completed."""
    seen: list[str] = []
    limit = time.monotonic() + 30
    while (messages := receiver.receive_messages(max_message_count=20, max_wait_time=1)) or len(seen) < count:
        assert messages or time.monotonic() < limit, f"only {seen} came"
        for message in messages:
            receiver.complete_message(message)
            seen.append(str(message))
    return seen


def key_of(store: int) -> str:
    """A partition key whose fragment is in a store."""
    return next(f"k{number}" for number in range(100) if place(f"k{number}", 6) % 3 == store)
