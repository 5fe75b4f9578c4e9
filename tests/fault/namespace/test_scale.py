"""Thousands of connections to a namespace of thousands of entities, and millions of copies of a topic's messages, each within
a bound of memory, and all of it works.
"""

from __future__ import annotations

import json
import resource
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from harness.client.fault_client import connected, endpoint_for, make_message
from isthmus.amqp import BATCH_FORMAT
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Client, Management, Receiver, Sender
from isthmus.transport.sender import envelope

CONNECTIONS = 2_000
ENTITIES = 10_000
RESIDENT_LIMIT_BYTES = 1 << 30
SUBSCRIPTIONS = 100
ENVELOPE_MESSAGES = 15_885
FAN_OUT_LIMIT_BYTES = 512 << 20


def test_many_connections_and_entities(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    connections, entities = long_count(CONNECTIONS), long_count(ENTITIES)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, connections + 1_000)), hard))
    config = tmp_path / "many.json"
    config.write_text(json.dumps({"queues": {f"q{number}": {} for number in range(entities)}}))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        began = time.monotonic()
        ns = stack.enter_context(namespace(tmp_path / "data", config=config))
        started = time.monotonic() - began
        endpoint = endpoint_for(ns)
        links: list[tuple[Client, Sender, Receiver]] = []
        for number in range(connections):
            client = Client(endpoint).open()
            stack.callback(client.abandon)
            queue = f"q{number * entities // connections}"
            client.authorize(queue)
            receiver = Receiver(client, queue)
            receiver.grant(1)
            links.append((client, Sender(client, queue).wait_ready(), receiver))
        opened = time.monotonic() - began - started
        # All are there at once, and each is served.
        for client, sender, receiver in links:
            sender.send_all([make_message(b"x" * 1000)])
            client.wait_until(lambda receiver=receiver: receiver.arrived, 30, "a message")
        resident = psutil.Process(ns.pid).memory_info().rss
        ready = ns.restart()
        counted(
            f"{connections} connections and {entities} queues within {RESIDENT_LIMIT_BYTES >> 20} MiB",
            f"{resident >> 20} MiB; made in {started:.1f} s, connected in {opened:.1f} s, restarted in {ready:.2f} s",
        )
        assert resident < RESIDENT_LIMIT_BYTES


class Watch:
    """The most memory that a namespace takes, and the longest that it leaves a request for its health unanswered."""

    def __init__(self, ns: NamespaceProcess) -> None:
        self.resident_bytes = 0
        self.longest_seconds = 0.0
        self._ns = ns
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        process = psutil.Process(self._ns.pid)
        while not self._stopped.wait(0.02):
            began = time.monotonic()
            urllib.request.urlopen(f"http://127.0.0.1:{self._ns.ports['http']}/health", timeout=120).read()
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)
            self.resident_bytes = max(self.resident_bytes, process.memory_info().rss)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(150)


def test_envelopes_to_many_subscriptions(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    names = [f"s{number}" for number in range(long_count(SUBSCRIPTIONS))]
    config = tmp_path / "topic.json"
    config.write_text(json.dumps({"topics": {"t": {"subscriptions": {name: {} for name in names}}}}))
    batch = envelope([b"\0Su\xa0\x01x"] * ENVELOPE_MESSAGES)
    with namespace(tmp_path / "data", config=config) as ns, connected(ns, "t") as client:
        sender = Sender(client, "t").wait_ready()
        watch = Watch(ns)
        began = time.monotonic()
        sender.send([batch] * 4, message_format=BATCH_FORMAT)
        client.wait_until(lambda: sender.outstanding == 0, 600, "outcomes, which come when all copies are durable")
        sender.raise_refusal()
        seconds = time.monotonic() - began
        watch.stop()
        path = f"t/Subscriptions/{names[-1]}"
        client.authorize(path)
        management = Management(client, path)
        assert len(management.peek(4 * ENVELOPE_MESSAGES, 10)) == 1
        management.close()
        counted(
            f"4 envelopes of {ENVELOPE_MESSAGES} messages to {len(names)} subscriptions within "
            f"{FAN_OUT_LIMIT_BYTES >> 20} MiB",
            f"{watch.resident_bytes >> 20} MiB in {seconds:.1f} s; longest without an answer {watch.longest_seconds:.2f} s",
        )
        assert watch.resident_bytes < FAN_OUT_LIMIT_BYTES
