"""Artemis to Artemis: the bridge beside Artemis' own core bridge, in one run; prints one JSON object.

Two brokers with a journal each run on this machine. A queue is filled with durable messages; then each tool moves it to the other broker
alternately, and the target's queue is counted all the while. The rate is that between a tenth and nine tenths of the messages, so that no start
counts. The core bridge runs within the source broker, with the settings that it has by default (confirmations, duplicate detection).

Needs mvn and Java 17 or newer. Run it on a quiet machine: ``python benchmarks/artemis.py --messages 100000 --rounds 3``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from isthmus.amqp import section
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.transport import Sender

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.server.artemis_broker import ArtemisBroker, artemis  # noqa: E402 - of the tests' kit

BODY_BYTES = 1024
LOOK_SECONDS = 0.1
WAIT_SECONDS = 600.0
FIRST, LAST = 0.1, 0.9
STOP_SECONDS = 60
BATCH = 5000


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drive", nargs=4, metavar=("SOURCE", "QUEUE", "TARGET", "NAME"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        drive(*asked.drive)
        return
    folder = Path(tempfile.mkdtemp(prefix="isthmus-artemis-"))
    try:
        print(json.dumps(measure(folder, asked.messages, asked.rounds)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, messages: int, rounds: int) -> dict[str, Any]:
    """The tools alternately, so many times each."""
    found: dict[str, list[dict[str, float]]] = {"bridge": [], "core": []}
    with ExitStack() as stack:
        source, target = (stack.enter_context(artemis(folder / side)) for side in ("source", "target"))
        source.call("broker", "addConnector", "target", f"tcp://127.0.0.1:{target.port}")
        for number in range(rounds):
            for tool in found if number % 2 == 0 else reversed(found):
                queue = f"{tool}-{number}"
                for each in (source, target):
                    each.create_queue(queue)
                fill(source, queue, messages)
                started = bridge(source, target, queue) if tool == "bridge" else core(source, queue)
                with started:
                    found[tool].append(watch(target, queue, messages, tool))
                print(f"{tool}: {found[tool][-1]}", file=sys.stderr, flush=True)
    rates = {tool: statistics.median(each["per_second"] for each in runs) for tool, runs in found.items()}
    return {"messages": messages, "bytes": BODY_BYTES, **found, "ratio": round(rates["bridge"] / rates["core"], 2)}


def fill(broker: ArtemisBroker, queue: str, messages: int) -> None:
    """Publishes durable messages of one size."""
    body = os.urandom(BODY_BYTES)
    header = section.encode_header(section.Header(durable=True))
    with broker.client() as client:
        sender = Sender(client, queue).wait_ready()
        for start in range(0, messages, BATCH):
            numbers = range(start, min(start + BATCH, messages))
            sender.send_all(
                [header + section.encode_message(body, properties={"message_id": f"m{each}"}) for each in numbers]
            )


@contextmanager
def bridge(source: ArtemisBroker, target: ArtemisBroker, queue: str) -> Iterator[None]:
    """Spark with a query that carries the route, as `isthmus run` starts it."""
    urls = (f"amqp://127.0.0.1:{each.port}" for each in (source, target))
    first, second = urls
    command = [sys.executable, __file__, "--drive", first, queue, second, queue]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def core(source: ArtemisBroker, queue: str) -> Iterator[None]:
    """The core bridge of the source broker."""
    settings = {
        "name": queue,
        "queue-name": queue,
        "forwarding-address": queue,
        "static-connectors": ["target"],
    }
    source.call("broker", "createBridge", json.dumps(settings))
    try:
        yield
    finally:
        source.call("broker", "destroyBridge", queue)


def watch(broker: ArtemisBroker, queue: str, messages: int, tool: str) -> dict[str, float]:
    """The rate at which a queue grows."""
    began = time.monotonic()
    seen: dict[float, tuple[float, int]] = {}
    while (count := broker.count(queue)) < messages:
        for part in (FIRST, LAST):
            if count >= part * messages and part not in seen:
                seen[part] = time.monotonic(), count
        assert time.monotonic() < began + WAIT_SECONDS, f"{tool}: {count} of {messages} messages"
        time.sleep(LOOK_SECONDS)
    seen.setdefault(LAST, (time.monotonic(), messages))
    (first, least), (last, most) = seen[FIRST], seen[LAST]
    return {"per_second": round((most - least) / (last - first)), "start_seconds": round(first - began, 1)}


def drive(source: str, queue: str, target: str, name: str) -> None:
    """Moves messages until standard input closes."""
    from isthmus.replication.spark_session import create_spark_session
    from isthmus.replication.step.chain.chain import Chain

    folder = Path(tempfile.mkdtemp(prefix="isthmus-artemis-spark-"))
    write = {"url": target, "entity": name, "entity_type": "queue", "origin": f"a/{queue}", "target": "b"}
    route = RouteSpec(
        name=name,
        source=End("amqp", "a", {"url": source, "entity": queue, "entity_type": "queue"}),
        target=End("amqp", "b", write),
    )
    spark = create_spark_session("isthmus bench", routes=1, work_directory=folder)
    query = (
        spark.readStream.format("isthmus")
        .options(routes=json.dumps([route.to_json()]), **Chain(()).read_options())
        .load()
        .writeStream.format("isthmus")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    sys.stdin.read()
    query.stop()
    spark.stop()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
