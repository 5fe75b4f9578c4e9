"""Queue Storage as an end of the conformance suite: one Azurite, with new queues for each scenario."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any

from azure.core.exceptions import AzureError, ResourceNotFoundError
from azure.storage.queue import QueueClient

from harness.server.azurite_server import AzuriteServer
from isthmus.amqp import section
from isthmus.connectors.queuestorage.mapping import to_message, to_text
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.proxy import Proxy

__all__ = ["QueueStorageEnd"]

VISIBILITY_SECONDS = 6
# In base64 as an envelope more than a queue takes; Service Bus takes it.
TOO_LARGE = 60_000
# What was read to look at it comes again after so long.
LOOK_SECONDS = 15
# A queue is looked at so often at most: each look is a request.
PAUSE_SECONDS = 0.2


class QueueStorageEnd:
    """Azurite. Its queues promise no order, so that each message is a lane of its own.

    Args:
        server: which runs.
    """

    kind = "queuestorage"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.LOCKS, Ability.RESTARTS})
    target_abilities = frozenset({Ability.LIMITS_SIZE, Ability.RESTARTS})
    too_large = TOO_LARGE
    lanes = 1 << 30
    lock_seconds = float(VISIBILITY_SECONDS)
    wait_seconds = 300.0  # each message takes several requests

    def __init__(self, server: AzuriteServer) -> None:
        self._server = server
        self._clients: dict[str, QueueClient] = {}
        self._found: dict[str, dict[str, tuple[str, str]]] = {}
        self._look_at: dict[str, float] = {}
        self._numbers = 0

    def _client(self, name: str) -> QueueClient:
        made = self._clients.get(name)
        if made is None:
            made = self._clients[name] = QueueClient.from_connection_string(self._server.connection_string, name)
        return made

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a queue."""
        name = _name(entity)
        self._client(name).create_queue()
        options = {"entity": name}
        if side == "source":
            lock = max(VISIBILITY_SECONDS, round(settings.get("lock_seconds", 0)))
            options |= {"visibility_seconds": str(lock), "max_dequeue_count": "1000", "poll_seconds": "0.2"}
            options |= {"in_flight": "64", "settling": "4"}
        return options

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before Azurite."""
        port = self._server.ports["queue"]
        made = Proxy(port)
        self._numbers += 1
        name = f"QUEUE_CONFORMANCE_{os.getpid()}_{id(self)}_{self._numbers}"
        os.environ[name] = self._server.connection_string.replace(f":{port}/", f":{made.port}/")
        return made, {"connection": f"env:{name}"}

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Puts messages, in order."""
        client = self._client(_name(entity))
        for key in keys:
            client.send_message(to_text(message(key, body), "envelope", "base64"), time_to_live=-1)

    def arrived(self, entity: str) -> Sequence[str]:
        """What is in the queue; it is read for that, and noted."""
        return [key for key, _ in self._look(_name(entity))]

    def left(self, entity: str) -> int:
        """What is in it, invisible messages included."""
        return int(self._client(_name(entity)).get_queue_properties().approximate_message_count or 0)

    def dead(self, entity: str) -> dict[str, str]:
        """Its poison queue."""
        try:
            return dict(self._look(f"{_name(entity)}-poison"))
        except ResourceNotFoundError:
            return {}

    def refuse(self, entity: str, refuses: bool) -> None:
        """An account has no such state."""
        raise NotImplementedError("waived: Ability.REFUSES")

    def restart(self) -> None:
        """Kills Azurite, and starts it again."""
        self._server.restart()

    def release(self, entity: str) -> None:
        """Closes the clients that looked at a queue."""
        for name in (_name(entity), f"{_name(entity)}-poison"):
            client = self._clients.pop(name, None)
            if client is not None:
                client.close()

    def _look(self, name: str) -> list[tuple[str, str]]:
        """Keys and reasons of what a queue holds. Messages are read, and come again: an answer that is lost loses none."""
        found = self._found.setdefault(name, {})
        if time.monotonic() < self._look_at.get(name, 0.0):
            return list(found.values())
        self._look_at[name] = time.monotonic() + PAUSE_SECONDS
        try:
            while page := next(
                self._client(name).receive_messages(messages_per_page=32, visibility_timeout=LOOK_SECONDS).by_page(), ()
            ):
                for each in page:
                    read = to_message(
                        each.content, "base64", name=each.id, message_id=each.id, enqueued_ms=0, expires_ms=0
                    )
                    reason = section.decode_map(read, section.locate(read).application_properties).get(
                        "DeadLetterReason"
                    )
                    found.setdefault(each.id, (key_of(read), str(reason or "")))
        except ResourceNotFoundError:
            raise
        except AzureError:  # Azurite was restarted; it is looked again
            pass
        return list(found.values())

    def close(self) -> None:
        """Closes all clients."""
        for client in self._clients.values():
            client.close()


def _name(entity: str) -> str:
    """The name of a queue: 3 to 63 lower-case letters, digits and hyphens."""
    return f"q-{sha1(entity.encode(), usedforsecurity=False).hexdigest()}"
