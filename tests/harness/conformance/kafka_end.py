"""Kafka as an end of the conformance suite: one real broker, with new topics for each scenario."""

from __future__ import annotations

import itertools
import signal
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from harness.server.kafka_broker import KafkaBroker
from isthmus.connectors.kafka.cluster import ONE_BY_ONE
from isthmus.connectors.kafka.mapping.mapping import Record, to_message, to_record
from isthmus.testing.bridge.message import key_of, message, number_of
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.proxy import Proxy

__all__ = ["KafkaEnd"]

LANES = 2
LIMIT_BYTES = 100_000
LARGE_BYTES = 4 << 20
HOST = b"127.0.0.1"
PATIENCE_SECONDS = 30.0

_Found = TypeVar("_Found")


class KafkaEnd:
    """A broker, on which a source has two partitions, and a target as many as its source has lanes.

    Args:
        broker: which runs.
    """

    kind = "kafka"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.RESTARTS})
    target_abilities = frozenset({Ability.LIMITS_SIZE, Ability.RESTARTS})
    too_large = 2 * LIMIT_BYTES
    lanes = LANES
    lock_seconds = 0.0
    wait_seconds = 40.0

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker = broker
        self._looks: dict[str, _Look] = {}
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "linger.ms": 2,
                **ONE_BY_ONE,
                "message.max.bytes": LARGE_BYTES,
            }
        )
        self._ends = struct.pack(">i", int(broker.address.rpartition(":")[2]))

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a topic, and for a source one for its dead letters."""
        limit = LIMIT_BYTES if settings.get("limits_size") else LARGE_BYTES
        lanes = settings["lanes"]
        self._broker.create(entity, lanes, max_message_bytes=str(limit))
        options = {"topic": entity, "bootstrap_servers": "none:1"}
        dead = ""
        if side == "source":
            dead = self._broker.create(f"{entity}.dead", 1, max_message_bytes=str(LARGE_BYTES))
            options |= {"group": entity, "member": entity, "session_seconds": "6", "dead_letter_topic": dead}
        self._looks[entity] = _Look(self._broker.address, entity, lanes, dead)
        return options

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before the broker, which announces its own address instead of the broker's."""
        made = Proxy(int(self._broker.address.rpartition(":")[2]), rewrite=self._rewrite)
        return made, {"bootstrap_servers": f"127.0.0.1:{made.port}", "kafka.reconnect.backoff.max.ms": "500"}

    def _rewrite(self, data: bytes, port: int) -> bytes:
        """Metadata of the broker: its host, then its port in four bytes (Apache Kafka protocol, Metadata response)."""
        return data.replace(HOST + self._ends, HOST + struct.pack(">i", port))

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Produces records."""
        failed: list[KafkaError] = []
        for key in keys:
            record = to_record(message(key, body))
            self._producer.produce(
                entity,
                value=record.value,
                headers=list(record.headers),
                timestamp=record.timestamp_ms or 0,
                partition=number_of(key) % self.lanes,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
        assert self._producer.flush(60) == 0
        assert not failed, failed

    def arrived(self, entity: str) -> Sequence[str]:
        """What is in the topic."""
        return [key for key, _ in self._looks[entity].records()]

    def left(self, entity: str) -> int:
        """What the group has not committed."""
        return self._looks[entity].lag()

    def dead(self, entity: str) -> dict[str, str]:
        """What is in its dead-letter topic."""
        return dict(self._looks[entity].dead())

    def refuse(self, entity: str, refuses: bool) -> None:
        """A broker has no such state."""
        raise NotImplementedError("waived: Ability.REFUSES")

    def restart(self) -> None:
        """Kills the broker, and starts it again."""
        self._broker.stop(signal.SIGKILL)
        self._broker.start()

    def release(self, entity: str) -> None:
        """Ends the consumers that looked at a topic: each would fetch from it fifty times a second."""
        look = self._looks.pop(entity, None)
        if look is not None:
            look.close()

    def close(self) -> None:
        """Ends all but the broker."""
        for look in self._looks.values():
            look.close()


class _Look:
    """Reads a topic from its beginning, and asks how far its group is."""

    _numbers = itertools.count(1)

    def __init__(self, address: str, topic: str, partitions: int, dead: str) -> None:
        self._address, self._topic, self._dead_topic = address, topic, dead
        self._partitions = [TopicPartition(topic, number) for number in range(partitions)]
        self._lock = threading.Lock()
        self._readers: dict[str, Any] = {}
        self._found: dict[str, list[tuple[str, str]]] = {}
        self._group: Any = None

    def records(self) -> list[tuple[str, str]]:
        """Keys and reasons of what is there."""
        with self._lock:
            return self._asked(lambda: self._read(self._topic, len(self._partitions)))

    def dead(self) -> list[tuple[str, str]]:
        """The same of its dead letters."""
        with self._lock:
            return self._asked(lambda: self._read(self._dead_topic, 1)) if self._dead_topic else []

    def _asked(self, question: Callable[[], _Found]) -> _Found:
        """The answer; a broker that was restarted, or is busy, is asked again: what it could not say is not what is not there."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return question()
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _read(self, topic: str, partitions: int) -> list[tuple[str, str]]:
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = self._consumer(f"look-{next(self._numbers)}")
            reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
            self._found[topic] = []
        found = self._found[topic]
        ends = [reader.get_watermark_offsets(each, timeout=10)[1] for each in _of(topic, partitions)]
        while sum(max(each.offset, 0) for each in reader.position(_of(topic, partitions))) < sum(ends):
            for each in reader.consume(500, 0.1):
                if each.error() is None:
                    timestamp_ms = each.timestamp()[1]
                    record = Record(each.value(), each.key(), each.headers() or (), timestamp_ms, each.partition())
                    headers = dict(each.headers() or ())
                    reason = headers.get("isthmus-dead-letter-reason", b"") or b""
                    found.append((key_of(to_message(record)), reason.decode()))
        return list(found)

    def lag(self) -> int:
        """Records that the group has not committed."""
        with self._lock:
            return self._asked(self._lag)

    def _lag(self) -> int:
        if self._group is None:
            self._group = self._consumer(self._topic)
        committed = self._group.committed(self._partitions, timeout=10)
        failed = [each.error for each in committed if each.error is not None]
        if failed:
            raise KafkaException(failed[0])
        ends = [self._group.get_watermark_offsets(each, timeout=10)[1] for each in self._partitions]
        return sum(end - max(each.offset, 0) for each, end in zip(committed, ends, strict=True))

    def _consumer(self, group: str) -> Any:
        return Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 20,
                "log_level": 0,
            }
        )

    def close(self) -> None:
        """Ends it."""
        for reader in (*self._readers.values(), self._group):
            if reader is not None:
                reader.close()


def _of(topic: str, partitions: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(partitions)]
