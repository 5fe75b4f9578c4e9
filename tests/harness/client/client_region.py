"""Two regions for tests of the client library: a namespace each, behind a proxy that can be cut, stalled or closed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusReceiveMode

from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.proxy import Proxy, Weather, proxy

__all__ = ["Region", "eventually", "region"]

WAIT_SECONDS = 30.0


class Region:
    """A namespace behind a proxy."""

    def __init__(self, ns: NamespaceProcess, between: Proxy) -> None:
        self.namespace = ns
        self.proxy = between

    @property
    def connection_string(self) -> str:
        """Through the proxy."""
        return self.namespace.connection_string.replace(f":{self.namespace.ports['amqp']}/", f":{self.proxy.port}/")

    def cut(self) -> None:
        """Every connection is closed, and none can be made."""
        self.proxy.refuse()
        self.proxy.cut()

    def mend(self) -> None:
        """Everything is as at first."""
        self.proxy.refuse(False)
        self.proxy.set_weather(Weather())

    def silence(self) -> None:
        """What is sent arrives, and no answer comes back."""
        self.proxy.set_weather(Weather(), Weather(is_stalled=True))

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The namespace hangs."""
        os.kill(self.namespace.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.namespace.pid, signal.SIGCONT)

    def received(self, entity: str, wait: float = 0.5, count: int = 1_000_000) -> list[Any]:
        """The contents of a queue, removed from it, in their order; ends when nothing came for `wait` seconds.

        The SDK's own order is not that: after 5 s a second thread of its own reads the same connection.
        """
        found: list[Any] = []
        mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
        with (
            ServiceBusClient.from_connection_string(self.namespace.connection_string, retry_total=3) as client,
            client.get_queue_receiver(entity, receive_mode=mode) as receiver,
        ):
            while len(found) < count:
                more = receiver.receive_messages(min(500, count - len(found)), max_wait_time=wait)
                if not more:
                    break
                found += more
        return sorted(found, key=lambda message: message.sequence_number)

    def drain(self, *entities: str) -> None:
        """Removes the contents of queues, after a test; an empty one is only peeked at, since a receiver would wait."""
        with ServiceBusClient.from_connection_string(self.namespace.connection_string, retry_total=3) as client:
            for entity in entities:
                with client.get_queue_receiver(entity) as receiver:
                    is_empty = not receiver.peek_messages(1)
                if not is_empty:
                    self.received(entity, wait=0.3)

    def ids(self, entity: str, wait: float = 0.5) -> list[str]:
        """The MessageIds of the contents of a queue, removed from it."""
        return [str(message.message_id) for message in self.received(entity, wait)]


@contextmanager
def region(config: str, data: Path | None = None) -> Iterator[Region]:
    """A region that lives as long as the `with` block."""
    with namespace(data, config=config) as ns, proxy(ns.ports["amqp"]) as between:
        yield Region(ns, between)


def eventually(condition: Callable[[], object], seconds: float = WAIT_SECONDS) -> None:
    """Waits until a condition holds."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it never came to hold"
        time.sleep(0.02)
