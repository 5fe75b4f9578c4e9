"""Sends the canaries of a run's routes, and receives them at the targets.

What it is: a thread for each namespace, that sends the canaries of the routes that read there and receives those of the routes that end
there. What it is not: the decision when, and its evaluation (`isthmus.supervisor.watch.canary`); the rules that keep canaries from applications
(`isthmus.topology.canary`).

Invariants:
    I1. A canary is sent only while this run holds the claim of its task and the task is not paused.
    I2. A canary counts as arrived when this run has received it from its subscription at the target, not when the target has acknowledged it.
    I3. A namespace that cannot be reached delays only the canaries of routes that end there.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.errors import IsthmusError
from isthmus.message.name import CANARY
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.watch.canary import LIFE_SECONDS, Canary
from isthmus.topology.canary import canary_subscription
from isthmus.topology.model import Endpoint, Route
from isthmus.transport import Client, Receiver, Sender

__all__ = ["CanaryWatch"]

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0
SEND_SECONDS = 10.0
_CREDIT = 50
_SLICE_SECONDS = 0.2
_NUMBER = "isthmus-canary-number"
_RUN = "isthmus-canary-run"


class CanaryWatch:
    """The canaries of all routes with canaries.

    Args:
        routes: of the run.
        clients: opens the namespaces; called in each thread.
        may_send: whether a route's canary may be sent now.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        clients: Callable[[], NamespaceClients],
        may_send: Callable[[Route], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._routes = [route for route in routes if route.options.canary_ms]
        self._clients = clients
        self._may_send = may_send
        self._clock = clock
        self._run = uuid.uuid4().hex
        self._lock = threading.Lock()  # of the machines
        self._canaries = {route.name: Canary(route.options.canary_ms / 1000) for route in self._routes}
        self._stop = threading.Event()
        aliases = {alias for route in self._routes for alias in (route.source.alias, route.target.alias)}
        self._threads = [
            threading.Thread(target=self._watch, args=(alias,), name=f"canary-{alias}", daemon=True)
            for alias in sorted(aliases)
        ]

    def start(self) -> CanaryWatch:
        """Begins to send."""
        for thread in self._threads:
            thread.start()
        return self

    def close(self) -> None:
        """Stop; blocks until pending work has ended, some seconds at most."""
        self._stop.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(15.0)

    def figures(self, route: Route, now: float) -> tuple[float | None, float | None, float]:
        """Age, latency and lateness of a route's canaries, in seconds; see `Canary`. (None, None, 0) if it has none."""
        canary = self._canaries.get(route.name)
        if canary is None:
            return None, None, 0.0
        with self._lock:
            return canary.age_seconds(now), canary.latency_seconds, canary.late_seconds(now)

    def _watch(self, alias: str) -> None:
        reported = ""
        while not self._stop.is_set():
            try:
                with self._clients() as clients:
                    self._carry(alias, clients)
            except Exception as error:  # noqa: BLE001 - any error: without the thread no canary would be sent, or missed
                if str(error) != reported:
                    reported = str(error)
                    log.warning("canaries at %s: %s; retried every %g s", alias, reported, AGAIN_SECONDS)
            self._stop.wait(AGAIN_SECONDS)

    def _carry(self, alias: str, clients: NamespaceClients) -> None:
        """Send and receive at one namespace until the connection is lost."""
        leaving = [route for route in self._routes if route.source.alias == alias]
        arriving = {
            f"{route.target.entity}/Subscriptions/{canary_subscription(route.task)}"
            for route in self._routes
            if route.target.alias == alias
        }
        topics = {_topic(route) for route in leaving}
        client = clients.open(Endpoint(alias, min((*arriving, *topics))))
        try:
            for path in (*arriving, *topics):
                client.authorize(path)
            receivers = [Receiver(client, path).wait_attached() for path in sorted(arriving)]
            senders = {topic: Sender(client, topic).wait_ready() for topic in sorted(topics)}
            while not self._stop.is_set():
                for receiver in receivers:
                    if receiver.credit < _CREDIT // 2:
                        receiver.grant(_CREDIT)
                client.wait(_SLICE_SECONDS)
                for receiver in receivers:
                    self._receive(client, receiver)
                for route in leaving:
                    self._send(senders[_topic(route)], route)
        finally:
            client.close(1.0)

    def _receive(self, client: Client, receiver: Receiver) -> None:
        if receiver.error is not None:
            raise receiver.error
        for run in receiver.take():
            for payload in run.payloads:
                properties: dict[Any, Any] = {}
                with contextlib.suppress(CodecError):  # any other message is completed, too
                    properties = section.decode_map(payload, section.locate(payload).application_properties)
                canary = self._canaries.get(str(properties.get(CANARY)))
                number = properties.get(_NUMBER)
                if canary is not None and properties.get(_RUN) == self._run and isinstance(number, int):
                    with self._lock:
                        canary.arrived(number, self._clock())
            receiver.dispose(run.first_id, (run.first_id + len(run.tags) - 1) & 0xFFFFFFFF)
        client.flush()

    def _send(self, sender: Sender, route: Route) -> None:
        canary = self._canaries[route.name]
        now = self._clock()
        with self._lock:
            if now < canary.due_at() or not self._may_send(route):
                return
            number = canary.send(now)
        try:
            sender.send_all([self._message(route, number)], timeout_seconds=SEND_SECONDS)
        except IsthmusError:
            with self._lock:
                canary.failed(number)
            raise

    def _message(self, route: Route, number: int) -> bytes:
        body = {"route": route.name, "number": number, "sent_at": datetime.now(UTC).isoformat(timespec="milliseconds")}
        session = {"group_id": CANARY} if route.options.ordering == "session" else {}
        return section.encode_message(
            json.dumps(body).encode(),
            header=section.Header(durable=True, ttl_ms=int(LIFE_SECONDS * 1000)),
            properties={
                "message_id": f"{CANARY}-{self._run}-{route.name}-{number}",
                "content_type": "application/json",
            }
            | session,
            application_properties={CANARY: route.name, _NUMBER: number, _RUN: self._run},
        )


def _topic(route: Route) -> str:
    return route.entered
