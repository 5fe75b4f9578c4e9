"""The fault matrix: every pattern under every fault, in one run of all of them.

Each fault strikes while publishers send and messages are under way, and heals. Then everything is waited for, `isthmus verify` compares what
entered with what is at the targets, and so do the publishers' own numbers. `make soak` plays every pattern and writes what it
found into benchmarks/results/fault-matrix.json, of which `make docs` makes docs/explanation/fault-matrix.md; `make test` plays one pattern under
two faults. ISTHMUS_MATRIX_TASKS=cq,mv plays these tasks only, and records nothing; with ISTHMUS_MATRIX_LEASES=1 leases
without Spark carry the messages, which is quicker, and the record says so.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.matrix import matrix_record
from harness.matrix.matrix_fault import FAULTS, ROUND_TRIP, Fault, Stage
from harness.matrix.matrix_log import LogServer, open_log
from harness.matrix.matrix_record import Cell
from harness.matrix.matrix_scenario import ALIASES, LOGS, SCENARIOS, Scenario, chosen, written
from harness.matrix.matrix_traffic import Traffic
from isthmus.demo.example.application import Worker
from isthmus.demo.example.script import Work
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.route import routes

pytestmark = pytest.mark.spark

SAMPLE = "ve"
SAMPLE_FAULTS = ("senders killed", "acknowledgements lost")
FUNCTIONS = Path(__file__).parents[2] / "fixtures" / "step"
# Nothing is measured by it: what has not changed for so long is stuck.
STILL_SECONDS = 300.0
LONG_SECONDS = 240.0
LOOK_SECONDS = 0.5
COUNTS = ("lost", "duplicated", "out_of_order", "dead_lettered")


class Matrix:
    """All scenarios in one run, and what they have shown so far."""

    def __init__(
        self,
        federation: FederationProcess,
        scenarios: tuple[Scenario, ...],
        *,
        in_spark: bool,
        logs: Mapping[str, LogServer],
    ) -> None:
        self.federation = federation
        self.scenarios = scenarios
        self.traffic = Traffic(federation, scenarios, logs)
        self.seed = secrets.randbits(32)
        self.stage = Stage(federation, random.Random(self.seed), in_spark=in_spark, logs=logs)
        self._counts = {each.task: Counter[str]() for each in scenarios}
        self._published: Counter[str] = Counter()

    def play(self, fault: Fault) -> dict[str, Cell]:
        """Let a fault strike under load; what it did to each scenario."""
        with self.traffic.going_on():
            with self.traffic.bursting():
                unsettled = self._wait_under_way()
                time.sleep(self.stage.chance.uniform(0.0, 0.5))
            fault.strike(self.stage)
        before = self._counts
        began = time.monotonic()
        self._counts, stuck = self._settle()
        self.seconds = time.monotonic() - began
        cells = {}
        for each in self.scenarios:
            found = self._counts[each.task] - before[each.task]
            published = self.traffic.acknowledged[each.task]
            cells[each.name] = Cell(
                published=published - self._published[each.task],
                unsettled=unsettled[each.task],
                lost=found["lost"],
                stuck=stuck[each.task],
                duplicated=found["duplicated"],
                out_of_order=found["out_of_order"],
                set_aside=found["dead_lettered"],
                detects=each.detects,
                ordered=True,
            )
            self._published[each.task] = published
        return cells

    def _wait_under_way(self) -> Counter[str]:
        """Wait until messages of every scenario that has routes are under way; how many."""
        limit = time.monotonic() + LONG_SECONDS
        while True:
            found = self._waiting()
            idle = [each.task for each in self.scenarios if each.has_routes and not found[each.task]]
            if not idle or time.monotonic() > limit:
                return found

    def _waiting(self) -> Counter[str]:
        """By task, how many messages wait for a route, or for the consumer whose failures spill."""
        found: Counter[str] = Counter()
        with NamespaceClients(self.federation.federation) as clients:
            for each in self.scenarios:
                if each.fails_at is not None:
                    found[each.task] += BacklogMeter()(clients.peek(each.fails_at)).waiting
                for route in routes(self.federation.federation, each.task):
                    found[each.task] += BacklogMeter().measure(clients, route).waiting
        return found

    def _settle(self) -> tuple[dict[str, Counter[str]], Counter[str]]:
        """Wait until nothing waits and nothing is missing, or nothing changes any more; the counts then, and what is stuck."""
        seen: object = None
        changed = time.monotonic()
        while True:
            assert self.stage.run.is_alive(), self.stage.run.log()[-5000:]
            waiting = self._waiting()
            counts: dict[str, Counter[str]] = {}
            if not waiting.total():
                counts = {each.task: self._judge(each) for each in self.scenarios}
                if not any(each["lost"] for each in counts.values()):
                    return counts, waiting
            now = dict(waiting), counts
            if now != seen:
                seen, changed = now, time.monotonic()
            if time.monotonic() - changed > STILL_SECONDS:
                return counts or {each.task: self._judge(each) for each in self.scenarios}, waiting
            time.sleep(LOOK_SECONDS)

    def _judge(self, scenario: Scenario) -> Counter[str]:
        """The worse of what `verify` and the publishers' numbers say."""
        known = self.traffic.judge(scenario)
        result = self.federation.verify(scenario.task)
        counts = Counter({kind: max(known[kind], result.total(kind)) for kind in COUNTS})
        if scenario.fails_at is not None:
            counts["out_of_order"] = result.total(
                "out_of_order"
            )  # a consumer that is killed gets messages in another order
        if scenario.has_invalid:
            missing = self.traffic.invalid[scenario.task] - counts["dead_lettered"]
            counts["lost"] += max(0, missing)
        else:
            counts["lost"] += counts["dead_lettered"]
        return counts


@pytest.fixture(name="matrix", scope="module")
def _matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    named = os.environ.get("ISTHMUS_MATRIX_TASKS", "" if request.config.getoption("--soak") else SAMPLE)
    in_spark = not os.environ.get("ISTHMUS_MATRIX_LEASES")
    scenarios = tuple(each for each in chosen(named) if in_spark or not each.needs_spark)
    folder = tmp_path_factory.mktemp("matrix")
    tasks = written(scenarios, folder)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        logs: dict[str, LogServer] = {}
        for alias in LOGS:
            streams = [each.stream for each in scenarios if each.log == alias]
            if streams:
                logs[alias] = stack.enter_context(open_log(alias, folder / f"{alias}-server", streams))
        others = [each.line for each in logs.values()]
        opened = stack.enter_context(FederationProcess(folder, ALIASES, written=tasks, proxied=True, others=others))
        patch.setenv("PYTHONPATH", str(FUNCTIONS), prepend=os.pathsep)
        for proxy in opened.proxies.values():
            proxy.set_weather(ROUND_TRIP)
        matrix = Matrix(opened, scenarios, in_spark=in_spark, logs=logs)
        print(f"seed {matrix.seed}, {folder}")
        if isinstance(matrix.stage.run, RunProcess):
            matrix.stage.run.wait_phase(("waiting", "moving"), LONG_SECONDS)
        failing = [Worker(opened.federation, Work(each.fails_at, 1, "NoGate")) for each in scenarios if each.fails_at]
        for worker in failing:
            worker.start()
        yield matrix
        for worker in failing:
            worker.close()
        assert matrix.stage.run.end() == 0, matrix.stage.run.log()[-3000:]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(each, id=each.name.replace(" ", "-"), marks=[] if each.name in SAMPLE_FAULTS else pytest.mark.soak)
        for each in FAULTS
    ],
)
def test_nothing_is_lost(matrix: Matrix, fault: Fault) -> None:
    in_spark = matrix.stage.in_spark
    if fault.needs_spark and not in_spark:
        pytest.skip("only a run in Spark has this process")
    cells = matrix.play(fault)
    for name, cell in cells.items():
        print(f"{'' if cell.is_good else 'BAD '}{fault.name}: {name}: {cell}")
    if len(cells) == sum(in_spark or not each.needs_spark for each in SCENARIOS):
        carrier = "`isthmus run`" if in_spark else "leases without Spark"
        matrix_record.write(fault.name, fault.reported, carrier, matrix.seconds, cells)
    bad = {name: cell for name, cell in cells.items() if not cell.is_good}
    assert not bad, f"seed {matrix.seed}, {matrix.federation.folder}: {bad}"
