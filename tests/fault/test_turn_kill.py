"""What is killed with -9 while a route's two queries change turns comes back; nothing is lost, doubled or out of order.

Leases of two seconds, so that there is a change to aim at soon; the locks of the route's files tell which worker has the
turn, which stands next, and when it means to change. Each round publishes until the change, kills one of those who take part
in it at an instant from 100 ms before to 300 ms after, and waits until all is moved. The default run kills three of those
that `run` outlives, the long one all and itself ten times each. Copies that a crash sends twice are known by their origin, and dropped.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from federation_check import check_moved
from isthmus.connectors.servicebus.turn import FIRST, Turn
from isthmus.errors import IsthmusError
from isthmus.replication.reach import Reach
from isthmus.supervisor.watch import BacklogLook
from isthmus.testing.federation import FederationProcess, RunProcess
from isthmus.testing.namespace import NamespaceProcess
from isthmus.topology.model import Route
from isthmus.topology.route import routes

pytestmark = pytest.mark.spark

# The driver last, since its round takes longest: a new run waits for the claim of the dead one, and starts Spark.
VICTIMS = ("holder", "next", "sink", "source", "target", "driver")
ROUNDS = 10 * len(VICTIMS)
# A topic's default size is enough for so many.
ROUNDS_OF_A_FEDERATION = 3 * len(VICTIMS)
CHUNK = 200
PAUSE_SECONDS = 0.25
BODY_BYTES = 200
UNSETTLED = 100
LOOK_SECONDS = 0.02  # what a look at the source takes
EARLIEST_SECONDS, LATEST_SECONDS = -0.1, 0.3
SETTINGS = ("lock_duration: 5s",)
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "2")


class Change(NamedTuple):
    """A change of turns that is about to come: who takes part, and in how many seconds."""

    holder: int
    next: int
    seconds: float


class Watch:
    """Sees whose turn it is on a route, from outside: the system tells who holds the locks."""

    def __init__(self, state: Path, route: Route) -> None:
        self._folder = state / "checkpoints" / route.name / "turns"

    def change(self) -> Change | None:
        """The change to come; None while none does."""
        owners = lock_owners()
        holder, following = (owners.get((self._folder / name).stat().st_ino, 0) for name in ("holder", "next"))
        if not holder or not following:
            return None
        return Change(holder, following, Turn(self._folder, FIRST).remaining_seconds())


def lock_owners() -> dict[int, int]:
    """Who holds a file for itself alone, by the file's number."""
    owners = {}
    for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[3] == "WRITE":
            owners[int(words[5].rpartition(":")[2])] = int(words[4])
    return owners


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
        watch = Watch(self.federation.state, self.route)
        with Reach(self.federation.federation) as reach:
            while True:
                source.hurry.clear()
                while (change := watch.change()) is None:
                    assert self.run.is_alive(), self.run.log()[-3000:]
                    time.sleep(0.002)
                at = time.monotonic() + change.seconds + offset
                if (strike := self._aim(victim, change)) is None:
                    continue
                source.hurry.set()
                time.sleep(max(0.0, at - LOOK_SECONDS - time.monotonic()))
                self.unsettled = source.waiting(reach)
                time.sleep(max(0.0, at - time.monotonic()))
                if self.unsettled >= UNSETTLED:
                    with suppress(psutil.NoSuchProcess):  # it ended before: the next change will do
                        strike()
                        return

    def _aim(self, victim: str, change: Change) -> Callable[[], None] | None:
        """What kills; None where there is nobody of that kind at the moment, or not any more."""
        if victim in ("source", "target"):
            return self._namespace(victim).kill
        if victim == "driver":
            return psutil.Process(self.run.pid).kill
        chosen = change.holder if victim == "holder" else change.next
        if victim == "sink":
            others = sorted(set(self.run.workers()) - set(change[:2]))
            if not others:
                return None
            chosen = self.chance.choice(others)
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(chosen).kill
        return None

    def _namespace(self, victim: str) -> NamespaceProcess:
        end = self.route.source if victim == "source" else self.route.targets[0]
        return self.federation.namespaces[end.alias]


def test_a_change_of_turns_survives_kills(
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
            f"{rounds} kills at a change of turns",
            f"{len(done)}, at least {fewest} unsettled, moved within {longest:.1f} s, seed {seed}",
        )


def check_words(federation: FederationProcess) -> None:
    """What an operator reads of it: a line for each failure, with its cause, and nothing of Spark's."""
    for file in federation.folder.glob("run-*.log"):
        text = file.read_text(encoding="utf-8")
        assert "Traceback" not in text, text
        assert "org.apache.spark" not in text, text
