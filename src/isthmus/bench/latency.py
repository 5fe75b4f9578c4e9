"""How long a message takes from its sender, through Spark, to its receiver.

What it is: a paced load in one process, a receiver in this one, one query with its routes between two namespaces. The time runs
from just before the send to the receipt, on one clock. Two runs: in the first no lease ends, and afterwards single messages are
sent to an idle route; in the second, leases are short, and the longest time without an arrival is the pause at their ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from isthmus.bench.bridge import bench_namespaces, raise_if_ended, spark_routes
from isthmus.bench.driver import CHECKPOINT, queue_name
from isthmus.bench.load import listen, pace, stamp_of
from isthmus.bench.process import Account, Usage, cpu_us_per_message
from isthmus.errors import OperationTimeoutError
from isthmus.testing.namespace import NamespaceProcess

__all__ = ["gaps_ms", "measure_latency", "percentile", "spark_usage"]

# The virtual machine still compiles while the first messages pass.
WARM_UP_SECONDS = 10.0
_SPARE_SECONDS = 60.0
# How long routes may take to carry their first message.
START_SECONDS = 300.0
LEASE_OPTION = "lease_seconds"
# Of the run with short leases.
LEASE_SECONDS = 8.0
LEASES_IN_RUN = 3.4
IDLE_SECONDS = 2.0
WAKES = 5


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of an ascending sequence lies; 0 of an empty one."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


def gaps_ms(arrivals: Sequence[float]) -> list[float]:
    """The times between arrivals (seconds) that follow each other, ascending."""
    return sorted((behind - before) * 1000 for before, behind in pairwise(arrivals))


def measure_latency(
    folder: Path, rate: float, seconds: float, *, routes: int = 1, options: Sequence[str] = ()
) -> dict[str, object]:
    """Sends at a steady rate and returns the distribution of times from send to receipt.

    Args:
        folder: where both namespaces and Spark keep their files.
        rate: messages per second on each route.
        seconds: how long to measure, after a warm-up.
        routes: how many routes run at once.
        options: `name=value` for the source (or `spark.…=value` for the session); `lease_seconds` is that of the run with short
            leases.

    Raises:
        OperationTimeoutError: if messages are missing a minute after the last was sent.
    """
    queues = [queue_name(route) for route in range(routes)]
    lease = [option for option in options if option.startswith(f"{LEASE_OPTION}=")]
    others = [option for option in options if option not in lease]
    lease_seconds = float(lease[-1].partition("=")[2]) if lease else LEASE_SECONDS
    with bench_namespaces(folder, routes) as (source, target):
        result: dict[str, object] = {"rate": rate, "routes": routes, "seconds": seconds}
        result |= _without_lease_end(folder / "long", source, target, queues, rate, seconds, others)
        result |= _with_lease_ends(folder / "short", source, target, queues, rate, lease_seconds, others)
    return result


def _without_lease_end(
    folder: Path,
    source: NamespaceProcess,
    target: NamespaceProcess,
    queues: Sequence[str],
    rate: float,
    seconds: float,
    options: Sequence[str],
) -> dict[str, object]:
    folder.mkdir()
    began = time.monotonic()
    with spark_routes(source, target, folder, routes=len(queues), options=options) as driver:
        account = Account({"source": source.pid, "target": target.pid}, spark=driver.pid)
        _first_messages(source, target, queues, partial(raise_if_ended, driver, folder))
        start_seconds = time.monotonic() - began
        flow = _flow(source, target, queues, rate, seconds, account)
        wakes = sorted(_wake(source, target, queues[0]) for _ in range(WAKES))
    waits = sorted(flow.waits_ms)
    cost = cpu_us_per_message(flow.before, flow.after, len(waits))
    cpu_us = cost.pop("total")
    each_second = rate * len(queues) / 1e6
    return {
        "messages": len(waits),
        "p50_ms": round(percentile(waits, 0.5), 2),
        "p99_ms": round(percentile(waits, 0.99), 2),
        "p99_9_ms": round(percentile(waits, 0.999), 2),
        "max_ms": round(waits[-1], 2),
        "idle_p50_ms": round(percentile(wakes, 0.5), 1),
        "idle_max_ms": round(wakes[-1], 1),
        "start_seconds": round(start_seconds, 1),
        "cpu_us_per_message": cpu_us,
        "cpu_us_by_process": cost,
        "cpu_cores": round(cpu_us * each_second, 3),
        "spark_cores": round(sum(us for name, us in cost.items() if name not in account.trees) * each_second, 3),
        "resident_bytes": sum(usage.resident_bytes for usage in flow.after.values()),
        "processes": sum(usage.processes for usage in flow.after.values()),
        **spark_usage(flow.after, account.trees, len(queues)),
    }


def spark_usage(usage: Mapping[str, Usage], others: Mapping[str, int], routes: int) -> dict[str, object]:
    """Memory and processes of driver, Java and workers together.

    Args:
        usage: of all groups of processes.
        others: the groups that are not part of Spark.
        routes: how many routes they carry.
    """
    spark = {name: each for name, each in usage.items() if name not in others}
    resident_bytes = sum(each.resident_bytes for each in spark.values())
    shared_out_bytes = sum(each.shared_out_bytes for each in spark.values())
    processes = sum(each.processes for each in spark.values())
    return {
        "spark_shared_out_bytes": shared_out_bytes,
        "spark_shared_out_bytes_by_process": {name: each.shared_out_bytes for name, each in spark.items()},
        "spark_processes": processes,
        "spark_resident_bytes_per_route": resident_bytes // routes,
        "spark_shared_out_bytes_per_route": shared_out_bytes // routes,
        "spark_processes_per_route": round(processes / routes, 2),
    }


def _with_lease_ends(
    folder: Path,
    source: NamespaceProcess,
    target: NamespaceProcess,
    queues: Sequence[str],
    rate: float,
    lease_seconds: float,
    options: Sequence[str],
) -> dict[str, object]:
    folder.mkdir()
    wanted = [*options, f"{LEASE_OPTION}={lease_seconds}"]
    with spark_routes(source, target, folder, routes=len(queues), options=wanted) as driver:
        account = Account({}, spark=driver.pid)
        _first_messages(source, target, queues, partial(raise_if_ended, driver, folder))
        before = _leases_ended(folder)
        flow = _flow(source, target, queues, rate, lease_seconds * LEASES_IN_RUN, account)
        changes = _leases_ended(folder) - before
    gaps = gaps_ms(flow.arrivals)
    return {
        "lease_seconds": lease_seconds,
        "lease_changes": changes,
        "lease_pause_ms": round(gaps[-1], 1) if gaps else 0.0,
        "usual_gap_ms": round(percentile(gaps, 0.99), 1),
    }


@dataclass(slots=True)
class _Flow:
    """A paced load as it arrived, after the warm-up.

    Attributes:
        waits_ms: from send to receipt.
        arrivals: when, in monotonic seconds.
        before, after: the usage of processes at the first and the last arrival.
    """

    waits_ms: list[float] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)
    before: dict[str, Usage] = field(default_factory=dict)
    after: dict[str, Usage] = field(default_factory=dict)


def _flow(
    source: NamespaceProcess,
    target: NamespaceProcess,
    queues: Sequence[str],
    rate: float,
    seconds: float,
    account: Account,
) -> _Flow:
    total = int(rate * len(queues) * (WARM_UP_SECONDS + seconds))
    load = subprocess.Popen(
        [sys.executable, "-m", "isthmus.bench.load", str(rate), str(WARM_UP_SECONDS + seconds), *queues],
        env={**os.environ, "BENCH_LOAD": source.connection_string},
    )
    limit = time.monotonic() + WARM_UP_SECONDS + seconds + _SPARE_SECONDS
    flow, seen, begin = _Flow(), set[int](), 0.0

    def note(payload: bytes, now: float) -> None:
        nonlocal begin
        sent, ordinal = stamp_of(payload)
        seen.add(ordinal)
        begin = begin or sent + WARM_UP_SECONDS
        if sent < begin:
            return
        if not flow.waits_ms:
            flow.before = account.read()
        flow.waits_ms.append((now - sent) * 1000)
        flow.arrivals.append(now)

    def over() -> bool:
        return len(seen) >= total or time.monotonic() > limit or load.poll() not in (None, 0)

    listen(target.connection_string, queues, note, over)
    flow.after = account.read()
    load.wait()
    if len(seen) < total or not flow.waits_ms:
        raise OperationTimeoutError(f"{len(seen)} of {total} messages arrived in time")
    return flow


def _first_messages(
    source: NamespaceProcess, target: NamespaceProcess, queues: Sequence[str], check: Callable[[], None]
) -> None:
    """Sends one message on each route and waits for it: Spark starts its workers meanwhile. `check` raises if it has ended."""
    pace(source.connection_string, queues, 1.0, 1.0)
    limit = time.monotonic() + START_SECONDS
    arrived = 0

    def note(payload: bytes, now: float) -> None:
        nonlocal arrived
        arrived += 1

    def over() -> bool:
        check()
        return arrived >= len(queues) or time.monotonic() > limit

    listen(target.connection_string, queues, note, over)
    if arrived < len(queues):
        raise OperationTimeoutError(f"{arrived} of {len(queues)} routes carried a message in {START_SECONDS:g} s")


def _leases_ended(folder: Path) -> int:
    """How many leases have ended, by the numbers under which Spark notes it."""
    noted = [int(entry.name) for entry in (folder / CHECKPOINT / "commits").glob("[0-9]*") if entry.name.isdigit()]
    return max(noted, default=-1) + 1


def _wake(source: NamespaceProcess, target: NamespaceProcess, queue: str) -> float:
    """Leaves the routes idle for a while, then sends one message; milliseconds until it arrives."""
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
