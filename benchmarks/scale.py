"""How much memory many connections and many entities take; prints one JSON object.

A namespace of its own is served; queues are made from a file, connections are opened one after the other, each sends a
message to a queue of its own and receives it. Run it on a quiet machine: ``python benchmarks/scale.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from isthmus.amqp import section
from isthmus.operations.server.statistics import ask_statistics
from isthmus.operations.server.target import Target, find_target
from isthmus.testing.namespace import namespace
from isthmus.transport import Client, Receiver, Sender

_MEBIBYTE = 1 << 20


def _resident_mebibytes(target: Target) -> float:
    resident: float = ask_statistics(target)["namespace"]["resident_bytes"] / _MEBIBYTE
    return round(resident, 1)


def _round_trip(client: Client, queue: str) -> float:
    began = time.perf_counter()
    sender = Sender(client, queue).wait_ready()
    receiver = Receiver(client, queue).wait_attached()
    receiver.grant(10)
    sender.send_all([section.encode_message(b"x" * 1000)])
    client.wait_until(lambda: bool(receiver.arrived), 30.0, "a message")
    for run in receiver.take():
        receiver.dispose(run.first_id, run.first_id + len(run.tags) - 1)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--entities", type=int, default=10_000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found: dict[str, object] = {"connections": options.connections, "entities": options.entities}
    with tempfile.TemporaryDirectory(prefix="isthmus-scale-") as folder, ExitStack() as stack:
        config = Path(folder) / "many.json"
        config.write_text(json.dumps({"queues": {f"q{number}": {} for number in range(options.entities)}}))
        began = time.perf_counter()
        ns = stack.enter_context(namespace(Path(folder) / "data", config=config))
        found["first_start_seconds"] = round(time.perf_counter() - began, 2)
        os.environ["SCALE_CONNECTION"] = ns.connection_string
        target = find_target("env:SCALE_CONNECTION")
        found["resident_mebibytes_with_entities"] = _resident_mebibytes(target)
        times: list[float] = []
        began = time.perf_counter()
        for number in range(options.connections):
            queue = f"q{number % options.entities}"
            client = target.open(queue)
            stack.callback(client.abandon)
            times.append(_round_trip(client, queue))
        found["opened_seconds"] = round(time.perf_counter() - began, 2)
        found["round_trip_p50_ms"] = round(1000 * statistics.median(times), 2)
        found["round_trip_p99_ms"] = round(1000 * statistics.quantiles(times, n=100)[98], 2)
        found["resident_mebibytes_with_connections"] = _resident_mebibytes(target)
        whole = ask_statistics(target)["namespace"]
        found["open_connections"] = whole["connections"]
        began = time.perf_counter()
        with urllib.request.urlopen(f"{target.http_root}/metrics") as page:  # noqa: S310 - http on loopback
            found["metrics_bytes"] = len(page.read())
        found["metrics_seconds"] = round(time.perf_counter() - began, 3)
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
