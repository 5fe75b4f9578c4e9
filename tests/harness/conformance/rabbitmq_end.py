"""RabbitMQ as an end of the conformance suite: one real node, with new queues for each scenario."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from harness.client.rabbitmq_client import RabbitClient
from harness.server.rabbitmq_server import PASSWORD, USER, RabbitServer
from isthmus.connectors.rabbitmq.dead_letter import REASON_HEADER
from isthmus.connectors.rabbitmq.mapping.mapping import to_message
from isthmus.connectors.rabbitmq.mapping.outward import to_record
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import table
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.proxy import Proxy

__all__ = ["RabbitEnd"]

LIMIT_BYTES = 100_000
ATTEMPTS = 20
PASSWORD_NAME = "CONFORMANCE_RABBITMQ"
# Classic queues put what is given back into its former position, quorum queues do not; one scenario in two has the one or the other.
KINDS = ("classic", "quorum")
# A node of RabbitMQ 3.10 that is killed sooner does not bring back a quorum queue or a stream that was made: it stays without a leader.
DURABLE_SECONDS = 10.0


class RabbitEnd:
    """A node.

    Args:
        server: which runs.
    """

    kind = "rabbitmq"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.RESTARTS})
    target_abilities = frozenset({Ability.LIMITS_SIZE, Ability.REFUSES, Ability.RESTARTS})
    too_large = 2 * LIMIT_BYTES
    lanes = 1
    lock_seconds = 0.0
    wait_seconds = 40.0

    def __init__(self, server: RabbitServer) -> None:
        self._server = server
        self._looks: dict[str, _Look] = {}
        self._made = 0
        self._made_at = 0.0
        self._lock = threading.Lock()
        os.environ[PASSWORD_NAME] = PASSWORD

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a queue, and for a source one for its dead letters."""
        with self._lock:
            self._made += 1
            kind = KINDS[self._made // 2 % len(KINDS)]
        self._server.queue(entity, kind)
        self._made_at = time.monotonic()
        options = {"entity": entity, "host": "none:1", "username": USER, "password": f"env:{PASSWORD_NAME}"}
        if side == "source":
            options |= {"dead_letters": self._server.queue(f"{entity}.dead")}
        elif settings.get("limits_size"):
            options |= {"max_message_bytes": str(LIMIT_BYTES)}
        self._looks[entity] = _Look(self._server, entity)
        return options

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before the node."""
        made = Proxy(self._server.port)
        return made, {"host": f"127.0.0.1:{made.port}"}

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Publishes messages, with confirms."""
        with RabbitClient(self._server.port) as client:
            client.publish([to_record(message(key, body))._replace(routing_key=entity) for key in keys])

    def arrived(self, entity: str) -> Sequence[str]:
        """What came to the queue: it is consumed, and kept here."""
        return [key for key, _ in self._looks[entity].messages()]

    def left(self, entity: str) -> int:
        """What the queue has, unacknowledged messages included."""
        found = self._server.messages(entity)
        return found if found >= 0 else 1

    def dead(self, entity: str) -> dict[str, str]:
        """What its dead-letter queue has."""
        look = self._looks.setdefault(f"{entity}.dead", _Look(self._server, f"{entity}.dead"))
        return dict(look.messages())

    def refuse(self, entity: str, refuses: bool) -> None:
        """A policy that lets the queue take nothing."""
        name = quote(entity, "")
        if refuses:
            self._looks[entity].stop()
            definition = {"max-length": max(self._server.messages(entity), 0), "overflow": "reject-publish"}
            body = {"pattern": f"^{entity}$".replace(".", "\\."), "definition": definition, "apply-to": "queues"}
            self._server.call("PUT", f"policies/%2F/{name}", body)
        else:
            self._server.call("DELETE", f"policies/%2F/{name}")
            self._looks[entity].go_on()

    def restart(self) -> None:
        """Kills the node once its queues are durable, and starts it again."""
        time.sleep(max(0.0, self._made_at + DURABLE_SECONDS - time.monotonic()))
        self._server.stop(signal.SIGKILL)
        self._server.start()

    def release(self, entity: str) -> None:
        """Closes the connection that looked at a queue."""
        for name in (entity, f"{entity}.dead"):
            look = self._looks.pop(name, None)
            if look is not None:
                look.close()

    def close(self) -> None:
        """Ends all but the node."""
        for look in list(self._looks.values()):
            look.close()


class _Look:
    """Consumes a queue, and keeps what came; over a connection that is made again."""

    def __init__(self, server: RabbitServer, queue: str) -> None:
        self._server, self._queue = server, queue
        self._lock = threading.Lock()
        self._client: RabbitClient | None = None
        self._found: list[tuple[str, str]] = []
        self._is_stopped = False

    def messages(self) -> list[tuple[str, str]]:
        """Keys and reasons of what came."""
        with self._lock:
            for _ in range(ATTEMPTS if not self._is_stopped else 0):
                with suppress(OSError, EOFError):  # the node was restarted
                    self._read()
                    break
                time.sleep(0.1)
            return list(self._found)

    def _read(self) -> None:
        try:
            if self._client is None:
                self._client = RabbitClient(self._server.port)
            for record in self._client.take(self._queue):
                self._found.append((key_of(to_message(record)), _reason(record)))
        except (OSError, EOFError):
            self._drop()
            raise

    def stop(self) -> None:
        """Takes nothing for a while."""
        with self._lock:
            self._is_stopped = True
            self._drop()

    def go_on(self) -> None:
        """Takes again what comes."""
        with self._lock:
            self._is_stopped = False

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def close(self) -> None:
        """Ends it."""
        with self._lock:
            self._is_stopped = True
            self._drop()


def _reason(record: Record) -> str:
    for name, kind, raw in props.read(record.properties).headers:
        if name == REASON_HEADER:
            return str(table.value_of(kind, raw))
    return ""
