"""Twenty tasks of seven patterns, sixty routes between three namespaces, in one Spark session."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.plugin.long_count import ASKED, SEEN
from isthmus.bench.process import Account
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.route import routes

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROUTES, TASKS = 60, 20
MESSAGES = 100
IDLE_SECONDS = 60.0
IDLE_CORES = 0.03
SETTLE_SECONDS = 10.0
# Nothing is measured by it: what takes so long never comes.
LONG_SECONDS = 300.0
AUDIT = "audit: 1d"


def all_active(name: str) -> str:
    return f"{{pattern: all-active, topic: {name}, members: [ewr, jfk, lga], {AUDIT}}}"


def active_passive(name: str) -> str:
    return f"{{pattern: active-passive, topic: {name}, primary: ewr, secondary: jfk, failover_within: 12h, {AUDIT}}}"


def copy(name: str) -> str:
    return f"{{pattern: copy, source: ewr, topic: {name}, target: lga, target_queue: {name}, {AUDIT}}}"


def fan_out(name: str) -> str:
    return f"{{pattern: fan-out, topic: {name}, hub: ewr, members: {{jfk: [lga]}}, {AUDIT}}}"


def consolidate(name: str) -> str:
    return f"{{pattern: consolidate, sources: [ewr, jfk], topic: {name}, target: lga, target_topic: all-{name}, duplicates: origin, {AUDIT}}}"


def split(name: str) -> str:
    targets = '[{to: jfk, queue: odd, filter: "number > 50"}, {to: lga, queue: even, filter: "number <= 50"}]'
    return f"{{pattern: split, source: ewr, topic: {name}, targets: {targets}, {AUDIT}}}"


def move(name: str) -> str:
    return f"{{pattern: move, source: ewr, queue: {name}, target: jfk}}"


COUNTS = ((all_active, 7), (active_passive, 4), (copy, 3), (fan_out, 2), (consolidate, 2), (split, 1), (move, 1))
NAMES = {f"{make.__name__.replace('_', '-')}-{n}": make for make, count in COUNTS for n in range(count)}
WRITTEN = "\n".join(f"  {name}: {make(name)}" for name, make in NAMES.items())


def spark_seconds(account: Account) -> tuple[float, int, float]:
    """CPU seconds of a run's processes since they started, how many there are, and their memory in MiB."""
    usages = account.read().values()
    return (
        sum(usage.cpu_seconds for usage in usages),
        sum(usage.processes for usage in usages),
        sum(usage.shared_out_bytes for usage in usages) / (1 << 20),
    )


def idle_cores(run: RunProcess) -> tuple[float, int, float]:
    """Processor cores that a run uses while nothing moves, its processes, and their memory in MiB."""
    account = Account({}, spark=run.pid)  # one for both: it continues to count processes that have ended meanwhile
    before, _, _ = spark_seconds(account)
    time.sleep(IDLE_SECONDS)
    after, processes, memory = spark_seconds(account)
    return (after - before) / IDLE_SECONDS, processes, memory


def test_sixty_routes_of_twenty_tasks_move_and_then_cost_next_to_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with FederationProcess(tmp_path, ("ewr", "jfk", "lga"), written=WRITTEN) as federation:
        assert len(federation.federation.tasks) == TASKS
        assert len(routes(federation.federation)) == ROUTES
        run = federation.run("--json", "--task", "move-0")
        run.wait_phase(("waiting", "moving"), LONG_SECONDS)
        time.sleep(SETTLE_SECONDS)
        of_one, processes_of_one, _ = idle_cores(run)
        assert run.end() == 0

        began = time.monotonic()
        run = federation.run("--json")
        run.wait_phase(("waiting", "moving"), LONG_SECONDS)
        started = time.monotonic() - began
        for name in NAMES:
            federation.publish("ewr", MESSAGES, topic=name)
        federation.wait_moved(LONG_SECONDS)
        for name in NAMES:
            result = federation.verify(name)
            assert result.clean, (name, result.to_dict())
            assert result.total("arrived") >= MESSAGES, (name, result.to_dict())
        time.sleep(SETTLE_SECONDS)
        cores, processes, memory = idle_cores(run)
        record_property(ASKED, ROUTES)
        reported = (
            f"all moving after {started:.1f} s; idle {cores:.4f} of a core, one route {of_one:.4f}; {processes} processes, "
            f"one route {processes_of_one}; {memory:.0f} MiB"
        )
        record_property(SEEN, (f"{TASKS} tasks, {ROUTES} routes", reported))
        assert cores - of_one < IDLE_CORES
        assert processes <= processes_of_one + 2  # workers of Spark that have planned and are not ended yet
        assert run.end() == 0
