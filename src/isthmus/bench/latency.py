"""How long a message takes from its sender, through Spark, to its receiver.

What it is: a paced load in one process, a receiver in this one, a route between two namespaces. The time runs from just
before the send to the receipt, on one clock. Leases are made short enough that at least three end while it measures, and
counted by what Spark has committed. Afterwards nothing moves for a while, a few times, and then a single message.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from isthmus.bench.bridge import bench_namespaces, spark_routes
from isthmus.bench.driver import queue_name
from isthmus.bench.load import drain, fill, listen, stamp_of
from isthmus.bench.process import Account, cpu_us_per_message
from isthmus.errors import OperationTimeoutError
from isthmus.testing.namespace import NamespaceProcess

__all__ = ["measure_latency", "percentile"]

# The virtual machine still compiles while the first messages pass.
WARM_UP_SECONDS = 10.0
_SPARE_SECONDS = 60.0
# Three whole leases and the rest of another fit the time.
LEASES_IN_TIME = 3.4
LONGEST_LEASE_SECONDS = 300.0
IDLE_SECONDS = 2.0
WAKES = 5


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of an ascending sequence lies; 0 of an empty one."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def measure_latency(
    folder: Path, rate: float, seconds: float, *, routes: int = 1, options: Sequence[str] = ()
) -> dict[str, object]:
    """Send at a steady rate and tell the distribution of times from send to receipt.

    Args:
        folder: where both namespaces and Spark keep their files.
        rate: messages per second on each route.
        seconds: how long to measure, after a warm-up.
        routes: how many routes run at once.
        options: `name=value` for the source (or `spark.…=value` for the session).

    Raises:
        OperationTimeoutError: if messages are missing a minute after the last was sent.
    """
    queues = [queue_name(route) for route in range(routes)]
    total = int(rate * routes * (WARM_UP_SECONDS + seconds))
    lease_seconds = min(LONGEST_LEASE_SECONDS, round(seconds / LEASES_IN_TIME, 1))
    options = [f"lease_seconds={lease_seconds}", *options]
    leases = _Leases(folder)
    with (
        bench_namespaces(folder, routes) as (source, target),
        spark_routes(source, target, folder, routes=routes, options=options) as driver,
    ):
        account = Account({"source": source.pid, "target": target.pid}, spark=driver.pid)
        for queue in queues:  # Spark starts its workers for the first message; that is not what is measured
            fill(source.connection_string, queue, 1, batches=False)
            drain(target.connection_string, queue, 1)
        load = subprocess.Popen(
            [sys.executable, "-m", "isthmus.bench.load", str(rate), str(WARM_UP_SECONDS + seconds), *queues],
            env={**os.environ, "BENCH_LOAD": source.connection_string},
        )
        limit = time.monotonic() + WARM_UP_SECONDS + seconds + _SPARE_SECONDS
        begin = 0.0
        before = account.read()
        ended_before = 0
        waits: list[float] = []
        seen: set[int] = set()

        def note(payload: bytes, now: float) -> None:
            nonlocal before, begin, ended_before
            sent, ordinal = stamp_of(payload)
            seen.add(ordinal)
            begin = begin or sent + WARM_UP_SECONDS
            if sent < begin:
                return
            if not waits:
                before, ended_before = account.read(), leases.ended()
            waits.append((now - sent) * 1000)

        def over() -> bool:
            return len(seen) >= total or time.monotonic() > limit or load.poll() not in (None, 0)

        listen(target.connection_string, queues, note, over)
        after = account.read()
        changes = leases.ended() - ended_before
        load.wait()
        if len(seen) < total:
            raise OperationTimeoutError(f"{len(seen)} of {total} messages arrived in time")
        wakes = [_wake(source, target, queues[0]) for _ in range(WAKES)]
    waits.sort()
    cost = cpu_us_per_message(before, after, len(waits))
    cpu_us = cost.pop("total")
    spark = [usage for name, usage in after.items() if name not in account.trees]
    return {
        "rate": rate,
        "routes": routes,
        "seconds": seconds,
        "lease_changes": changes,
        "messages": len(waits),
        "p50_ms": round(percentile(waits, 0.5), 2),
        "p99_ms": round(percentile(waits, 0.99), 2),
        "p99_9_ms": round(percentile(waits, 0.999), 2),
        "max_ms": round(waits[-1], 2),
        "idle_p50_ms": round(percentile(sorted(wakes), 0.5), 1),
        "idle_max_ms": round(max(wakes), 1),
        "cpu_us_per_message": cpu_us,
        "cpu_us_by_process": cost,
        "cpu_cores": round(cpu_us * rate * routes / 1e6, 3),
        "resident_bytes": sum(usage.resident_bytes for usage in after.values()),
        "processes": sum(usage.processes for usage in after.values()),
        "spark_resident_bytes_per_route": sum(usage.resident_bytes for usage in spark) // routes,
        "spark_shared_out_bytes_per_route": sum(usage.shared_out_bytes for usage in spark) // routes,
        "spark_processes_per_route": round(sum(usage.processes for usage in spark) / routes, 1),
    }


class _Leases:
    """Counts the leases that have ended, by the numbers under which Spark notes the end of each."""

    def __init__(self, folder: Path) -> None:
        self._checkpoint = folder / "checkpoint"

    def ended(self) -> int:
        """How many leases have ended."""
        numbers = [int(entry.name) for entry in self._checkpoint.glob("commits/[0-9]*") if entry.name.isdigit()]
        return max(numbers, default=-1) + 1


def _wake(source: NamespaceProcess, target: NamespaceProcess, queue: str) -> float:
    """Waits while nothing moves, then sends one message; milliseconds until it arrives."""
    time.sleep(IDLE_SECONDS)
    limit = time.monotonic() + _SPARE_SECONDS
    load = subprocess.Popen(
        [sys.executable, "-m", "isthmus.bench.load", "1", "1", queue],
        env={**os.environ, "BENCH_LOAD": source.connection_string},
    )
    waits: list[float] = []

    def note(payload: bytes, now: float) -> None:
        waits.append((now - stamp_of(payload)[0]) * 1000)

    listen(target.connection_string, [queue], note, lambda: bool(waits) or time.monotonic() > limit)
    load.wait()
    if not waits:
        raise OperationTimeoutError("the message to an idle route did not arrive in time")
    return waits[0]
