"""ActiveMQ Artemis as an end of the conformance suite: one real broker, with new queues for each scenario."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from harness.server.artemis_broker import ArtemisBroker
from isthmus.amqp import section
from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Symbol
from isthmus.connectors.amqp.mapping import with_header
from isthmus.errors import IsthmusError
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.proxy import Proxy
from isthmus.transport import Client, LinkTerms, Receiver, Sender

__all__ = ["ArtemisEnd", "Browser"]

LIMIT_BYTES = 100_000
PAGE = 1000
ATTEMPTS = 3
SECONDS = 20.0


class ArtemisEnd:
    """A broker.

    Args:
        broker: which runs.
    """

    kind = "amqp"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.RESTARTS})
    target_abilities = frozenset({Ability.DEDUPLICATES, Ability.LIMITS_SIZE, Ability.REFUSES, Ability.RESTARTS})
    too_large = 2 * LIMIT_BYTES
    lanes = 1
    lock_seconds = 0.0
    wait_seconds = 40.0

    def __init__(self, broker: ArtemisBroker) -> None:
        self._broker = broker
        self._browsers: dict[str, Browser] = {}

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a queue."""
        self._broker.create_queue(entity)
        options = {"url": "amqp://none", "entity": entity, "entity_type": "queue"}
        if side == "source":
            self._broker.create_queue(f"{entity}.dead")
            return options | {"dead_letters": f"{entity}.dead"}
        if settings.get("limits_size"):
            options["max_message_bytes"] = str(LIMIT_BYTES)
        return options | {"duplicates": "message-id" if settings.get("detects_duplicates") else "allow"}

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before the broker."""
        made = Proxy(self._broker.port)
        return made, {"url": f"amqp://127.0.0.1:{made.port}"}

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Sends durable messages."""
        with self._broker.client() as client:
            terms = LinkTerms(target=Target(entity, capabilities=[Symbol("queue")]))
            sender = Sender(client, entity, terms=terms).wait_ready()
            sender.send_all([with_header(message(key, body, ttl_ms=ttl_ms), durable=True) for key in keys])

    def arrived(self, entity: str) -> Sequence[str]:
        """What is in the queue."""
        return [key for key, _ in self._browser(entity).messages()]

    def left(self, entity: str) -> int:
        """What the queue contains, or a consumer has received and not settled."""
        return self._broker.count(entity)

    def dead(self, entity: str) -> dict[str, str]:
        """What is in the queue of its dead letters."""
        return dict(self._browser(f"{entity}.dead").messages())

    def refuse(self, entity: str, refuses: bool) -> None:
        """Blocks the address: no sender gets credit for it."""
        self._broker.call(f"address.{entity}", "block" if refuses else "unblock")

    def restart(self) -> None:
        """Kills the broker, and starts it again."""
        self._broker.stop(signal.SIGKILL)
        self._broker.start()

    def release(self, entity: str) -> None:
        """Closes the connections that looked at a queue."""
        for name in (entity, f"{entity}.dead"):
            browser = self._browsers.pop(name, None)
            if browser is not None:
                browser.close()

    def close(self) -> None:
        """Ends all but the broker."""
        for name in tuple(self._browsers):
            self.release(name)

    def _browser(self, entity: str) -> Browser:
        return self._browsers.setdefault(entity, Browser(self._broker, entity))


class Browser:
    """Reads a queue from its beginning without taking anything, over a connection that is kept."""

    def __init__(self, broker: ArtemisBroker, queue: str) -> None:
        self._broker, self._queue = broker, queue
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._receiver: Receiver | None = None
        self._found: list[tuple[str, str]] = []

    def messages(self) -> list[tuple[str, str]]:
        """Keys and reasons of what is there."""
        with self._lock:
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    self._read()
                    return list(self._found)
                except IsthmusError:  # the broker was restarted
                    self._drop()
                    if attempt == ATTEMPTS:
                        raise
        raise AssertionError

    def _read(self) -> None:
        if self._client is None or self._receiver is None:
            self._found = []
            self._client = self._broker.client()
            source = Source(self._queue, distribution_mode=Symbol("copy"), capabilities=[Symbol("queue")])
            self._receiver = Receiver(self._client, self._queue, terms=LinkTerms(source=source)).wait_attached()
        client, receiver = self._client, self._receiver
        limit = time.monotonic() + SECONDS
        # No drain: the broker does not answer one that follows another at once.
        while len(self._found) < self._broker.count(self._queue) and time.monotonic() < limit:
            receiver.grant(PAGE)
            client.wait(0.05)
            if receiver.error is not None or client.error is not None:
                raise receiver.error or client.error or AssertionError
            for run in receiver.take():
                receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
                self._found += [(key_of(each), _reason(each)) for each in run.payloads]

    def _drop(self) -> None:
        client, self._client, self._receiver = self._client, None, None
        if client is not None:
            client.abandon()

    def close(self) -> None:
        """Ends it."""
        with self._lock:
            self._drop()


def _reason(payload: bytes) -> str:
    properties = section.decode_map(payload, section.locate(payload).application_properties)
    return str(properties.get("DeadLetterReason", ""))
