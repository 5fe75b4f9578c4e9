"""Event Hubs as an end of the conformance suite: namespaces of isthmus in processes of their own, with new event hubs for each scenario."""

from __future__ import annotations

import itertools
import os
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.amqp import section
from isthmus.connectors.checkpoint.checkpoint import GroupKey
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.hub_query import HubQuery
from isthmus.connectors.eventhubs.partition.link import PartitionLink
from isthmus.connectors.kafka.mapping.record import DEAD_LETTER_REASON
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.errors import IsthmusError
from isthmus.testing.bridge.message import key_of, message, number_of
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.namespace import NamespaceProcess
from isthmus.testing.proxy import Proxy
from isthmus.transport import Sender, SharedKeyCredential

__all__ = ["EventHubsEnd", "administer", "hub_description"]

LANES = 2
LARGE_BYTES = 4 << 20
GROUP = "$Default"
ATTEMPTS = 3
_SCHEMA = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"


def administer(served: NamespaceProcess, method: str, path: str, inside: str, kind: str, **headers: str) -> int:
    """A request to the REST API for event hubs, which no SDK wraps any more; its status."""
    body = (
        f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{kind} xmlns="{_SCHEMA}">'
        f"{inside}</{kind}></content></entry>"
    )
    parsed = ConnectionString.parse(served.connection_string)
    assert parsed.key is not None
    root = f"http://127.0.0.1:{served.ports['http']}/"
    token = SharedKeyCredential(parsed.key_name, parsed.key.reveal()).token(root, time.time())
    request = urllib.request.Request(f"{root}{path}?api-version=2014-01", body.encode(), method=method)
    request.add_header("Authorization", token.text)
    for name, value in headers.items():
        request.add_header(name.replace("_", "-"), value)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as reply:
        return int(reply.status)


def hub_description(partitions: int, status: str = "Active") -> str:
    """The elements of `EventHubDescription`."""
    return (
        f"<MessageRetentionInDays>1</MessageRetentionInDays><Status>{status}</Status>"
        f"<PartitionCount>{partitions}</PartitionCount>"
    )


class EventHubsEnd:
    """Namespaces by whether they take large events.

    Args:
        folder: of their data, and of checkpoints.
    """

    kind = "eventhubs"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.RESTARTS})
    target_abilities = frozenset({Ability.LIMITS_SIZE, Ability.REFUSES, Ability.RESTARTS})
    too_large = 1_100_000
    lanes = LANES
    lock_seconds = 0.0
    wait_seconds = 40.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._namespaces: dict[bool, NamespaceProcess] = {}
        self._places: dict[str, NamespaceProcess] = {}
        self._lanes: dict[str, int] = {}
        self._looks: dict[str, _Look] = {}
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self.server(False)

    def server(self, takes_large: bool) -> NamespaceProcess:
        """The namespace whose greatest event is of that size."""
        with self._lock:
            made = self._namespaces.get(takes_large)
            if made is None:
                data = self._folder / ("large" if takes_large else "usual")
                data.mkdir()
                limits = f"limits: {{max_message_size_bytes: {LARGE_BYTES}}}\n" if takes_large else "{}\n"
                (data / "config.yaml").write_text(limits)
                made = NamespaceProcess(data, config=data / "config.yaml")
                made.start()
                self._namespaces[takes_large] = made
        return made

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes an event hub, and for a source one for its dead letters."""
        server = self.server(bool(settings.get("takes_large")))
        lanes = settings["lanes"]
        administer(server, "PUT", entity, hub_description(lanes), "EventHubDescription")
        self._places[entity], self._lanes[entity] = server, lanes
        options = {"topic": entity, "connection": "env:NONE"}
        dead = ""
        if side == "source":
            dead = f"{entity}.dead"
            administer(server, "PUT", dead, hub_description(1), "EventHubDescription")
            checkpoints = self._folder / "checkpoints"
            options |= {"checkpoints": str(checkpoints), "dead_letter_topic": dead, "checkpoint_seconds": "0.1"}
        self._looks[entity] = _Look(server, entity, dead, FolderStore(str(self._folder / "checkpoints")))
        return options

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before its namespace."""
        server = self._places[entity]
        made = Proxy(server.ports["amqp"])
        name = f"CONFORMANCE_HUBS_{os.getpid()}_{next(self._numbers)}"
        os.environ[name] = server.connection_string.replace(f":{server.ports['amqp']}", f":{made.port}")
        return made, {"connection": f"env:{name}"}

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Sends events, to the partition of each key's lane."""
        with _client(self._places[entity], entity) as client:
            for lane in range(self._lanes[entity]):
                mine = [message(key, body) for key in keys if number_of(key) % self._lanes[entity] == lane]
                if mine:
                    Sender(client, f"{entity}/Partitions/{lane}").wait_ready().send_all(mine)

    def arrived(self, entity: str) -> Sequence[str]:
        """What is in the event hub."""
        return [key for key, _ in self._looks[entity].events()]

    def left(self, entity: str) -> int:
        """What comes after the checkpoints."""
        return self._looks[entity].left()

    def dead(self, entity: str) -> dict[str, str]:
        """What is in its event hub for dead letters."""
        return dict(self._looks[entity].dead())

    def refuse(self, entity: str, refuses: bool) -> None:
        """Disables sending."""
        inside = hub_description(self._lanes[entity], "SendDisabled" if refuses else "Active")
        administer(self._places[entity], "PUT", entity, inside, "EventHubDescription", If_Match="*")

    def restart(self) -> None:
        """Kills the usual namespace, and starts it again."""
        server = self.server(False)
        server.kill()
        server.start()

    def release(self, entity: str) -> None:
        """Closes the connections that looked at an event hub."""
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
    """Reads an event hub from its beginning, and asks how far its reader is."""

    def __init__(self, server: NamespaceProcess, hub: str, dead: str, store: FolderStore) -> None:
        self._server, self._hub, self._dead, self._store = server, hub, dead, store
        self._lock = threading.Lock()
        self._readers: dict[str, _HubReader] = {}

    def events(self) -> list[tuple[str, str]]:
        """Keys and reasons of what is there."""
        return self._read(self._hub)

    def dead(self) -> list[tuple[str, str]]:
        """The same of its dead letters."""
        return self._read(self._dead) if self._dead else []

    def left(self) -> int:
        """Events that no checkpoint covers."""
        with self._lock:
            reader = self._reader(self._hub)
            try:
                lasts = reader.lasts()
            except IsthmusError:  # the namespace was restarted
                self._readers.pop(self._hub).close()
                return 1
            key = GroupKey(reader.client.namespace_id, reader.client.endpoint.host, self._hub, GROUP)
            kept = self._store.load(key)
        return sum(last - (kept[number].sequence if number in kept else -1) for number, last in lasts.items())

    def _read(self, hub: str) -> list[tuple[str, str]]:
        with self._lock:
            for attempt in range(ATTEMPTS):
                try:
                    return self._reader(hub).read()
                except IsthmusError:  # the namespace was restarted
                    broken = self._readers.pop(hub, None)
                    if broken is not None:
                        broken.close()
                    if attempt == ATTEMPTS - 1:
                        raise
            raise AssertionError

    def _reader(self, hub: str) -> _HubReader:
        if hub not in self._readers:
            self._readers[hub] = _HubReader(self._server, hub)
        return self._readers[hub]

    def close(self) -> None:
        """Ends it."""
        for reader in self._readers.values():
            reader.close()


class _HubReader:
    """A connection that reads a hub."""

    def __init__(self, server: NamespaceProcess, hub: str) -> None:
        self._hub = hub
        self.client = _client(server, hub)
        self._links: dict[int, PartitionLink] = {}
        self._found: dict[int, list[tuple[str, str]]] = {}

    def lasts(self) -> dict[int, int]:
        """The last sequence number of each partition."""
        look = HubQuery(self.client, self._hub, lambda: None)
        try:
            while not look.is_done:
                look.advance()
                if not look.is_done:
                    self.client.wait(1.0)
                if self.client.error is not None:
                    raise self.client.error
            if look.error is not None:
                raise look.error
            return {number: view.last for number, view in look.views.items()}
        finally:
            look.close()

    def read(self) -> list[tuple[str, str]]:
        """Keys and reasons of what is there, partition by partition."""
        for number, last in self.lasts().items():
            link = self._links.get(number)
            if link is None:
                link = PartitionLink(self.client, self._hub, GROUP, number, Begin(), -1, lambda: None)
                self._links[number], self._found[number] = link, []
            found = self._found[number]
            while len(found) <= last:
                if link.error is not None:
                    raise link.error
                if self.client.error is not None:
                    raise self.client.error
                link.grant(1000)
                self.client.wait(1.0)
                found += map(_reported, link.take())
        return [each for found in self._found.values() for each in found]

    def close(self) -> None:
        """Ends it."""
        self.client.close()


def _reported(event: bytes) -> tuple[str, str]:
    properties = section.decode_map(event, section.locate(event).application_properties)
    return key_of(event), str(properties.get(DEAD_LETTER_REASON, ""))
