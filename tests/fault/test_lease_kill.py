"""What is killed with -9 while one lease ends and the next begins comes back; nothing is lost, doubled or out of order.

Leases of two seconds, so that there is a change to aim at soon; the query's checkpoint tells when a lease has begun. Each round
publishes until the change, kills one of those who take part in it at an instant from 100 ms before to 300 ms after, and waits until
all is moved. The default run kills some of those that `run` outlives, the long one all and itself ten times each. Copies that a crash
sends twice are known by their origin, and dropped.
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

from federation_check import check_moved
from isthmus.errors import IsthmusError
from isthmus.replication.reach import Reach
from isthmus.supervisor.watch import BacklogLook
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology.model import Route
from isthmus.topology.route import routes

pytestmark = pytest.mark.spark

# The driver last, since its round takes longest: a new run waits for the claim of the dead one, and starts Spark.
VICTIMS = ("worker", "source", "target", "driver")
ROUNDS = 10 * len(VICTIMS)
# A topic's default size is enough for so many.
ROUNDS_OF_A_FEDERATION = 3 * len(VICTIMS)
CHUNK = 200
PAUSE_SECONDS = 0.25
BODY_BYTES = 200
UNSETTLED = 100
LOOK_SECONDS = 0.02  # what a look at the source takes
EARLIEST_SECONDS, LATEST_SECONDS = -0.1, 0.3
LEASE_SECONDS = 2
SETTINGS = ("lock_duration: 5s",)
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", str(LEASE_SECONDS))


class Watch:
    """Sees when leases begin, by the offsets that Spark notes."""

    def __init__(self, state: Path) -> None:
        self._checkpoints = state / "checkpoints"
        self._seen = self._begun()

    def change(self) -> float | None:
        """When the lease that has just begun will end, in monotonic seconds; None while none has begun since the last call."""
        begun = self._begun()
        if begun <= self._seen:
            return None
        self._seen = begun
        return begun - time.time() + time.monotonic() + LEASE_SECONDS

    def _begun(self) -> float:
        entries = [entry for entry in self._checkpoints.glob("*/offsets/*") if entry.name.isdigit()]
        return max((entry.stat().st_mtime for entry in entries), default=0.0)


class Source:
    """The source of a route: published to, now and then or as fast as it goes, and looked at with one peek or two."""

    def __init__(self, federation: FederationProcess, route: Route) -> None:
        self._federation, self._alias, self._route = federation, route.source.alias, route
        self._look = BacklogLook()
        self.hurry = threading.Event()

    @contextmanager
    def published_to(self) -> Iterator[None]:
        """Publish on another thread until the block ends; what was not acknowledged is published again then."""
        over = threading.Event()
        unsure: list[IsthmusError] = []

        def publish() -> None:
            while not over.is_set() and not unsure:
                try:
                    self._federation.publish(self._alias, CHUNK, BODY_BYTES)
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
            self._federation.publish(self._alias, CHUNK, BODY_BYTES)  # numbers go on behind the last one acknowledged

    def waiting(self, reach: Reach) -> int:
        """Messages that are not settled."""
        return self._look(reach.peek(self._route.source)).waiting


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
                self._namespace(victim).start()
                began = time.monotonic()
        if victim == "driver":
            self.run.wait(30.0)
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
        watch = Watch(self.federation.state)
        with Reach(self.federation.federation) as reach:
            while True:
                source.hurry.clear()
                while (change := watch.change()) is None:
                    assert self.run.is_alive(), self.run.log()[-3000:]
                    time.sleep(0.002)
                at = change + offset
                source.hurry.set()
                time.sleep(max(0.0, at - LOOK_SECONDS - time.monotonic()))
                self.unsettled = source.waiting(reach)
                time.sleep(max(0.0, at - time.monotonic()))
                if self.unsettled >= UNSETTLED:
                    with suppress(psutil.NoSuchProcess, IndexError):  # it ended before: the next change will do
                        self._kill(victim)
                        return

    def _kill(self, victim: str) -> None:
        if victim in ("source", "target"):
            self._namespace(victim).kill()
        elif victim == "driver":
            psutil.Process(self.run.pid).kill()
        else:  # one of the reader, the sink, and those of the data source at the driver
            psutil.Process(self.chance.choice(sorted(self.run.workers()))).kill()

    def _namespace(self, victim: str) -> NamespaceProcess:
        end = self.route.source if victim == "source" else self.route.targets[0]
        return self.federation.namespaces[end.alias]


def test_a_change_of_leases_survives_kills(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    rounds = long_count(ROUNDS)
    victims = [*chance.sample(VICTIMS[:-1], len(VICTIMS) - 1), VICTIMS[-1]]
    done: list[Round] = []
    try:
        for start in range(0, rounds, ROUNDS_OF_A_FEDERATION):
            with FederationProcess(tmp_path / str(start), ("ewr", "jfk"), SETTINGS) as federation:
                run = federation.run(*RUN)
                run.wait_phase(("waiting", "moving"))
                for number in range(start, min(rounds, start + ROUNDS_OF_A_FEDERATION)):
                    done.append(Round(federation, run, chance))
                    run = done[-1].kill(victims[number % len(victims)])
                check_moved(federation)
                assert run.end() == 0
                check_words(federation)
    finally:
        fewest = min((each.unsettled for each in done), default=0)
        longest = max((each.recovery_seconds for each in done), default=0.0)
        counted(
            f"{rounds} kills at a change of leases",
            f"{len(done)}, at least {fewest} unsettled, moved within {longest:.1f} s, seed {seed}",
        )


def check_words(federation: FederationProcess) -> None:
    """What an operator reads of it: a line for each failure, with its cause, and nothing of Spark's."""
    for file in federation.folder.glob("run-*.log"):
        text = file.read_text(encoding="utf-8")
        assert "Traceback" not in text, text
        assert "org.apache.spark" not in text, text
