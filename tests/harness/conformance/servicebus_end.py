"""Service Bus as an end of the conformance suite: namespaces of their own processes, with a clock that is right or wrong."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

from azure.core.pipeline.transport import RequestsTransport
from azure.servicebus.management import ServiceBusAdministrationClient

from isthmus.amqp import section
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.errors import IsthmusError
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.namespace import NamespaceProcess
from isthmus.testing.proxy import Proxy
from isthmus.transport import Management, Sender

__all__ = ["ServiceBusEnd"]

CONFIG = "limits: {min_lock_duration: 1s}\n"
LOCK_SECONDS = 2.0
# What was in transit when a connection was lost comes again after so long.
DEFAULT_LOCK_SECONDS = 5.0
PAGE = 250
ATTEMPTS = 3
# Of the entity; the default of a namespace is 1 MiB.
LARGE_KILOBYTES = 4096


class ServiceBusEnd:
    """Namespaces by how wrong their clock is.

    Args:
        folder: of their data.
    """

    kind = "servicebus"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.LOCKS, Ability.SKEWS, Ability.RESTARTS})
    target_abilities = frozenset({Ability.DEDUPLICATES, Ability.LIMITS_SIZE, Ability.REFUSES, Ability.RESTARTS})
    too_large = 1_100_000
    lanes = 1
    lock_seconds = LOCK_SECONDS
    wait_seconds = 40.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._namespaces: dict[int, NamespaceProcess] = {}
        self._places: dict[str, NamespaceProcess] = {}
        self._looks: dict[str, _Look] = {}
        self._lock = threading.Lock()
        self._number = 0
        self.server(0)

    def server(self, skew_seconds: int) -> NamespaceProcess:
        """The namespace whose clock is so far ahead."""
        with self._lock:
            made = self._namespaces.get(skew_seconds)
            if made is None:
                data = self._folder / f"skew{skew_seconds}"
                data.mkdir()
                (data / "config.yaml").write_text(CONFIG)
                arguments = ("--clock-offset", str(skew_seconds)) if skew_seconds else ()
                made = NamespaceProcess(data, config=data / "config.yaml", arguments=arguments)
                made.start()
                self._namespaces[skew_seconds] = made
        return made

    def _admin(self, server: NamespaceProcess) -> ServiceBusAdministrationClient:
        # Scenarios ask in threads, and pytest writes each test's name into the environment meanwhile: it must not be read.
        transport = RequestsTransport(connection_verify=str(server.ca_file), use_env_settings=False)
        return ServiceBusAdministrationClient.from_connection_string(
            server.admin_connection_string, transport=transport
        )

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a queue."""
        server = self.server(settings.get("skew_seconds", 0))
        wanted: dict[str, Any] = {"max_delivery_count": 1000}
        if side == "source":
            lock = min(max(float(settings.get("lock_seconds", DEFAULT_LOCK_SECONDS)), LOCK_SECONDS), 300.0)
            wanted["lock_duration"] = timedelta(seconds=lock)
        if settings.get("takes_large"):
            wanted["max_message_size_in_kilobytes"] = LARGE_KILOBYTES
        if settings.get("detects_duplicates"):
            wanted["requires_duplicate_detection"] = True
        with self._admin(server) as admin:
            admin.create_queue(entity, **wanted)
        self._places[entity] = server
        self._looks[entity] = _Look(server, entity)
        options = {"entity": entity, "connection": "env:NONE"}
        return options | ({"lock_seconds": f"{lock:g}"} if side == "source" else {})

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before its namespace."""
        server = self._places[entity]
        made = Proxy(server.ports["amqp"])
        with self._lock:
            self._number += 1
            name = f"CONFORMANCE_{os.getpid()}_{id(self)}_{self._number}"
        os.environ[name] = server.connection_string.replace(f":{server.ports['amqp']}", f":{made.port}")
        return made, {"connection": f"env:{name}"}

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Sends messages."""
        with _client(self._places[entity], entity) as client:
            Sender(client, entity).wait_ready().send_all([message(key, body, ttl_ms=ttl_ms) for key in keys])

    def arrived(self, entity: str) -> Sequence[str]:
        """What is in the queue."""
        return self._looks[entity].keys()

    def left(self, entity: str) -> int:
        """How many of the first messages are there, locked ones included."""
        return len(self._looks[entity].peek("", 0))

    def dead(self, entity: str) -> dict[str, str]:
        """Its dead-letter queue."""
        found = {}
        for each in self._looks[entity].peek("/$deadletterqueue", 0):
            properties = section.decode_map(each, section.locate(each).application_properties)
            found[key_of(each)] = str(properties.get("DeadLetterReason", ""))
        return found

    def refuse(self, entity: str, refuses: bool) -> None:
        """Disables sending."""
        with self._admin(self._places[entity]) as admin:
            queue = admin.get_queue(entity)
            queue.status = "SendDisabled" if refuses else "Active"
            admin.update_queue(queue)

    def restart(self) -> None:
        """Kills the namespace whose clock is right, and starts it again."""
        server = self.server(0)
        server.kill()
        server.start()

    def release(self, entity: str) -> None:
        """Closes the connections that looked at a queue."""
        look = self._looks.pop(entity, None)
        if look is not None:
            look.close()

    def close(self) -> None:
        """Ends all."""
        for look in self._looks.values():
            look.close()
        for server in self._namespaces.values():
            server.kill()


def _client(server: NamespaceProcess, path: str) -> Any:
    return open_client(endpoint_of_string(ConnectionString.parse(server.connection_string)), path, "conformance")


class _Look:
    """Peeks at a queue, over a connection that is kept."""

    def __init__(self, server: NamespaceProcess, entity: str) -> None:
        self._server, self._entity = server, entity
        self._lock = threading.Lock()
        self._open: dict[str, tuple[Any, Management]] = {}
        self._keys: list[str] = []
        self._next = 0

    def keys(self) -> list[str]:
        """Of all messages that have arrived."""
        with self._lock:
            while page := self._peek("", self._next):
                self._keys += map(key_of, page)
                annotations = section.decode_map(page[-1], section.locate(page[-1]).message_annotations)
                self._next = annotations["x-opt-sequence-number"] + 1
            return list(self._keys)

    def peek(self, below: str, start: int) -> list[bytes]:
        """A page of messages."""
        with self._lock:
            return self._peek(below, start)

    def _peek(self, below: str, start: int) -> list[bytes]:
        path = self._entity + below
        for attempt in range(1, ATTEMPTS + 1):
            try:
                if below not in self._open:
                    client = _client(self._server, path)
                    with ExitStack() as stack:
                        stack.callback(client.abandon)
                        self._open[below] = client, Management(client, path)
                        stack.pop_all()
                return self._open[below][1].peek(start, PAGE)
            except (IsthmusError, OSError):  # the namespace was restarted
                self._drop(below)
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    def _drop(self, below: str) -> None:
        client, _ = self._open.pop(below, (None, None))
        if client is not None:
            client.abandon()

    def close(self) -> None:
        for below in tuple(self._open):
            self._drop(below)
