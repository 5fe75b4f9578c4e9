"""The applications of an example: publishers and receivers.

What it is: sending by isthmus's own client, each message acknowledged before it counts, and a thread that receives from one
entity, completes most messages and dead-letters some. What it is not: part of the federation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice

from isthmus.amqp.performative import Accepted, Error, Rejected
from isthmus.amqp.types import Symbol
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.demo.consumer import stamp
from isthmus.demo.example.script import Work
from isthmus.errors import IsthmusError
from isthmus.operations.copy_target import CopyTarget, Kept, TargetGoneError
from isthmus.replication.namespace_clients import NamespaceClients, namespace_options
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.planning.plain_planner import wanted_plain
from isthmus.transport import Receiver, Sender

__all__ = ["Worker", "publish"]

CHUNK_MESSAGES = 1000
BATCH_MESSAGES = 100
WINDOW_MESSAGES = 200
RETRY_SECONDS = 0.5
_NOWHERE = End("none", "application", {})
_DEAD_LETTER = "com.microsoft:dead-letter"


def publish(federation: Federation, to: Endpoint, messages: Iterable[bytes]) -> Iterator[bytes]:
    """Send messages to an entity of any kind; yields each once the system has acknowledged it.

    Raises:
        IsthmusError: the system refuses, or is away.
    """
    source = iter(messages)
    if not federation.namespaces[to.alias].is_service_bus:
        with CopyTarget(RouteSpec(name="application", source=_NOWHERE, target=_end(federation, to)), "") as target:
            while chunk := list(islice(source, CHUNK_MESSAGES)):
                for verdict in target.send(chunk, lambda: None):
                    if isinstance(verdict, Kept):
                        raise TargetGoneError(f"{to}: {verdict.text}")
                yield from chunk
        return
    with NamespaceClients(federation, "application") as clients, clients.open(to) as client:
        sender = Sender(client, to.entity).wait_ready()
        while chunk := list(islice(source, CHUNK_MESSAGES)):
            sender.send_all(chunk, batch=BATCH_MESSAGES)
            yield from chunk


def _end(federation: Federation, to: Endpoint) -> End:
    """An entity of another kind, for sending without the additions of a route."""
    namespace = federation.namespaces[to.alias]
    if namespace.is_log:
        entity = {"topic": to.entity}
    else:
        is_topic = any(each.is_topic and each.name == to.entity for each in wanted_plain(federation).get(to.alias, ()))
        entity = {"entity": to.entity, "entity_type": "topic" if is_topic else "queue"}
    return End(namespace.kind, to.alias, namespace_options(namespace) | entity)


class Worker:
    """Receives from one entity until it is closed.

    Args:
        federation: with absolute paths.
        work: what to do.

    Attributes:
        completed: how many messages it completed.
        failed: how many it dead-lettered.
    """

    def __init__(self, federation: Federation, work: Work) -> None:
        self.completed = 0
        self.failed = 0
        self._federation = federation
        self._work = work
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"work-{work.at}", daemon=True)

    def start(self) -> Worker:
        """Begins to receive."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Ends; unsettled messages are released."""
        self._stop.set()
        self._thread.join(30.0)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._receive()
            except (IsthmusError, OSError):
                self._stop.wait(RETRY_SECONDS)

    def _receive(self) -> None:
        at = self._work.at
        rejected = Rejected(Error(Symbol(_DEAD_LETTER), info={Symbol("DeadLetterReason"): self._work.reason}))
        with NamespaceClients(self._federation, "application") as clients, clients.open(at) as client:
            receiver = Receiver(client, at.entity).wait_attached()
            while not self._stop.is_set() and client.error is None:
                if receiver.credit < WINDOW_MESSAGES // 2:
                    receiver.grant(WINDOW_MESSAGES)
                client.flush()
                client.service()
                taken = receiver.take()
                for run in taken:
                    for index, payload in enumerate(run.payloads):
                        fails = self._fails(bytes(payload))
                        self.failed += fails
                        self.completed += not fails
                        receiver.dispose(run.first_id + index, run.first_id + index, rejected if fails else Accepted())
                client.flush()
                if not taken:
                    time.sleep(0.02)

    def _fails(self, message: bytes) -> bool:
        return bool(self._work.fail_every) and stamp(message)[1] % self._work.fail_every == 0
