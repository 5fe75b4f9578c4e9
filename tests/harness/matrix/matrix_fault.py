"""The faults of the fault matrix: each strikes a run under load and heals what it did.

`ewr` is the source, `jfk` the target; both are reached through proxies, which give every connection the round trip of two regions. The systems
of streams are reached directly.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import psutil

from harness.bridge.hosted_run import HostedRun
from harness.matrix.matrix_log import LogServer
from harness.matrix.matrix_scenario import EVENTS, HUB, LOG, SOURCE, TARGET
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.testing.proxy import Proxy, Weather

__all__ = ["FAULTS", "Fault", "Stage"]

RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "30")
ROUND_TRIP = Weather(delay_seconds=0.03)
SILENT = Weather(is_stalled=True)
# Like a mobile line: one second there and back, and 64 KiB/s.
SLOW = Weather(delay_seconds=0.5, bytes_per_second=1 << 16)
CUT_SECONDS = 30.0
SLOW_SECONDS = 30.0
AWAY_SECONDS = 3.0
SKEW_SECONDS = 5
SKEWED_SECONDS = 10.0
LOST_SECONDS = 2.0
LOST_ROUNDS = 3
# After so long no worker comes any more.
WORKER_SECONDS = 180.0


class Stage:
    """What a fault strikes.

    Args:
        federation: its namespaces and proxies.
        chance: chooses moments.
        in_spark: whether `isthmus run` moves messages; else leases without Spark do.
        logs: the systems of streams that scenarios need, by alias.

    Attributes:
        run: which moves messages now.
    """

    def __init__(
        self,
        federation: FederationProcess,
        chance: random.Random,
        *,
        in_spark: bool,
        logs: Mapping[str, LogServer],
    ) -> None:
        self.federation = federation
        self.logs = logs
        self.chance = chance
        self.in_spark = in_spark
        self._runs = 0
        self.run = self._start()

    def _start(self) -> RunProcess | HostedRun:
        self._runs += 1
        if self.in_spark:
            return self.federation.run(*RUN)
        return HostedRun(self.federation.file, self.federation.folder / f"hosted-{self._runs}")

    def run_again(self) -> None:
        """Kill the run with all that it started, and start another."""
        below = psutil.Process(self.run.pid).children(recursive=True)
        self.run.end(signal.SIGKILL)
        psutil.wait_procs(below, timeout=30)
        self.run = self._start()


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault.

    Attributes:
        name: of its column.
        reported: what happens, for the page.
        strike: does it and heals it; returns when all is as before.
        needs_spark: whether it strikes a process that only a run in Spark has.
    """

    name: str
    reported: str
    strike: Callable[[Stage], None]
    needs_spark: bool = False


def _kill_namespace(alias: str) -> Callable[[Stage], None]:
    def strike(stage: Stage) -> None:
        stage.federation.namespaces[alias].kill()
        time.sleep(AWAY_SECONDS)
        stage.federation.namespaces[alias].start()

    return strike


def _kill_log(alias: str) -> Callable[[Stage], None]:
    def strike(stage: Stage) -> None:
        log = stage.logs.get(alias)
        if log is not None:
            log.kill()
            time.sleep(AWAY_SECONDS)
            log.start()

    return strike


def _kill_workers(*, reads: bool) -> Callable[[Stage], None]:
    def strike(stage: Stage) -> None:
        assert isinstance(stage.run, RunProcess)
        limit = time.monotonic() + WORKER_SECONDS
        while not (found := stage.run.ends(reads=reads)):
            assert time.monotonic() < limit, f"no worker to kill: {stage.run.log()[-3000:]}"
            time.sleep(0.01)
        for process in found:
            with suppress(psutil.NoSuchProcess):  # one may end as soon as it was seen
                process.kill()

    return strike


def _proxies(stage: Stage) -> list[Proxy]:
    return list(stage.federation.proxies.values())


def _cut(stage: Stage) -> None:
    for proxy in _proxies(stage):
        proxy.refuse()
        proxy.cut()
    time.sleep(CUT_SECONDS)
    for proxy in _proxies(stage):
        proxy.refuse(False)


def _silence(stage: Stage) -> None:
    for proxy in _proxies(stage):
        proxy.set_weather(SILENT)
    time.sleep(CUT_SECONDS)
    for proxy in _proxies(stage):
        proxy.set_weather(ROUND_TRIP)


def _slow(stage: Stage) -> None:
    proxy = stage.federation.proxies[TARGET]
    proxy.set_weather(SLOW)
    time.sleep(SLOW_SECONDS)
    proxy.set_weather(ROUND_TRIP)


def _lose(alias: str, *, answers: bool) -> Callable[[Stage], None]:
    """One direction falls silent, then the connections are reset: the one end knows what the other never receives."""

    def strike(stage: Stage) -> None:
        proxy = stage.federation.proxies[alias]
        for _ in range(LOST_ROUNDS):
            proxy.set_weather(ROUND_TRIP if answers else SILENT, SILENT if answers else ROUND_TRIP)
            time.sleep(LOST_SECONDS * stage.chance.uniform(0.5, 1.5))
            proxy.cut()
            proxy.set_weather(ROUND_TRIP)
            time.sleep(LOST_SECONDS * stage.chance.uniform(0.5, 1.5))

    return strike


def _skew(alias: str) -> Callable[[Stage], None]:
    """Ahead, then back again: a wall clock that goes backwards is the harder half."""

    def strike(stage: Stage) -> None:
        namespace = stage.federation.namespaces[alias]
        namespace.arguments = ("--clock-offset", str(SKEW_SECONDS))
        namespace.restart()
        time.sleep(SKEWED_SECONDS)
        namespace.arguments = ()
        namespace.restart()

    return strike


FAULTS: tuple[Fault, ...] = (
    Fault(
        "source killed", f"`ewr` is killed with -9 and starts again after {AWAY_SECONDS:.0f} s", _kill_namespace(SOURCE)
    ),
    Fault(
        "target killed", f"`jfk` is killed with -9 and starts again after {AWAY_SECONDS:.0f} s", _kill_namespace(TARGET)
    ),
    *(
        Fault(
            f"{name} killed",
            f"`{alias}` is killed with -9 and starts again after {AWAY_SECONDS:.0f} s",
            _kill_log(alias),
        )
        for alias, name in ((HUB, "Kafka"), (LOG, "RabbitMQ"), (EVENTS, "Event Hubs"))
    ),
    Fault("driver killed", "`isthmus run` is killed with -9 and another one is started", Stage.run_again),
    Fault("readers killed", "all workers that read from sources are killed with -9", _kill_workers(reads=True), True),
    Fault("senders killed", "all workers that send to targets are killed with -9", _kill_workers(reads=False), True),
    Fault(
        "network cut",
        f"all connections of the run are reset, and new ones refused for {CUT_SECONDS:.0f} s",
        _cut,
    ),
    Fault("network silent", f"nothing comes through for {CUT_SECONDS:.0f} s; the connections stand", _silence),
    Fault(
        "slow target",
        f"`jfk` is 1 s away at 64 KiB/s for {SLOW_SECONDS:.0f} s",
        _slow,
    ),
    Fault(
        "acknowledgements lost",
        f"{LOST_ROUNDS} times `jfk` takes messages, its answers are lost, and the connections are reset",
        _lose(TARGET, answers=True),
    ),
    Fault(
        "settlements lost",
        f"{LOST_ROUNDS} times what is settled does not come to `ewr`, and the connections are reset",
        _lose(SOURCE, answers=False),
    ),
    Fault(
        "source's clock off",
        f"`ewr` starts again with its clock {SKEW_SECONDS} s ahead, and {SKEWED_SECONDS:.0f} s later with the right time",
        _skew(SOURCE),
    ),
    Fault(
        "target's clock off",
        f"`jfk` starts again with its clock {SKEW_SECONDS} s ahead, and {SKEWED_SECONDS:.0f} s later with the right time",
        _skew(TARGET),
    ),
)
