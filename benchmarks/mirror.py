"""Kafka to Kafka: the bridge beside MirrorMaker 2, in one run; prints one JSON object.

Two brokers of one node each (KRaft, no fsync, as Kafka is set by default) run on this machine. A topic of one partition is filled; then each
tool copies it to the other broker alternately, and the target's end is looked at all the while. The rate is that between a tenth and nine
tenths of the records, so that no start counts; `cpu_us` is CPU time per record of the tool's processes meanwhile.

Needs mvn and Java 17 or newer. Run it on a quiet machine: ``python benchmarks/mirror.py --records 400000 --rounds 3``.
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

from confluent_kafka import Consumer, Producer, TopicPartition

from isthmus.bench.process import Account
from isthmus.bridge.route_spec import End, RouteSpec

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from harness.server.kafka_broker import KafkaBroker, broker  # noqa: E402 - of the tests' kit

POM = ROOT / "benchmarks" / "kafka" / "pom.xml"
JARS = ROOT / ".cache" / "interop" / "mirror-maker"
TOPIC = "bench"
BODY_BYTES = 1024
LOOK_SECONDS = 0.1
WAIT_SECONDS = 600.0
FIRST, LAST = 0.1, 0.9
STOP_SECONDS = 60


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--drive", nargs=3, metavar=("SOURCE", "TARGET", "TOPIC"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.drive:
        drive(*asked.drive)
        return
    folder = Path(tempfile.mkdtemp(prefix="isthmus-mirror-"))
    try:
        print(json.dumps(measure(folder, asked.records, asked.rounds)))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, records: int, rounds: int) -> dict[str, Any]:
    """The tools alternately, so many times each."""
    jars = install_mirror_maker()
    found: dict[str, list[dict[str, float]]] = {"bridge": [], "mirrormaker": []}
    with ExitStack() as stack:
        for side in ("source", "target"):
            (folder / side).mkdir()
        source, target = (stack.enter_context(broker(folder / side)) for side in ("source", "target"))
        source.create(TOPIC, 1)
        fill(source, records)
        for number in range(rounds):
            for tool in found if number % 2 == 0 else reversed(found):
                topic = f"{tool}-{number}"
                target.create(topic, 1)
                started = (
                    bridge(source, target, topic) if tool == "bridge" else mirror(jars, folder, source, target, topic)
                )
                with started as (process, where):
                    found[tool].append(watch(target, where, records, process, tool))
                print(f"{tool}: {found[tool][-1]}", file=sys.stderr, flush=True)
    rates = {tool: statistics.median(each["per_second"] for each in runs) for tool, runs in found.items()}
    return {
        "records": records,
        "bytes": BODY_BYTES,
        "partitions": 1,
        **found,
        "ratio": round(rates["bridge"] / rates["mirrormaker"], 2),
    }


def install_mirror_maker() -> Path:
    """The folder of the jars that pom.xml names."""
    if not (JARS / ".installed").exists():
        command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
        subprocess.run([*command, f"-DoutputDirectory={JARS}", "-DincludeScope=runtime"], check=True)
        (JARS / ".installed").touch()
    return JARS


def fill(kafka: KafkaBroker, records: int) -> None:
    """Publishes records of one size, with a key and a header."""
    producer = Producer({"bootstrap.servers": kafka.address, "linger.ms": 20})
    body = os.urandom(BODY_BYTES)
    for number in range(records):
        while True:
            try:
                producer.produce(TOPIC, value=body, key=b"k%d" % (number % 1000), headers={"n": str(number)})
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0


Started = Iterator[tuple[int, str]]


@contextmanager
def bridge(source: KafkaBroker, target: KafkaBroker, topic: str) -> Started:
    """Spark with a query that carries the route, as `isthmus run` starts it; process id, and the topic at the target."""
    command = [sys.executable, __file__, "--drive", source.address, target.address, topic]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield process.pid, topic
    finally:
        assert process.stdin is not None
        process.stdin.close()
        _end(process)


@contextmanager
def mirror(jars: Path, folder: Path, source: KafkaBroker, target: KafkaBroker, topic: str) -> Started:
    """MirrorMaker 2 as a dedicated process; process id, and the topic at the target, which it names after the source."""
    settings = {
        "clusters": f"{topic}, b",
        f"{topic}.bootstrap.servers": source.address,
        "b.bootstrap.servers": target.address,
        f"{topic}->b.enabled": "true",
        f"{topic}->b.topics": TOPIC,
        "tasks.max": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "sync.topic.configs.enabled": "false",
        **{
            f"{name}.replication.factor": "1"
            for name in ("offset-syncs.topic", "offset.storage", "status.storage", "config.storage")
        },
        "replication.factor": "1",
    }
    file = folder / f"{topic}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = ["java", "-cp", f"{jars}/*", "org.apache.kafka.connect.mirror.MirrorMaker", str(file)]
    with (folder / f"{topic}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield process.pid, f"{topic}.{TOPIC}"
        finally:
            process.terminate()
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def watch(kafka: KafkaBroker, topic: str, records: int, process: int, tool: str) -> dict[str, float]:
    """The rate at which a topic grows, and what the tool's processes use for it."""
    account = Account({tool: process})
    consumer = Consumer({"bootstrap.servers": kafka.address, "group.id": "bench", "log_level": 0})
    began = time.monotonic()
    seen: dict[float, tuple[float, int, float]] = {}
    try:
        while (count := _end_of(consumer, topic)) < records:
            for part in (FIRST, LAST):
                if count >= part * records and part not in seen:
                    seen[part] = time.monotonic(), count, account.read()[tool].cpu_seconds
            assert time.monotonic() < began + WAIT_SECONDS, f"{tool}: {count} of {records} records"
            time.sleep(LOOK_SECONDS)
    finally:
        consumer.close()
    seen.setdefault(LAST, (time.monotonic(), records, account.read()[tool].cpu_seconds))
    (first, least, before), (last, most, after) = seen[FIRST], seen[LAST]
    return {
        "per_second": round((most - least) / (last - first)),
        "cpu_us": round((after - before) / (most - least) * 1e6, 1),
        "start_seconds": round(first - began, 1),
    }


def _end_of(consumer: Any, topic: str) -> int:
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=5)
    except Exception:  # noqa: BLE001 - MirrorMaker makes its topic itself
        return 0
    return int(high)


def drive(source: str, target: str, topic: str) -> None:
    """Moves records until standard input closes."""
    from isthmus.replication.spark_session import create_spark_session
    from isthmus.replication.step.chain.chain import Chain

    folder = Path(tempfile.mkdtemp(prefix="isthmus-mirror-spark-"))
    route = RouteSpec(
        name=topic,
        source=End("kafka", "a", {"bootstrap_servers": source, "topic": TOPIC, "group": f"isthmus.{topic}"}),
        target=End(
            "kafka",
            "b",
            {
                "bootstrap_servers": target,
                "topic": topic,
                "partitioning": "source",
                "origin": f"a/{TOPIC}",
                "target": "b",
            },
        ),
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
