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

from isthmus.bench.bridge import SOURCE_QUEUE, TARGET_QUEUE, bench_namespaces, spark_route
from isthmus.bench.load import listen, stamp_of
from isthmus.bench.process import Account, cpu_us_per_message
from isthmus.errors import OperationTimeoutError

__all__ = ["measure_latency", "percentile"]

# Spark compiles and Python workers start while the first messages pass.
WARM_UP_SECONDS = 15.0
_SPARE_SECONDS = 60.0


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of an ascending sequence lies; 0 of an empty one."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def measure_latency(folder: Path, rate: float, seconds: float, options: Sequence[str] = ()) -> dict[str, object]:
    """Send at a steady rate and tell the distribution of times from send to receipt.

    Args:
        folder: where both namespaces and Spark keep their files.
        rate: messages per second.
        seconds: how long to measure, after a warm-up.
        options: `name=value` for the source (or `spark.…=value` for the session).

    Raises:
        OperationTimeoutError: if messages are missing a minute after the last was sent.
    """
    total = int(rate * (WARM_UP_SECONDS + seconds))
    with (
        bench_namespaces(folder) as (source, target),
        spark_route(source, target, folder, options) as route,
    ):
        account = Account({"source": source.pid, "target": target.pid}, spark=route.pid)
        load = subprocess.Popen(
            [sys.executable, "-m", "isthmus.bench.load", SOURCE_QUEUE, str(rate), str(WARM_UP_SECONDS + seconds)],
            env={**os.environ, "BENCH_LOAD": source.connection_string},
        )
        begin = time.monotonic() + WARM_UP_SECONDS
        limit = begin + seconds + _SPARE_SECONDS
        before = account.read()
        waits: list[float] = []
        seen: set[int] = set()

        def note(payload: bytes, now: float) -> None:
            nonlocal before
            sent, ordinal = stamp_of(payload)
            if not waits and sent >= begin:
                before = account.read()
            if sent >= begin:
                waits.append((now - sent) * 1000)
            seen.add(ordinal)

        listen(
            target.connection_string,
            TARGET_QUEUE,
            note,
            lambda: len(seen) >= total or time.monotonic() > limit,
        )
        after = account.read()
        load.wait()
        if len(seen) < total:
            raise OperationTimeoutError(f"{len(seen)} of {total} messages arrived within {limit - begin:.0f} s")
    waits.sort()
    cost = cpu_us_per_message(before, after, len(waits))
    cpu_us = cost.pop("total")
    return {
        "rate": rate,
        "seconds": seconds,
        "messages": len(waits),
        "p50_ms": round(percentile(waits, 0.5), 2),
        "p99_ms": round(percentile(waits, 0.99), 2),
        "p99_9_ms": round(percentile(waits, 0.999), 2),
        "max_ms": round(waits[-1], 2),
        "cpu_us_per_message": cpu_us,
        "cpu_us_by_process": cost,
        "cpu_cores": round(cpu_us * rate / 1e6, 3),
        "resident_bytes": sum(usage.resident_bytes for usage in after.values()),
        "processes": sum(usage.processes for usage in after.values()),
    }
