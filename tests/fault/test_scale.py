"""Thousands of connections to a namespace of thousands of entities cost less than a gigabyte, and all of them work."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil

from fault_client import endpoint_for, make_message
from isthmus.testing.namespace import namespace
from isthmus.transport import Client, Receiver, Sender

CONNECTIONS = 2_000
ENTITIES = 10_000
RESIDENT_LIMIT_BYTES = 1 << 30


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
