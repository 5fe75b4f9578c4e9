"""Kills a served namespace at random instants while producers send into an event hub and a consumer reads it.

E1. What was acknowledged is there exactly once; what was not, at most once.
E2. A batch is there as a whole or not at all, its events next to each other.
E3. Sequence numbers have no gaps, offsets ascend, and the order of a partition is the order of sending.
E4. What a consumer read before the kill is at the same sequence number and offset after it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.client.fault_client import connected
from isthmus.amqp import BATCH_FORMAT, codec, section
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Receiver, Sender
from isthmus.transport.sender import envelope

CONFIG = """
event_hubs:
  hub: {partition_count: 2}
"""
ROUNDS = 40
BATCH = 20
AHEAD = 10

Place = tuple[int, int]  # partition, sequence number


class Producer:
    """Sends numbered events, batches of 20 or single ones, and notes which were acknowledged."""

    def __init__(self, mark: str, batch: int) -> None:
        self.mark = mark
        self.batch = batch
        self.next = 0
        self.acked: set[int] = set()

    def run(self, ns: NamespaceProcess, stop: threading.Event) -> None:
        units: list[range] = []
        with connected(ns, "hub") as client:
            sender = Sender(client, "hub").wait_ready()
            while not stop.is_set() and client.error is None and sender.error is None:
                if sender.outstanding < AHEAD:
                    unit = range(self.next, self.next + self.batch)
                    self.next = unit.stop
                    units.append(unit)
                    events = [section.encode_message(f"{self.mark} {number}".encode()) for number in unit]
                    if self.batch > 1:
                        sender.send([envelope(events)], message_format=BATCH_FORMAT)
                    else:
                        sender.send(events)
                client.wait(0.001)
                while sender.outcomes:
                    first, last, error = sender.outcomes.popleft()
                    assert error is None, error
                    for ordinal in range(first, last + 1):
                        self.acked.update(units[ordinal])


class Consumer:
    """Reads both partitions from their start, and notes what was where."""

    def __init__(self) -> None:
        self.seen: dict[Place, tuple[int, str]] = {}
        self.faults: list[str] = []

    def run(self, ns: NamespaceProcess, stop: threading.Event) -> None:
        paths = [f"hub/ConsumerGroups/$Default/Partitions/{index}" for index in range(2)]
        with connected(ns, *paths) as client:
            receivers = [Receiver(client, path, settled=True).wait_attached() for path in paths]
            counts = [0, 0]
            while not stop.is_set() and client.error is None:
                for index, receiver in enumerate(receivers):
                    if receiver.credit < 500:
                        receiver.grant(1000)
                    for run in receiver.take():
                        for payload in run.payloads:
                            self.note(index, counts[index], payload)
                            counts[index] += 1
                client.wait(0.005)

    def note(self, partition: int, expected: int, payload: bytes) -> None:
        found = section.locate(payload)
        marks = section.decode_map(payload, found.message_annotations)
        sequence, offset = int(marks["x-opt-sequence-number"]), int(marks["x-opt-offset"])
        body = codec.decode(payload, found.body[0] + 3)[0].decode()
        if sequence != expected:
            self.faults.append(f"partition {partition}: {sequence} where {expected} was expected")
        if self.seen.setdefault((partition, sequence), (offset, body)) != (offset, body):
            self.faults.append(f"partition {partition}: {sequence} was {self.seen[partition, sequence]}, is {body}")


def check(consumer: Consumer, producers: list[Producer]) -> list[str]:
    faults = list(consumer.faults)
    by_key: dict[str, Place] = {}
    for partition in range(2):
        in_order = [consumer.seen[key] for key in sorted(consumer.seen) if key[0] == partition]
        if [offset for offset, _ in in_order] != sorted({offset for offset, _ in in_order}):
            faults.append(f"partition {partition}: offsets do not ascend")
        for producer in producers:
            numbers = [int(body.split()[1]) for _, body in in_order if body.split()[0] == producer.mark]
            if numbers != sorted(numbers):
                faults.append(f"partition {partition}: {producer.mark} out of order")
    for key, (_, body) in consumer.seen.items():
        if body in by_key:
            faults.append(f"{body} is there twice: {by_key[body]} and {key}")
        by_key[body] = key
    for producer in producers:
        lost = [number for number in producer.acked if f"{producer.mark} {number}" not in by_key]
        if lost:
            faults.append(f"{producer.mark}: {len(lost)} acknowledged and lost, e.g. {lost[:5]}")
        for start in range(0, producer.next, producer.batch):
            unit = [by_key.get(f"{producer.mark} {number}") for number in range(start, start + producer.batch)]
            first = unit[0]
            whole = first is not None and unit == [(first[0], first[1] + at) for at in range(producer.batch)]
            if unit != [None] * producer.batch and not whole:
                faults.append(f"{producer.mark}: the batch from {start} on is torn")
    return faults


def test_what_was_acknowledged_survives_kill_9(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    producers = [Producer("batched", BATCH), Producer("single", 1)]
    consumer = Consumer()
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        for round_number in range(long_count(ROUNDS)):
            before = [len(producer.acked) for producer in producers]
            stop = threading.Event()
            errors: list[Any] = []

            def guarded(job: Callable[..., None], stop: threading.Event = stop, errors: list[Any] = errors) -> None:
                try:
                    job(ns, stop)
                except IsthmusError:
                    pass  # the namespace was killed under it
                except BaseException as error:  # noqa: BLE001 - shown by the test's own thread
                    errors.append(error)

            threads = [threading.Thread(target=guarded, args=(each.run,)) for each in (*producers, consumer)]
            for thread in threads:
                thread.start()
            limit = time.monotonic() + 60
            while any(len(p.acked) < b + 200 for p, b in zip(producers, before, strict=True)):
                assert time.monotonic() < limit, ("the load does not get under way", errors)
                time.sleep(0.02)
            time.sleep(chance.uniform(0.0, 0.5))
            ns.kill()
            stop.set()
            for thread in threads:
                thread.join(30)
            assert errors == []
            ready = ns.start()
            read_all(ns, consumer)
            faults = check(consumer, producers)
            acked = sum(len(producer.acked) for producer in producers)
            print(f"round {round_number}: {acked} acknowledged in all, ready after {ready:.2f} s")
            assert not faults, faults[:20]
        counted(
            f"{long_count(ROUNDS)} kills while an event hub is written and read",
            f"{long_count(ROUNDS)} kills, {acked} events acknowledged, {len(consumer.seen)} read, seed {seed}",
        )
        assert "Traceback" not in ns.log()


def read_all(ns: NamespaceProcess, consumer: Consumer) -> None:
    """Reads what is there after the kill; complete once the marks that are sent last have come."""
    with connected(ns, "hub/Partitions/0", "hub/Partitions/1") as client:
        for index in range(2):
            mark = f"end-{index}-{time.monotonic_ns()} 0"
            Sender(client, f"hub/Partitions/{index}").wait_ready().send_all([section.encode_message(mark.encode())])
    wanted = sum(body.startswith("end-") for _, body in consumer.seen.values()) + 2  # before the reader adds to them
    stop = threading.Event()
    reader = threading.Thread(target=consumer.run, args=(ns, stop))
    reader.start()
    limit = time.monotonic() + 60
    marks = 0
    while marks < wanted:
        assert time.monotonic() < limit, "the marks do not come"
        time.sleep(0.05)
        marks = sum(body.startswith("end-") for _, body in list(consumer.seen.values()))
    stop.set()
    reader.join(30)
