"""RabbitMQ to RabbitMQ: the bridge beside RabbitMQ's own Shovel, in one run; prints one JSON object.

Two nodes run on this machine, with a durable classic queue at the source for each tool and round, filled with persistent messages of one size
with a few properties. Each tool moves them to a durable queue of the other node alternately, with confirms and acknowledgements after them
(Shovel: ack-mode on-confirm, prefetch 1,000); the target's queue is looked at all the while. The rate is that between a tenth and nine tenths
of the messages, so that no start counts; `cpu_us` is CPU time per message of the tool's processes and of both nodes meanwhile.

Needs Debian's rabbitmq-server. Run it on a quiet machine: ``python benchmarks/rabbitmq.py --messages 100000 --rounds 3``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from isthmus.bench.process import Account
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.rabbitmq.protocol import property as props
from isthmus.connectors.rabbitmq.protocol import wire
from isthmus.connectors.rabbitmq.protocol.property import Properties, Record
from isthmus.connectors.rabbitmq.protocol.wire import M

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.client.rabbitmq_client import RabbitClient  # noqa: E402 - of the tests' kit
from harness.server.rabbitmq_server import PASSWORD, USER, RabbitServer, rabbit_server  # noqa: E402

BODY_BYTES = 1024
LOOK_SECONDS = 0.1
WAIT_SECONDS = 600.0
FIRST, LAST = 0.1, 0.9
STOP_SECONDS = 60
PREFETCH = 1000
TOOLS = ("bridge", "shovel")


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kind", choices=("classic", "quorum"), default="classic")
    parser.add_argument("--drive", nargs=3, metavar=("SOURCE", "TARGET", "QUEUE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        drive(*asked.drive)
        return
    folder = Path(tempfile.mkdtemp(prefix="isthmus-rabbitmq-"))
    try:
        print(json.dumps(measure(folder, asked.messages, asked.rounds, asked.kind)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, messages: int, rounds: int, kind: str) -> dict[str, Any]:
    """The tools alternately, so many times each."""
    found: dict[str, list[dict[str, float]]] = {tool: [] for tool in TOOLS}
    with ExitStack() as stack:
        source, target = (
            stack.enter_context(rabbit_server(folder / side, ("rabbitmq_shovel",))) for side in ("source", "target")
        )
        for number in range(rounds):
            for tool in TOOLS if number % 2 == 0 else reversed(TOOLS):
                queue = f"{tool}-{number}"
                for server in (source, target):
                    server.queue(queue, kind)
                fill(source, queue, messages)
                with (bridge if tool == "bridge" else shovel)(source, target, queue) as processes:
                    found[tool].append(watch(target, queue, messages, processes))
                for server in (source, target):
                    server.call("DELETE", f"queues/%2F/{queue}")
                print(f"{tool}: {found[tool][-1]}", file=sys.stderr, flush=True)
    rates = {tool: statistics.median(each["per_second"] for each in runs) for tool, runs in found.items()}
    return {
        "messages": messages,
        "bytes": BODY_BYTES,
        "queues": kind,
        **found,
        "ratio": round(rates["bridge"] / rates["shovel"], 2),
    }


def fill(server: RabbitServer, queue: str, messages: int) -> None:
    """Publishes messages of one size, each with an id of its own and a header."""
    body = os.urandom(BODY_BYTES)
    with RabbitClient(server.port) as client:
        for start in range(0, messages, 1000):
            client.publish([_message(body, number, queue) for number in range(start, min(start + 1000, messages))])


def _message(body: bytes, number: int, queue: str) -> Record:
    headers = (("n", b"l", struct.pack(">q", number)),)
    found = Properties(
        content_type=b"application/octet-stream", headers=headers, delivery_mode=2, message_id=b"m-%09d" % number
    )
    return Record(body, props.write(found), "", queue)


@contextmanager
def bridge(source: RabbitServer, target: RabbitServer, queue: str) -> Iterator[dict[str, int]]:
    """Spark with a query that carries the route, as `isthmus run` starts it; its processes, and the nodes'."""
    command = [sys.executable, __file__, "--drive", str(source.port), str(target.port), queue]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield {"bridge": process.pid, **_nodes(source, target)}
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def shovel(source: RabbitServer, target: RabbitServer, queue: str) -> Iterator[dict[str, int]]:
    """A shovel in the source's node; the nodes' processes."""
    definition = {
        "src-protocol": "amqp091",
        "src-uri": f"amqp://{USER}:{PASSWORD}@127.0.0.1:{source.port}",
        "src-queue": queue,
        "src-prefetch-count": PREFETCH,
        "dest-protocol": "amqp091",
        "dest-uri": f"amqp://{USER}:{PASSWORD}@127.0.0.1:{target.port}",
        "dest-queue": queue,
        "ack-mode": "on-confirm",
    }
    source.call("PUT", f"parameters/shovel/%2F/{queue}", {"value": definition})
    try:
        yield _nodes(source, target)
    finally:
        source.call("DELETE", f"parameters/shovel/%2F/{queue}")


def _nodes(source: RabbitServer, target: RabbitServer) -> dict[str, int]:
    return {"source": source.process_id, "target": target.process_id}


def watch(server: RabbitServer, queue: str, messages: int, processes: dict[str, int]) -> dict[str, float]:
    """The rate at which a queue grows, and what the processes use for it."""
    account = Account(processes)
    began = time.monotonic()
    seen: dict[float, tuple[float, int, dict[str, float]]] = {}
    with RabbitClient(server.port) as client:
        while (count := _count(client, queue)) < messages:
            for part in (FIRST, LAST):
                if count >= part * messages and part not in seen:
                    seen[part] = time.monotonic(), count, _cpu(account)
            assert time.monotonic() < began + WAIT_SECONDS, f"{queue}: {count} of {messages} messages"
            time.sleep(LOOK_SECONDS)
    seen.setdefault(LAST, (time.monotonic(), messages, _cpu(account)))
    (first, least, before), (last, most, after) = seen[FIRST], seen[LAST]
    cpu = {name: (after[name] - before[name]) / (most - least) * 1e6 for name in after}
    return {
        "per_second": round((most - least) / (last - first)),
        "cpu_us": round(sum(cpu.values()), 1),
        **{f"{name}_cpu_us": round(value, 1) for name, value in cpu.items()},
        "start_seconds": round(first - began, 1),
    }


def _cpu(account: Account) -> dict[str, float]:
    return {name: each.cpu_seconds for name, each in account.read().items()}


def _count(client: RabbitClient, queue: str) -> int:
    """Messages that are ready."""
    answer = client.call(M.QUEUE_DECLARE, b"\0\0" + wire.short(queue) + b"\1\0\0\0\0", M.QUEUE_DECLARE_OK)
    return int(struct.unpack_from(">I", answer, 1 + answer[0])[0])


def drive(source: str, target: str, queue: str) -> None:
    """Moves messages until standard input closes."""
    from isthmus.replication.spark_session import create_spark_session
    from isthmus.replication.step.chain.chain import Chain

    os.environ["BENCH_RABBITMQ"] = PASSWORD
    folder = Path(tempfile.mkdtemp(prefix="isthmus-rabbitmq-spark-"))

    def end(port: str, **options: str) -> dict[str, str]:
        return {
            "host": f"127.0.0.1:{port}",
            "username": USER,
            "password": "env:BENCH_RABBITMQ",
            "entity": queue,
            **options,
        }

    route = RouteSpec(
        name=queue,
        source=End("rabbitmq", "a", end(source)),
        target=End("rabbitmq", "b", end(target, origin=f"a/{queue}", target="b")),
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
