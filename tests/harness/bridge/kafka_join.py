"""Reader and sink of the shared engine with Kafka and Service Bus, in one process and without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer

from isthmus.bridge import registry
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.testing.bridge.join import Join, Side

__all__ = ["consumed", "join", "kafka_end", "publish", "route", "wait"]


def kafka_end(address: str, topic: str, **options: str) -> End:
    """An end at a topic."""
    return End("kafka", "cluster", {"bootstrap_servers": address, "topic": topic, **options})


def route(source: End, target: End, **settings: Any) -> RouteSpec:
    """A route."""
    return RouteSpec(name="r", source=source, target=target, **settings)


def join(*routes: RouteSpec, **settings: Any) -> Join:
    """A query over the routes, with the connectors of the registry."""
    return Join(routes, lambda: Side(registry.connector, lambda: None, lambda: None), **settings)


def publish(
    address: str, topic: str, start: int, stop: int, *, keys: int = 0, partition: int = -1, size: int = 0
) -> None:
    """Publishes records whose values are numbers."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 5, "partitioner": "murmur2_random"})
    for number in range(start, stop):
        key = b"key-%d" % (number % keys) if keys else None
        producer.produce(
            topic,
            value=(b"%d" % number).ljust(size),
            key=key,
            partition=partition,
            headers={"n": str(number)} if number % 7 == 0 else None,
        )
        producer.poll(0)
    assert producer.flush(60) == 0


def consumed(address: str, topic: str, count: int, seconds: float = 60.0) -> dict[int, list[Any]]:
    """At least `count` records of a topic by partition, and what comes until its end."""
    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": f"look-{time.monotonic_ns()}", "auto.offset.reset": "earliest",
         "enable.partition.eof": True, "enable.auto.commit": False}
    )  # fmt: skip
    found: dict[int, list[Any]] = {}
    total = 0
    ended: set[int] = set()
    consumer.subscribe([topic])
    deadline = time.monotonic() + seconds
    try:
        while True:
            message: Any
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    found.setdefault(message.partition(), []).append(message)
                    ended.discard(message.partition())
                    total += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
            if total >= count and len(ended) >= len(consumer.assignment()) > 0:
                return found
            assert time.monotonic() < deadline, f"{total} of {count} records in {seconds} s"
    finally:
        consumer.close()


def wait(condition: Callable[[], object], what: str, seconds: float = 60.0, every_seconds: float = 0.05) -> None:
    """Waits for a condition, and looks every so often: seldom, where a look opens connections."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain for {what}"
        pause.wait(every_seconds)
