"""What is killed with -9 at a random moment under load comes back, and nothing is lost, doubled or out of order.

Each test does 20 rounds, with `make soak` only: `make test` kills workers and namespaces under load in test_many_routes.py, and a driver, a
worker and a namespace at a change of leases in test_lease_change_kill.py. A round publishes, waits for a random moment at which at
least 100 messages are unsettled, kills, lets `run` recover by itself or starts it again, and reconciles.
Copies that a crash sends twice are known by their origin, and dropped.
"""

from __future__ import annotations

import random
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from harness.check.federation_check import check_moved
from isthmus.testing.federation import FederationProcess, RunProcess

pytestmark = [pytest.mark.spark, pytest.mark.soak]

ROUNDS = 20
MESSAGES = 1000
# Twenty rounds of them, and what every member keeps for the proof, stay below a topic's default size.
BODY_BYTES = 200
UNSETTLED = 100
SETTINGS = ("lock_duration: 5s",)
RUN = ("--json", "--retry-first", "1", "--retry-limit", "5", "--lease", "20")


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[FederationProcess]:
    with FederationProcess(tmp_path, ("ewr", "jfk"), SETTINGS) as opened:
        yield opened


@pytest.fixture
def seed() -> int:
    chosen = secrets.randbits(32)
    print(f"seed {chosen}")
    return chosen


@pytest.fixture
def chance(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture
def kills(
    seed: int, federation: FederationProcess, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> Iterator[list[int]]:
    """How many messages were unsettled at each kill, for the account."""
    found: list[int] = []
    yield found
    if found:
        published = sum(federation.published.values())
        seen = f"{len(found)} kills, {min(found)} to {max(found)} unsettled, {published} messages, seed {seed}"
        counted(f"{long_count(ROUNDS)} kills, at least {UNSETTLED} messages unsettled at each", seen)


@contextmanager
def traffic(
    federation: FederationProcess, chance: random.Random, members: Iterable[str], kills: list[int]
) -> Iterator[None]:
    """Publishes to members until the block ends, which begins at a random instant at which enough is unsettled."""
    over = threading.Event()

    def publish() -> None:
        while not over.is_set():
            for alias in members:
                federation.publish(alias, MESSAGES, BODY_BYTES)

    with ThreadPoolExecutor(1) as pool:
        published = pool.submit(publish)
        try:
            unsettled = 0
            while unsettled < UNSETTLED:
                time.sleep(chance.uniform(0.0, 0.6))
                assert not published.done(), published.result()
                unsettled = federation.backlog()
            print(f"{unsettled} of {sum(federation.published.values())} unsettled")
            kills.append(unsettled)
            yield
        finally:
            over.set()
        published.result()


def test_a_namespace_is_killed(
    federation: FederationProcess, chance: random.Random, kills: list[int], long_count: Callable[[int], int]
) -> None:
    run = federation.run(*RUN)
    run.wait_phase(("waiting", "moving"))
    for _ in range(long_count(ROUNDS)):
        victim = chance.choice(list(federation.namespaces))
        federation.publish(
            victim, MESSAGES, BODY_BYTES
        )  # what is under way from it; traffic is what is under way to it
        with traffic(federation, chance, set(federation.namespaces) - {victim}, kills):
            federation.namespaces[victim].kill()
        time.sleep(chance.uniform(0.0, 3.0))
        federation.namespaces[victim].start()
        check_moved(federation)
        assert run.is_alive(), run.log()[-3000:]
    assert run.end() == 0


def test_the_driver_is_killed(
    federation: FederationProcess, chance: random.Random, kills: list[int], long_count: Callable[[int], int]
) -> None:
    run = federation.run(*RUN)
    run.wait_phase(("waiting", "moving"))
    for _ in range(long_count(ROUNDS)):
        with traffic(federation, chance, federation.namespaces, kills):
            run = kill_and_start_again(federation, run)
        run.wait_phase(("waiting", "moving", "starting", "stalled"))
        check_moved(federation)
    assert run.end() == 0


def kill_and_start_again(federation: FederationProcess, run: RunProcess) -> RunProcess:
    below = psutil.Process(run.pid).children(recursive=True)
    run.end(signal.SIGKILL)
    # Spark's Java notices that its driver has ended, and ends; a worker that outlived it would still move messages, which is allowed.
    psutil.wait_procs(below, timeout=30)
    return federation.run(*RUN)


def kill_a_worker(run: RunProcess, chance: random.Random) -> None:
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if workers := run.workers():
            with suppress(psutil.NoSuchProcess):  # one may end as soon as it was seen
                psutil.Process(chance.choice(workers)).kill()
                return
        time.sleep(0.01)
    raise AssertionError(f"no worker to kill: {run.log()[-3000:]}")


def test_a_worker_is_killed(
    federation: FederationProcess, chance: random.Random, kills: list[int], long_count: Callable[[int], int]
) -> None:
    run = federation.run(*RUN)
    run.wait_phase(("waiting", "moving"))
    for _ in range(long_count(ROUNDS)):
        with traffic(federation, chance, federation.namespaces, kills):
            kill_a_worker(run, chance)
        check_moved(federation)
        assert run.is_alive(), run.log()[-3000:]
    assert run.end() == 0
