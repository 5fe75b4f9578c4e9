"""The application that a drill simulates: publishers that change namespaces on an error, and consumers that suppress duplicates.

What it is: threads with isthmus's own client, each at one namespace at a time. A publisher whose send fails, or is not answered, sends the
same message, under the same MessageId, to the next namespace and stays there (passive replication). A consumer handles each MessageId once.
What it is not: the measurement (`isthmus.demo.drill.account`).

Invariants:
    I1. A message is sent again, with the same MessageId, until a namespace has acknowledged it.
    I2. A message is completed after it was handled.
    I3. A message that is not of a drill is released, and the consumer ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Sequence

from isthmus.amqp import section
from isthmus.demo.drill.account import DrillAccount
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.topology.model import Endpoint, Federation
from isthmus.transport import Client, Receiver, Sender

__all__ = ["PREFIX", "DrillConsumer", "DrillPublisher"]

PREFIX = "isthmus-drill-"
"""The prefix of the MessageIds of all drills."""

SEND_SECONDS = 5.0
AGAIN_SECONDS = 0.2
_CREDIT = 200
_SLICE_SECONDS = 0.1
_BATCHES_PER_SECOND = 20


class _Worker:
    """A thread that is connected to one of several members."""

    def __init__(self, federation: Federation, name: str, places: Sequence[Endpoint]) -> None:
        self.name = name
        self._federation = federation
        self._places = tuple(places)
        self._at = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"drill-{name}", daemon=True)

    @property
    def place(self) -> Endpoint:
        """The member that it uses."""
        return self._places[self._at]

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def go(self, alias: str) -> None:
        """Switches to a member."""
        self._at = next(number for number, each in enumerate(self._places) if each.alias == alias)

    def stop(self) -> None:
        """Ends; blocks."""
        self._stop.set()
        self._thread.join(30.0)

    def _swap(self) -> None:
        self._at = (self._at + 1) % len(self._places)

    def _run(self) -> None:
        with NamespaceClients(self._federation, f"isthmus-drill-{self.name}") as clients:
            while not self._stop.is_set():
                place = self.place
                try:
                    client = clients.open(place)
                    try:
                        self._work(client, place)
                    finally:
                        with contextlib.suppress(IsthmusError):
                            client.close(0.5)
                except (IsthmusError, OSError):
                    if self._stop.is_set():
                        return
                    if self.place == place:
                        self._swap()
                    self._stop.wait(AGAIN_SECONDS)

    def _work(self, client: Client, place: Endpoint) -> None:
        raise NotImplementedError


class DrillPublisher(_Worker):
    """Publishes at a steady rate.

    Args:
        federation: with the namespaces.
        name: of the publisher; part of each MessageId.
        places: the topic at each namespace, the preferred first.
        account: records what was acknowledged.
        rate_per_second: of messages.
    """

    def __init__(
        self,
        federation: Federation,
        name: str,
        places: Sequence[Endpoint],
        account: DrillAccount,
        rate_per_second: float,
    ) -> None:
        super().__init__(federation, name, places)
        self._account = account
        self._rate = rate_per_second
        self._prefix = f"{PREFIX}{uuid.uuid4().hex[:8]}-{name}"
        self._number = 0
        self._unacknowledged: list[str] = []
        self._is_over = threading.Event()

    def finish(self) -> None:
        """Stops publishing new messages, and ends once all are acknowledged. Blocks."""
        self._is_over.set()
        self._thread.join(120.0)

    def _work(self, client: Client, place: Endpoint) -> None:
        sender = Sender(client, place.entity).wait_ready(SEND_SECONDS)
        due = time.monotonic()
        while not self._stop.is_set() and self.place == place:
            if not self._unacknowledged:
                if self._is_over.is_set():
                    self._stop.set()
                    return
                now = time.monotonic()
                count = int(min(max(0.0, now - due) * self._rate, self._rate)) + 1
                due = max(due + count / self._rate, now - 1.0)
                self._unacknowledged = [f"{self._prefix}-{self._number + each + 1}" for each in range(count)]
                self._number += count
            messages = [
                section.encode_message(
                    each.encode(), properties={"message_id": each}, application_properties={"publisher": self.name}
                )
                for each in self._unacknowledged
            ]
            sender.send_all(messages, timeout_seconds=SEND_SECONDS)
            now = time.monotonic()
            for each in self._unacknowledged:
                self._account.sent(each, place.alias, now)
            self._unacknowledged = []
            self._stop.wait(max(1 / _BATCHES_PER_SECOND, due - time.monotonic()))


class DrillConsumer(_Worker):
    """Handles each message once.

    Args:
        federation: with the namespaces.
        name: of the consumer, in the account.
        places: the subscription at each namespace, the preferred first; with only one it waits until that returns.
        account: records what was handled.

    Attributes:
        foreign: MessageId of a message that is not of a drill; empty where none came.
    """

    def __init__(self, federation: Federation, name: str, places: Sequence[Endpoint], account: DrillAccount) -> None:
        super().__init__(federation, name, places)
        self.foreign = ""
        self._account = account

    def _work(self, client: Client, place: Endpoint) -> None:
        receiver = Receiver(client, place.entity).wait_attached()
        while not self._stop.is_set() and self.place == place:
            if receiver.credit < _CREDIT // 2:
                receiver.grant(_CREDIT)
            client.wait(_SLICE_SECONDS)
            if receiver.error is not None:
                raise receiver.error
            for run in receiver.take():
                for payload in run.payloads:
                    properties = section.decode_properties(payload, section.locate(payload).properties)
                    message_id = str(properties.get("message_id"))
                    if not message_id.startswith(PREFIX):
                        self.foreign = message_id
                        self._stop.set()
                        return  # closing the connection releases unsettled messages
                    if self._account.is_new(self.name, message_id):
                        self._account.handled(self.name, message_id, time.monotonic())
                receiver.dispose(run.first_id, (run.first_id + len(run.tags) - 1) & 0xFFFFFFFF)
            client.flush()
