"""Receivers of two namespaces under kill -9, SIGSTOP, cut connections and restarts, by a seed.

R1. Every message that a namespace acknowledged is handled.
R2. After `complete_message` returned, in any process, no handler of that message begins.
R3. Two begins of one message without a completion in between happen only where the first one's process was killed, or was suspended.
R4. At the end nothing is left at either namespace.
R5. In a session the first handler of each message begins in the order in which the messages were sent.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import psutil
import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusError

from harness.client.client_receiver import KINDS, left, make_message
from isthmus.testing.region import Region, regions

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
CONFIG = """
limits: {min_lock_duration: 1s}
queues:
  orders: {lock_duration: 5s, max_delivery_count: 10000}
  ordered: {lock_duration: 3s, max_delivery_count: 10000, requires_session: true}
"""
WORKER = Path(__file__).parents[2] / "harness" / "client" / "client_worker.py"
MESSAGES = 200_000
KILLS = 200
BATCH = 100


class Worker:
    """A receiving process, started again after each kill."""

    def __init__(self, kind: str, folder: Path, primary: Region, secondary: Region, session: str = "") -> None:
        self.log = folder / "log.txt"
        self._command = [
            sys.executable, str(WORKER), kind, str(folder / "seen.db"), str(self.log), "ordered" if session else "orders",
            primary.connection_string, secondary.connection_string, *([session] if session else []),
        ]  # fmt: skip
        self._errors = (folder / "errors.txt").open("ab")
        self.errors = folder / "errors.txt"
        self.unsettled: set[int] = set()
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self.process = subprocess.Popen(self._command, stderr=self._errors, env=environment)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.unsettled.add(self.process.pid)

    def freeze(self, seconds: float) -> None:
        self.unsettled.add(self.process.pid)
        psutil.Process(self.process.pid).send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        psutil.Process(self.process.pid).send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._errors.close()


class Publisher:
    """Sends every message to both namespaces, in batches, until both have acknowledged it."""

    def __init__(self, both: tuple[Region, ...], count: int, session: str = "") -> None:
        self.count = count
        self._queue = "ordered" if session else "orders"
        self._options = {"session_id": session} if session else {}
        self.error: BaseException | None = None
        self._threads = [threading.Thread(target=self._run, args=(each,), daemon=True) for each in both]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join(600)
            assert not thread.is_alive(), "a publisher does not come to its end"
        assert self.error is None, self.error

    def _run(self, region: Region) -> None:
        at = 0
        limit = time.monotonic() + 3600
        while at < self.count:
            try:
                with (
                    ServiceBusClient.from_connection_string(
                        region.connection_string, retry_total=0, try_timeout=5
                    ) as client,
                    client.get_queue_sender(self._queue) as sender,
                ):
                    while at < self.count:
                        names = [f"m{number}" for number in range(at, min(at + BATCH, self.count))]
                        sender.send_messages([make_message(name, **self._options) for name in names], timeout=5)
                        at += len(names)
            except (ServiceBusError, OSError) as error:
                if time.monotonic() > limit:
                    self.error = error
                    return
                time.sleep(0.2)


@pytest.fixture(scope="module", autouse=True)
def tidy(collected: None) -> None:
    """What is left then is collected at the end of the module."""


@pytest.fixture
def both() -> Iterator[tuple[Region, ...]]:
    with regions(CONFIG) as made:
        yield made


def faults_of(log: Path, count: int, unsettled: set[int]) -> list[str]:
    """What is wrong with the account of the workers."""
    done: set[str] = set()
    begun: dict[str, list[int]] = {}
    faults = []
    for line in log.read_text().splitlines():
        what, pid, name = line.split()
        if what == "done":
            done.add(name)
        else:
            if name in done:
                faults.append(f"R2: {name} begins again after it was completed")
            elif any(each not in unsettled for each in begun.get(name, [])):
                faults.append(f"R3: {name} begins twice, and no process was disturbed")
            begun.setdefault(name, []).append(int(pid))
    missing = {f"m{number}" for number in range(count)} - done
    # A process that was killed between the durable mark and its note of it has handled the message.
    missing = {name for name in missing if not any(each in unsettled for each in begun.get(name, []))}
    return faults + [f"R1: {name} was never handled" for name in sorted(missing)[:10]]


def test_a_receiver_that_is_killed_at_random_instants_loses_and_repeats_nothing(
    both: tuple[Region, ...],
    tmp_path: Path,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = long_count(KILLS)
    count = 60 * kills
    kind = chance.choice(KINDS)
    with Publisher(both, count), ExitStack() as stack:
        worker = Worker(kind, tmp_path, *both)
        stack.callback(worker.close)
        for number in range(kills):
            wait_for_lines(worker, 20 * (number + 1))
            time.sleep(chance.uniform(0.0, 0.3))
            worker.kill()
            worker.start()
        wait_for_done(worker, count, kills)
        nothing_left(both)
    counted(f"{kills} kill -9 of a receiver", f"{count} messages, {kind}, seed {seed}")
    faults = faults_of(worker.log, count, worker.unsettled)
    assert not faults, (faults[:10], worker.errors.read_text()[-2000:])


@pytest.mark.parametrize("workers", [2])
def test_two_receivers_while_namespaces_are_killed_frozen_and_cut_off(
    both: tuple[Region, ...],
    tmp_path: Path,
    workers: int,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
    request: pytest.FixtureRequest,
) -> None:
    """The soak: 200,000 messages with troubles by seed; 1,000 of them without `--soak`."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    count = MESSAGES if request.config.getoption("--soak") else 1_000
    long_count(MESSAGES)
    troubles = 0
    most = 0
    with Publisher(both, count), ExitStack() as stack:
        running = [Worker(KINDS[number % 2], tmp_path, *both) for number in range(workers)]
        for worker in running:
            stack.callback(worker.close)
        limit = time.monotonic() + 300 + count / 20
        while done_count(running[0].log) < count - troubles - BATCH:
            assert time.monotonic() < limit, f"{done_count(running[0].log)} of {count} are handled"
            region, worker = chance.choice(both), chance.choice(running)
            trouble = chance.choice(["outage", "frozen", "crash", "stalled", "kill", "freeze", "none"])
            seconds = chance.uniform(0.2, 3.0)
            if trouble == "kill":
                worker.kill()
                worker.start()
            elif trouble == "freeze":
                worker.freeze(seconds)
            elif trouble != "none":
                with getattr(region, trouble)():
                    time.sleep(seconds)
            troubles += trouble != "none"
            time.sleep(chance.uniform(0.5, 3.0))
            with suppress(psutil.Error):
                most = max(most, *(psutil.Process(each.process.pid).memory_info().rss for each in running))
        wait_for_done(running[0], count, sum(len(each.unsettled) for each in running))
        nothing_left(both)
    counted(
        f"{count} messages, {workers} receivers",
        f"{troubles} troubles, most memory of a receiver {most >> 20} MiB, seed {seed}",
    )
    disturbed = set().union(*(each.unsettled for each in running))
    faults = faults_of(running[0].log, count, disturbed)
    assert not faults, (faults[:10], running[0].errors.read_text()[-2000:])
    assert most < 400 << 20


def test_a_failover_receiver_while_namespaces_are_killed_frozen_and_cut_off(
    both: tuple[Region, ...],
    tmp_path: Path,
    counted: Callable[[str, str], None],
    request: pytest.FixtureRequest,
) -> None:
    """R1 to R3: it fails over and back on its own; what it leaves at the secondary are copies of what it has handled."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    count = MESSAGES if request.config.getoption("--soak") else 500
    troubles: Counter[str] = Counter()
    with Publisher(both, count), ExitStack() as stack:
        worker = Worker("failover", tmp_path, *both)
        stack.callback(worker.close)
        limit = time.monotonic() + 300 + count / 20
        while done_count(worker.log) < count - troubles.total() - BATCH:
            assert time.monotonic() < limit, f"{done_count(worker.log)} of {count} are handled"
            trouble = chance.choice(["outage", "frozen", "crash", "stalled", "kill", "none"])
            seconds = chance.uniform(0.2, 6.0)
            troubles[trouble] += 1
            if trouble == "kill":
                worker.kill()
                worker.start()
            elif trouble != "none":
                with getattr(chance.choice(both), trouble)():
                    time.sleep(seconds)
            time.sleep(chance.uniform(0.5, 4.0))
        wait_for_done(worker, count, troubles["kill"])
    counted(f"{count} messages, a failover receiver", f"troubles {dict(troubles)}, seed {seed}")
    faults = faults_of(worker.log, count, worker.unsettled)
    assert not faults, (faults[:10], worker.errors.read_text()[-2000:])


def test_a_session_stays_in_order_though_its_receiver_is_killed(
    both: tuple[Region, ...],
    tmp_path: Path,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
) -> None:
    """R5, and R1 to R3."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kills = long_count(60)
    count = 80 * kills
    kind = chance.choice(KINDS)
    with Publisher(both, count, "s"), ExitStack() as stack:
        worker = Worker(kind, tmp_path, *both, session="s")
        stack.callback(worker.close)
        for number in range(kills):
            wait_for_lines(worker, 20 * (number + 1))
            time.sleep(chance.uniform(0.0, 0.3))
            worker.kill()
            worker.start()
        wait_for_done(worker, count, kills)
    counted(f"{kills} kill -9 of a session's receiver", f"{count} messages, {kind}, seed {seed}")
    faults = faults_of(worker.log, count, worker.unsettled)
    assert not faults, (faults[:10], worker.errors.read_text()[-2000:])
    begun = [int(line.split()[2][1:]) for line in worker.log.read_text().splitlines() if line.startswith("begin")]
    first = list(dict.fromkeys(begun))
    assert first == sorted(first)


def wait_for_lines(worker: Worker, count: int, seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not worker.log.exists() or worker.log.read_bytes().count(b"done") < count:
        assert time.monotonic() < limit, f"nothing moves: {worker.errors.read_text()[-2000:]}"
        assert worker.process.poll() is None, worker.errors.read_text()[-2000:]
        time.sleep(0.02)


def done_count(log: Path) -> int:
    return (
        len({line.split()[2] for line in log.read_bytes().splitlines() if line[:4] == b"done"}) if log.exists() else 0
    )


def wait_for_done(worker: Worker, count: int, kills: int) -> None:
    """All are handled, as far as a worker that was killed could note it."""
    limit = time.monotonic() + 300 + count / 10
    before, since = -1, time.monotonic()
    while (now := done_count(worker.log)) < count:
        if now != before:
            before, since = now, time.monotonic()
        if time.monotonic() - since > 15 and now >= count - kills:
            return
        assert time.monotonic() < limit, f"{now} of {count} are handled: {worker.errors.read_text()[-2000:]}"
        time.sleep(0.2)


def nothing_left(both: tuple[Region, ...]) -> None:
    """R4."""
    for region in both:
        assert left(region.namespace, "orders", 90) == []
