"""How long a message takes from its sender, through Spark, to its receiver.

What it is: a paced load in one process, a receiver in this one, a route between two namespaces. The time runs from just
before the send to the receipt, on one clock.
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

__all__ = ["measure_latency", "percentile"]

# The virtual machine still compiles while the first messages pass.
WARM_UP_SECONDS = 10.0
_SPARE_SECONDS = 60.0


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
        waits: list[float] = []
        seen: set[int] = set()

        def note(payload: bytes, now: float) -> None:
            nonlocal before, begin
            sent, ordinal = stamp_of(payload)
            seen.add(ordinal)
            begin = begin or sent + WARM_UP_SECONDS
            if sent < begin:
                return
            if not waits:
                before = account.read()
            waits.append((now - sent) * 1000)

        def over() -> bool:
            return len(seen) >= total or time.monotonic() > limit or load.poll() not in (None, 0)

        listen(target.connection_string, queues, note, over)
        after = account.read()
        load.wait()
        if len(seen) < total:
            raise OperationTimeoutError(f"{len(seen)} of {total} messages arrived in time")
    waits.sort()
    cost = cpu_us_per_message(before, after, len(waits))
    cpu_us = cost.pop("total")
    spark = [usage for name, usage in after.items() if name not in account.trees]
    return {
        "rate": rate,
        "routes": routes,
        "seconds": seconds,
        "messages": len(waits),
        "p50_ms": round(percentile(waits, 0.5), 2),
        "p99_ms": round(percentile(waits, 0.99), 2),
        "p99_9_ms": round(percentile(waits, 0.999), 2),
        "max_ms": round(waits[-1], 2),
        "cpu_us_per_message": cpu_us,
        "cpu_us_by_process": cost,
        "cpu_cores": round(cpu_us * rate * routes / 1e6, 3),
        "resident_bytes": sum(usage.resident_bytes for usage in after.values()),
        "processes": sum(usage.processes for usage in after.values()),
        "spark_resident_bytes_per_route": sum(usage.resident_bytes for usage in spark) // routes,
        "spark_shared_out_bytes_per_route": sum(usage.shared_out_bytes for usage in spark) // routes,
        "spark_processes_per_route": round(sum(usage.processes for usage in spark) / routes, 1),
    }
