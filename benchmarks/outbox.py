"""Measures `isthmus.client.DurableSender` and the fail-over of `ReplicatedSender`: `python benchmarks/outbox.py [MESSAGES]`.

Prints one JSON object. Ratios within one run compare; numbers of different runs do not.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from isthmus.client import DurableSender, ReplicatedSender
from isthmus.client.send.parcel import Parcel
from isthmus.testing.namespace import NamespaceProcess, namespace

BODY = b"x" * 1024
CONFIG = "queues: {orders: {max_size_in_megabytes: 5120}}"
THREADS = 32
LIST = 100
ROUNDS = 3


def rate(count: int, work: Callable[[], object]) -> float:
    """Messages per second of wall time."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def in_threads(count: int, threads: int, work: Callable[[int], None]) -> Callable[[], None]:
    """Work for so many messages, shared by threads."""

    def run() -> None:
        started = [threading.Thread(target=work, args=(count // threads,)) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()

    return run


def to_disk(ns: NamespaceProcess, folder: Path, count: int) -> dict[str, float]:
    """Messages per second until the disk has them: one a call and a list a call, and SQLite with lists of the same length."""
    found: dict[str, float] = {}
    messages = [ServiceBusMessage(BODY) for _ in range(LIST)]
    for name, threads, group in (("single calls", THREADS, messages[:1]), ("lists", 4, messages)):
        with DurableSender(ns.connection_string, "orders", folder / name.replace(" ", "-"), drain=False) as sender:

            def send(share: int, group: list[ServiceBusMessage] = group, sender: DurableSender = sender) -> None:
                for _ in range(share // len(group)):
                    sender.send_messages(group)

            found[f"{name}, {threads} threads"] = rate(count, in_threads(count, threads, send))
            found[f"{name}, syncs"] = sender.statistics().syncs
    connection = sqlite3.connect(folder / "compared.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE messages (number INTEGER PRIMARY KEY, payload BLOB)")

    def insert() -> None:
        for _ in range(count // LIST):
            payloads = Parcel.of(messages).payloads
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany("INSERT INTO messages (payload) VALUES (?)", [(each,) for each in payloads])
            connection.execute("COMMIT")

    found["SQLite WAL, lists, 1 thread"] = rate(count, insert)
    connection.close()
    return found


def end_to_end(ns: NamespaceProcess, folder: Path, count: int) -> dict[str, Any]:
    """Until the namespace has acknowledged everything: the SDK's sender, and a durable one, alternately."""
    rates: dict[str, list[float]] = {"direct": [], "durable": []}
    with (
        ServiceBusClient.from_connection_string(ns.connection_string) as client,
        client.get_queue_sender("orders") as direct,
        DurableSender(ns.connection_string, "orders", folder / "both") as durable,
    ):

        def send(sender: Any) -> None:
            for _ in range(count // LIST):
                sender.send_messages([ServiceBusMessage(BODY) for _ in range(LIST)])
            if isinstance(sender, DurableSender):
                sender.flush()

        for sender in (direct, durable):
            sender.send_messages(ServiceBusMessage(BODY))
        durable.flush()
        for _ in range(ROUNDS):
            rates["direct"].append(rate(count, lambda: send(direct)))
            rates["durable"].append(rate(count, lambda: send(durable)))
    ratio = median(each / beside for each, beside in zip(rates["durable"], rates["direct"], strict=True))
    return {**{name: round(median(values)) for name, values in rates.items()}, "ratio": round(ratio, 2)}


def fail_over() -> list[float]:
    """Seconds from the call after the primary hung until the secondary took the message."""
    found = []
    for _ in range(ROUNDS):
        with namespace(config=CONFIG) as west, namespace(config=CONFIG) as east:
            with ReplicatedSender(west.connection_string, east.connection_string, "orders", mode="passive") as sender:
                sender.send_messages(ServiceBusMessage(BODY))
                time.sleep(2)
                os.kill(west.pid, signal.SIGSTOP)
                began = time.perf_counter()
                result = sender.send_messages(ServiceBusMessage(BODY))
                found.append(round(time.perf_counter() - began, 3))
                os.kill(west.pid, signal.SIGCONT)
            assert result.taken == ("secondary",)
    return found


def main(count: int) -> None:
    """Everything, once."""
    logging.getLogger("azure").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as name, namespace(config=CONFIG) as ns:
        disk = {name: round(value) for name, value in to_disk(ns, Path(name), count).items()}
        both = end_to_end(ns, Path(name), count // 4)
    print(
        json.dumps(
            {
                "messages": count,
                "to disk, per second": disk,
                "end to end, per second": both,
                "fail-over, seconds": fail_over(),
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40_000)
