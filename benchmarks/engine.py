"""How fast the engine takes, hands out and settles messages, without any network; prints one JSON object.

Figures are microseconds of CPU per message: of the engine's own thread (``*_us``) and of the whole process (``cpu_us``:
RocksDB's threads included); ``wall_us`` is what passed on the clock. Run it on a quiet machine: ``python benchmarks/engine.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from isthmus.amqp import section
from isthmus.clock import SystemClock
from isthmus.entities import (
    Engine,
    Limits,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.store import RocksJournal

_LIMITS = Limits(max_entity_size_megabytes=1 << 20)
_QUOTA_MEGABYTES = 1 << 20


def _messages(count: int, body_bytes: int) -> list[bytes]:
    body = os.urandom(body_bytes)
    return [
        section.encode_message(
            body,
            header=section.Header(durable=True),
            annotations={"x-opt-partition-key": "pk-000017"},
            properties={
                "message_id": f"message-{number:09d}",
                "subject": "flight.updated",
                "content_type": "application/json",
            },
            application_properties={"region": "westeurope", "attempt": 3, "kind": "booking"},
        )
        for number in range(count)
    ]


class _Bench:
    def __init__(self, folder: Path) -> None:
        self.store = RocksJournal(folder)
        self.engine = Engine(self.store, SystemClock(), limits=_LIMITS)
        self.pool = ThreadPoolExecutor(1)
        self.process = psutil.Process()

    def commit(self) -> None:
        commit = self.engine.begin_commit()
        self.pool.submit(self.store.sync).result()
        if commit is not None:
            self.engine.end_commit(commit)

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system

    def fill(self, path: str, messages: list[bytes], batch: int) -> dict[str, float]:
        sender = self.engine.sender(path)
        accept_seconds = write_seconds = 0.0
        cpu, start = self.cpu_seconds(), time.perf_counter()
        for at in range(0, len(messages), batch):
            a = time.thread_time()
            sender.accept(messages[at : at + batch])
            b = time.thread_time()
            commit = self.engine.begin_commit()
            c = time.thread_time()
            self.pool.submit(self.store.sync).result()
            d = time.thread_time()
            if commit is not None:
                self.engine.end_commit(commit)
            write_seconds += c - b + time.thread_time() - d
            accept_seconds += b - a
        count = len(messages)
        return {
            "accept_us": round(accept_seconds / count * 1e6, 2),
            "write_us": round(write_seconds / count * 1e6, 2),
            "wall_us": round((time.perf_counter() - start) / count * 1e6, 2),
            "cpu_us": round((self.cpu_seconds() - cpu) / count * 1e6, 2),
        }

    def drain(self, path: str, batch: int) -> dict[str, float]:
        queue = self.engine.receiver(path)
        acquire_seconds = complete_seconds = commit_seconds = 0.0
        count = 0
        cpu = self.cpu_seconds()
        while True:
            a = time.thread_time()
            acquired = queue.acquire(batch)
            b = time.thread_time()
            if acquired is None:
                break
            queue.complete(acquired.tags)
            c = time.thread_time()
            self.commit()
            commit_seconds += time.thread_time() - c
            acquire_seconds += b - a
            complete_seconds += c - b
            count += len(acquired.tags)
        return {
            "count": count,
            "acquire_us": round(acquire_seconds / count * 1e6, 2),
            "complete_us": round(complete_seconds / count * 1e6, 2),
            "commit_us": round(commit_seconds / count * 1e6, 2),
            "cpu_us": round((self.cpu_seconds() - cpu) / count * 1e6, 2),
        }

    def live(self, path: str, messages: list[bytes], batch: int) -> dict[str, float]:
        """Accept, commit, acquire and complete in turn: a receiver that keeps up."""
        queue = self.engine.receiver(path)
        queue.add_listener(_ignore)
        seconds = [0.0] * 4
        for at in range(0, len(messages), batch):
            marks = [time.thread_time()]
            self.engine.sender(path).accept(messages[at : at + batch])
            marks.append(time.thread_time())
            self.commit()
            marks.append(time.thread_time())
            acquired = queue.acquire(batch)
            assert acquired is not None
            marks.append(time.thread_time())
            queue.complete(acquired.tags)
            marks.append(time.thread_time())
            seconds = [total + marks[i + 1] - marks[i] for i, total in enumerate(seconds)]
        queue.remove_listener(_ignore)
        self.commit()
        names = ("accept_us", "commit_us", "acquire_us", "complete_us")
        return {name: round(total / len(messages) * 1e6, 2) for name, total in zip(names, seconds, strict=True)}


def _ignore() -> None:
    """A listener that shows that a receiver waits."""


def main() -> None:
    """Run all parts and print the object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--body-bytes", type=int, default=900)
    parser.add_argument("--folder", type=Path, help="where to put the store (default: a temporary folder)")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        bench = _Bench(folder / "store")
        big = QueueDescription(max_size_in_megabytes=_QUOTA_MEGABYTES)
        bench.engine.create_queue("plain", big)
        bench.engine.create_queue(
            "detecting", QueueDescription(max_size_in_megabytes=_QUOTA_MEGABYTES, requires_duplicate_detection=True)
        )
        bench.engine.create_queue(
            "expiring",
            QueueDescription(max_size_in_megabytes=_QUOTA_MEGABYTES, default_message_time_to_live_ms=3_600_000),
        )
        bench.engine.create_topic("topic", TopicDescription(max_size_in_megabytes=_QUOTA_MEGABYTES))
        for name in ("one", "two"):
            bench.engine.create_subscription("topic", name, SubscriptionDescription())
        bench.engine.create_topic("marked", TopicDescription(max_size_in_megabytes=_QUOTA_MEGABYTES))
        rule = RuleDescription(
            "replicate", SqlFilter("replication IS NULL OR replication <> 1"), SqlAction("SET replication = 1")
        )
        bench.engine.create_subscription("marked", "away", default_rule=rule)
        bench.commit()
        messages = _messages(arguments.messages, arguments.body_bytes)
        few = messages[: max(1, len(messages) // 4)]
        result: dict[str, object] = {"messages": len(messages), "message_bytes": len(messages[0])}
        result["accept"] = bench.fill("plain", messages, arguments.batch)
        result["drain"] = bench.drain("plain", arguments.batch)
        result["live"] = bench.live("plain", messages, arguments.batch)
        result["accept_detecting"] = bench.fill("detecting", few, arguments.batch)
        result["accept_expiring"] = bench.fill("expiring", few, arguments.batch)
        result["accept_topic_of_two"] = bench.fill("topic", few, arguments.batch)
        result["accept_topic_with_action"] = bench.fill("marked", few, arguments.batch)
        result["resident_bytes"] = bench.process.memory_info().rss
        bench.engine.close()
        bench.store.close()
        print(json.dumps(result))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
