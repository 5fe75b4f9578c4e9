"""The publishers of the fault matrix, and what they know: which messages a namespace has acknowledged.

Each entity has a thread that sends to it, so that messages of every scenario are under way at the same time. A message is expected at its
targets once it was acknowledged; one without an answer may be there or not.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from harness.matrix.matrix_log import LogServer
from harness.matrix.matrix_scenario import LOGS, Scenario
from isthmus.amqp import section
from isthmus.demo.example.stamped import Stamped
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.testing.federation import FederationProcess
from isthmus.topology.model import Endpoint
from isthmus.transport import Sender

__all__ = ["Traffic"]

CHUNK, BURST = 10, 25
PAUSE_SECONDS, BURST_PAUSE_SECONDS = 1.0, 0.2
RETRY_SECONDS = 0.5
PADDING = "x" * 200
INVALID_EVERY = 50


class Traffic:
    """Publishers to all scenarios.

    Args:
        federation: where they send.
        scenarios: what they send to.
        logs: the systems of streams that they need, by alias.

    Attributes:
        acknowledged: messages by task.
        invalid: those of them that steps have to set aside, by task.
    """

    def __init__(
        self, federation: FederationProcess, scenarios: Sequence[Scenario], logs: Mapping[str, LogServer]
    ) -> None:
        self.acknowledged: Counter[str] = Counter()
        self.invalid: Counter[str] = Counter()
        self._federation = federation
        self._scenarios = scenarios
        self._sent: Counter[Endpoint] = Counter()
        self._logs = logs
        self._ledgers = {each.task: Stamped(each.ledger_flows(federation.federation), logs=LOGS) for each in scenarios}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._bursting = threading.Event()

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Publish until the block ends; whatever was begun is answered then."""
        self._over.clear()
        threads = [
            threading.Thread(target=self._run, args=(scenario, source), daemon=True)
            for scenario in self._scenarios
            for source in scenario.sources
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join(120.0)
                assert not thread.is_alive(), "a publisher hangs"

    @contextmanager
    def bursting(self) -> Iterator[None]:
        """Publish more until the block ends, so that something is under way at every moment."""
        self._bursting.set()
        try:
            yield
        finally:
            self._bursting.clear()

    def judge(self, scenario: Scenario) -> Counter[str]:
        """What is at the targets by the publishers' own numbers.

        Raises:
            IsthmusError: a target cannot be read.
        """
        found: Counter[str] = Counter()
        with NamespaceClients(self._federation.federation) as clients:
            for each in self._ledgers[scenario.task].judge(clients.peek, 0):
                found.update({kind: each.counts[kind] for kind in ("lost", "duplicated", "out_of_order")})
        return found

    def _run(self, scenario: Scenario, source: Endpoint) -> None:
        while not self._over.is_set():
            try:
                with self._open(source) as send:
                    while not self._over.is_set():
                        names, messages, first = self._next(scenario, source)
                        send(messages)
                        self._note(scenario, source, names, messages, first)
                        self._wait()
            except (IsthmusError, OSError, EOFError):
                self._over.wait(RETRY_SECONDS)

    def _open(self, source: Endpoint) -> AbstractContextManager[Callable[[Sequence[bytes]], object]]:
        """What sends messages to an entity, and returns once they are acknowledged."""
        log = self._logs.get(source.alias)
        return self._sender(source) if log is None else log.sender(source.entity)

    @contextmanager
    def _sender(self, source: Endpoint) -> Iterator[Callable[[Sequence[bytes]], object]]:
        with NamespaceClients(self._federation.federation) as clients, clients.open(source) as client:
            sender = Sender(client, source.entity).wait_ready()
            yield lambda messages: sender.send_all(messages, batch=len(messages))

    def _wait(self) -> None:
        """A pause, which a burst cuts short."""
        began = time.monotonic()
        while time.monotonic() < began + (BURST_PAUSE_SECONDS if self._bursting.is_set() else PAUSE_SECONDS):
            if self._over.wait(0.05):
                return

    def _next(self, scenario: Scenario, source: Endpoint) -> tuple[list[str], list[bytes], int]:
        """The next messages of an entity, with their publishers, and the number of the first."""
        count = BURST if self._bursting.is_set() else CHUNK
        first = self._sent[source] + 1
        # By this thread alone; a number is never sent again, whatever becomes of its message.
        self._sent[source] += count
        names = [_publisher(source.alias, number, scenario.sessions) for number in range(first, first + count)]
        return names, [_message(name, number, scenario.sessions) for number, name in enumerate(names, first)], first

    def _note(
        self, scenario: Scenario, source: Endpoint, names: Sequence[str], messages: Sequence[bytes], first: int
    ) -> None:
        """The messages were acknowledged."""
        with self._lock:
            for number, (name, message) in enumerate(zip(names, messages, strict=True), first):
                self._ledgers[scenario.task].publish(source, name, number, message)
                self.invalid[scenario.task] += scenario.has_invalid and not number % INVALID_EVERY
            self.acknowledged[scenario.task] += len(messages)


def _publisher(alias: str, number: int, sessions: int) -> str:
    """Within what the message has its order: all that are sent to an entity, or those of its session."""
    return f"{alias}-s{number % sessions}" if sessions else alias


def _message(publisher: str, number: int, sessions: int) -> bytes:
    is_valid = bool(number % INVALID_EVERY)
    body = {"number": number, "padding": PADDING} | ({"dest": "IAH"} if is_valid else {})
    return section.encode_message(
        json.dumps(body).encode(),
        properties={"message_id": f"{publisher}-{number}", "subject": "flight", "content_type": "application/json"}
        | ({"group_id": publisher} if sessions else {}),
        application_properties={
            "publisher": publisher,
            "number": number,
            "valid": is_valid,
            "lane": ("low", "high", "other")[number % 3],
        },
    )
