"""What is killed with -9 while one lease ends and the next one begins comes back; nothing is lost, doubled or out of order.

Leases of two seconds, so that there is a change to aim at soon. Spark's own checkpoint shows when a lease began (`offsets`) and
ended (`commits` in the query's checkpoint). Each round publishes until the change, kills at an instant from 300 ms before the
expected change to 500 ms after it, and waits until all is moved. The default run kills one of each kind, the long one twenty.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness.check.federation_check import check_moved
from isthmus.errors import IsthmusError
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.supervisor.watch.watch import BacklogMeter
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.topology.model import Route
from isthmus.topology.route import routes

pytestmark = pytest.mark.spark

# By kind, of which a round kills one. The engine last, since its round takes longest: a new run waits for the claim of the
# dead one, and starts Spark.
VICTIMS = {"worker": ("worker",), "namespace": ("source", "target"), "engine": ("driver", "java")}
ROUNDS = 20 * len(VICTIMS)
# A topic's default size is enough for so many.
ROUNDS_OF_A_FEDERATION = 6 * len(VICTIMS)
CHUNK = 200
BURST = 1000  # just before a kill
PAUSE_SECONDS = 0.25
BODY_BYTES = 200
UNSETTLED = 100
LOOK_SECONDS = 0.02  # what a look at the source takes
EARLIEST_SECONDS, LATEST_SECONDS = -0.3, 0.5
SETTINGS = ("lock_duration: 5s", "duplicate_detection: 1h")
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "2")


class LeaseWatch:
    """Sees from outside when the shared query's leases begin and end: Spark writes a file at each."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "checkpoints" / "routes"

    def next_change(self) -> float | None:
        """Seconds until the lease under way is expected to end; None where none is, or none has ended before."""
        begins, ends = self._times("offsets"), self._times("commits")
        newest = max(begins, default=-1)
        # A lease that a kill broke off is repeated under its number: it seems long.
        lengths = [ends[number] - begins[number] for number in sorted(ends.keys() & begins.keys())[-3:]]
        if newest in ends or not lengths:
            return None
        return begins[newest] + min(lengths) - time.time()

    def _times(self, kind: str) -> dict[int, float]:
        found = {}
        with suppress(FileNotFoundError):
            for file in (self._folder / kind).iterdir():
                if file.name.isdecimal():
                    with suppress(FileNotFoundError):
                        found[int(file.name)] = file.stat().st_mtime
        return found


class Source:
    """The source of a route: published to, now and then or as fast as it goes, and looked at with one peek or two."""

    def __init__(self, federation: FederationProcess, route: Route) -> None:
        self._federation, self._alias, self._route = federation, route.source.alias, route
        self._meter = BacklogMeter()
        self.hurry = threading.Event()

    @contextmanager
    def published_to(self) -> Iterator[None]:
        """Publish on another thread until the block ends; what was not acknowledged is published again then."""
        over = threading.Event()
        unsure: list[IsthmusError] = []

        def publish() -> None:
            while not over.is_set() and not unsure:
                try:
                    self._federation.publish(self._alias, BURST if self.hurry.is_set() else CHUNK, BODY_BYTES)
                except IsthmusError as error:
                    unsure.append(error)
                self.hurry.wait(PAUSE_SECONDS)

        thread = threading.Thread(target=publish)
        thread.start()
        try:
            yield
        finally:
            over.set()
            self.hurry.set()
            thread.join()
        if unsure:
            self._federation.publish(self._alias, CHUNK, BODY_BYTES)  # numbers continue after the last one acknowledged

    def waiting(self, clients: NamespaceClients) -> int:
        """Messages that are not settled."""
        return self._meter(clients.peek(self._route.source)).waiting


class Round:
    """One kill.

    Attributes:
        unsettled: messages before the route at the last look before it.
        recovery_seconds: from the kill, or from the start of what the test itself had to start, until all was moved and
            every route looks for messages again.
    """

    def __init__(self, federation: FederationProcess, run: RunProcess, chance: random.Random) -> None:
        self.federation, self.run, self.chance = federation, run, chance
        self.route = chance.choice(routes(federation.federation))
        self.unsettled = 0
        self.recovery_seconds = 0.0

    def kill(self, victim: str) -> RunProcess:
        """Kill at a change, start again what does not come back by itself, and wait until all is moved; the run."""
        source = Source(self.federation, self.route)
        offset = self.chance.uniform(EARLIEST_SECONDS, LATEST_SECONDS)
        with source.published_to():
            self._strike(victim, source, offset)
            began = time.monotonic()
            source.hurry.clear()
            if victim in ("source", "target"):
                time.sleep(self.chance.uniform(0.0, 2.0))
                self.federation.namespaces[self._alias(victim)].start()
                began = time.monotonic()
        if victim in VICTIMS["engine"]:
            code = self.run.wait(60.0)
            assert code, "a run that has lost its Spark did not say so"
            self.run = self.federation.run(*RUN)
            began = time.monotonic()
            self.federation.publish(self.route.source.alias, CHUNK, BODY_BYTES)
        self.federation.wait_moved()
        self.run.wait_phase(("waiting", "moving"))
        self.recovery_seconds = time.monotonic() - began
        print(
            f"{victim} of {self.route.name} at {offset * 1000:+.0f} ms: {self.unsettled} unsettled, "
            f"{self.recovery_seconds:.1f} s"
        )
        return self.run

    def _strike(self, victim: str, source: Source, offset: float) -> None:
        watch = LeaseWatch(self.federation.state)
        with NamespaceClients(self.federation.federation) as clients:
            while True:
                source.hurry.clear()
                while (seconds := watch.next_change()) is None or seconds + offset < LOOK_SECONDS:
                    assert self.run.is_alive(), self.run.log()[-3000:]
                    time.sleep(LOOK_SECONDS)
                at = time.monotonic() + seconds + offset
                time.sleep(max(0.0, at - 2 * LOOK_SECONDS - PAUSE_SECONDS - time.monotonic()))
                source.hurry.set()
                time.sleep(max(0.0, at - LOOK_SECONDS - time.monotonic()))
                self.unsettled = source.waiting(clients)
                time.sleep(max(0.0, at - time.monotonic()))
                if self.unsettled >= UNSETTLED and self._kill_now(victim):
                    return

    def _kill_now(self, victim: str) -> bool:
        """Whether there was a process of that kind at the moment."""
        if victim in VICTIMS["namespace"]:
            self.federation.namespaces[self._alias(victim)].kill()
            return True
        if victim == "driver":
            pids = [self.run.pid]
        elif victim == "java":
            pids = [each.pid for each in psutil.Process(self.run.pid).children() if each.name() == "java"]
        else:
            pids = self.run.workers()
        with suppress(psutil.NoSuchProcess):  # it ended before: the next change will do
            if pids:
                psutil.Process(self.chance.choice(pids)).kill()
                return True
        return False

    def _alias(self, victim: str) -> str:
        return (self.route.source if victim == "source" else self.route.target).alias


def test_a_change_of_leases_survives_kills(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    rounds = long_count(ROUNDS)
    kinds = list(VICTIMS.values())
    done: list[Round] = []
    published = 0
    try:
        for start in range(0, rounds, ROUNDS_OF_A_FEDERATION):
            with FederationProcess(tmp_path / str(start), ("ewr", "jfk"), SETTINGS) as federation:
                run = federation.run(*RUN)
                run.wait_phase(("waiting", "moving"))
                for number in range(start, min(rounds, start + ROUNDS_OF_A_FEDERATION)):
                    done.append(Round(federation, run, chance))
                    run = done[-1].kill(chance.choice(kinds[number % len(kinds)]))
                check_moved(federation)
                published += sum(federation.published.values())
                assert run.end() == 0
                check_words(federation)
    finally:
        fewest = min((each.unsettled for each in done), default=0)
        longest = max((each.recovery_seconds for each in done), default=0.0)
        counted(
            f"{rounds} kills at a change of leases",
            f"{len(done)}, at least {fewest} unsettled, moved within {longest:.1f} s, {published} messages compared, seed {seed}",
        )


def check_words(federation: FederationProcess) -> None:
    """What an operator sees of it: a line for each failure, with its cause, and nothing of Spark's."""
    for file in federation.folder.glob("run-*.log"):
        text = file.read_text(encoding="utf-8")
        assert "Traceback" not in text, text
        assert "org.apache.spark" not in text, text
