"""A namespace that hangs for longer than its locks and its clients' timeouts, and continues.

What was acknowledged before is there afterwards; a message whose completion was acknowledged never comes again; a message that was
locked when it hung comes again to any receiver, since its lock has expired; senders of an unknown outcome may double a
message, which duplicate detection then drops.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from isthmus.testing.namespace import NamespaceProcess, namespace

LOCK_SECONDS = 5
CONFIG = f"""
queues:
  orders: {{lock_duration: {LOCK_SECONDS}s, requires_duplicate_detection: true, duplicate_detection_history_time_window: 10m, max_delivery_count: 50}}
"""
BATCH = 50


class Application:
    """Sends numbered messages and completes what it receives, by the official SDK, until it is stopped."""

    def __init__(self, ns: NamespaceProcess) -> None:
        self.ns = ns
        self.acknowledged: list[int] = []
        self.completed: list[int] = []
        self.again: list[int] = []
        self.stopping = threading.Event()
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._send, self._receive)]

    def start(self) -> Application:
        for thread in self._threads:
            thread.start()
        return self

    def _client(self) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(self.ns.connection_string, retry_total=0)

    def _send(self) -> None:
        number = 0
        while not self.stopping.is_set():
            with (
                suppress(ServiceBusError, OSError),
                self._client() as client,
                client.get_queue_sender("orders") as sender,
            ):
                while not self.stopping.is_set():
                    wanted = range(number, number + 10)
                    sender.send_messages(
                        [ServiceBusMessage(b"%d" % each, message_id=str(each)) for each in wanted], timeout=30
                    )
                    self.acknowledged += wanted
                    number += len(wanted)

    def _receive(self) -> None:
        while not self.stopping.is_set():
            with (
                suppress(ServiceBusError, OSError),
                self._client() as client,
                client.get_queue_receiver("orders", max_wait_time=2) as receiver,
            ):
                while not self.stopping.is_set():
                    for message in receiver.receive_messages(BATCH, max_wait_time=2):
                        number = int(str(message))
                        if number in self.completed:
                            self.again.append(number)
                        with suppress(MessageLockLostError):
                            receiver.complete_message(message)
                            self.completed.append(number)

    def end(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive(), "the SDK does not come back from a namespace that goes on"


def wait(condition: Callable[[], object], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "nothing moves"
        time.sleep(0.05)


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [LOCK_SECONDS + 3, 150])  # beyond a lock; beyond every idle time-out
def test_a_namespace_that_hung_loses_and_repeats_nothing(tmp_path: Path, seconds: float) -> None:
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        application = Application(ns).start()
        wait(lambda: len(application.completed) > 200, 30)
        holder = ServiceBusClient.from_connection_string(ns.connection_string)
        with holder, holder.get_queue_receiver("orders", max_wait_time=5) as receiver:
            [locked] = receiver.receive_messages(1, max_wait_time=5)
            psutil.Process(ns.pid).send_signal(signal.SIGSTOP)
            try:
                time.sleep(seconds)
                before = len(application.completed)
            finally:
                psutil.Process(ns.pid).send_signal(signal.SIGCONT)
            with pytest.raises(ServiceBusError):
                receiver.complete_message(locked)
            wait(lambda: len(application.completed) > before + 200, 60)
        application.end()
        number = int(str(locked))
        left = drained(ns)
        assert number in application.completed or number in left
        seen = set(application.completed) | set(left)
        assert set(application.acknowledged) <= seen
        assert not application.again
        assert len(left) == len(set(left))
        assert not set(left) & set(application.completed)
        assert "Traceback" not in ns.log(), ns.log()


def drained(ns: NamespaceProcess) -> list[int]:
    found: list[int] = []
    with ServiceBusClient.from_connection_string(ns.connection_string) as client:
        for entity in ("", "deadletter"):
            with client.get_queue_receiver(
                "orders", sub_queue=entity or None, max_wait_time=LOCK_SECONDS + 3
            ) as receiver:
                while messages := receiver.receive_messages(200, max_wait_time=LOCK_SECONDS + 3):
                    for message in messages:
                        found.append(int(str(message)))
                        receiver.complete_message(message)
    return found
