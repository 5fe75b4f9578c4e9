"""All senders of the client library while both regions are killed, stopped, cut off and silenced at random, by a seed.

Every message that a sender was given is sent until a call returns for it. Afterwards every message is where it belongs, once:
queues detect duplicates, so that what is left of a lost acknowledgement is suppressed by its MessageId.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import pytest
from azure.servicebus import ServiceBusMessage

from harness.client.client_region import Region, region
from isthmus.client import DurableSender, OutboxFullError, RegionsUnavailableError, ReplicatedSender

MESSAGES = 200_000
QUEUE = "{requires_duplicate_detection: true, duplicate_detection_history_time_window: 1h, max_size_in_megabytes: 5120}"
CONFIG = f"queues: {{active: {QUEUE}, passive: {QUEUE}, durable: {QUEUE}}}"
FLUSH_SECONDS = 300.0

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Faults:
    """Breaks one region after the other, and restores it."""

    def __init__(self, regions: tuple[Region, Region], seed: int, pause_seconds: float) -> None:
        self._regions = regions
        self._random = random.Random(seed)
        self._pause = pause_seconds
        self._ending = threading.Event()
        self.counts: dict[str, int] = {}
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._ending.wait(self._random.random() * self._pause):
                one = self._random.choice(self._regions)
                kind = self._random.choice(("kill", "stop", "cut", "silence"))
                self.counts[kind] = self.counts.get(kind, 0) + 1
                getattr(self, f"_{kind}")(one, self._random.random() * 2)
        except BaseException as error:
            self.error = error
            raise

    def _kill(self, one: Region, _: float) -> None:
        one.namespace.kill()
        one.namespace.start()

    def _stop(self, one: Region, seconds: float) -> None:
        os.kill(one.namespace.pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(one.namespace.pid, signal.SIGCONT)

    def _cut(self, one: Region, seconds: float) -> None:
        one.cut()
        time.sleep(seconds)
        one.mend()

    def _silence(self, one: Region, seconds: float) -> None:
        one.silence()
        time.sleep(seconds)
        one.mend()
        one.proxy.cut()


def send_all(sender: Any, count: int, seed: int, failures: list[str]) -> None:
    """Numbers from 0 on, in lists of random length; each list until the sender takes it."""
    source = random.Random(seed)
    number = 0
    try:
        while number < count:
            wanted = range(number, min(count, number + source.choice((1, 1, 5, 50))))
            messages = [ServiceBusMessage(b"%d" % each, message_id=str(each)) for each in wanted]
            while True:
                try:
                    sender.send_messages(messages)
                    break
                except (RegionsUnavailableError, OutboxFullError):
                    time.sleep(0.05)
            number = wanted.stop
    except BaseException as error:
        failures.append(f"{type(sender).__name__}: {error!r}")
        raise


def numbers(one: Region, entity: str) -> list[int]:
    return [int(str(message)) for message in one.received(entity, wait=2)]


def faults_of(found: list[int], count: int, *, in_order: bool = True) -> str:
    """What is wrong with the numbers that a queue contained; empty where each of the numbers is there once, and in order."""
    missing = sorted(set(range(count)) - set(found))
    doubled = sorted(each for each, times in Counter(found).items() if times > 1)
    parts = [f"lost {len(missing)}: {missing[:20]}"] if missing else []
    parts += [f"doubled {len(doubled)}: {doubled[:20]}"] if doubled else []
    if in_order:
        late = [(before, each) for before, each in pairwise(found) if each < before]
        parts += [f"out of order {len(late)}: {late[:20]}"] if late else []
    return "; ".join(parts)


def run(tmp_path: Path, total: int, seed: int, pause_seconds: float) -> str:
    """All senders under all faults; a line of what was seen."""
    count = total // 3
    failures: list[str] = []
    with region(CONFIG, tmp_path / "west") as west, region(CONFIG, tmp_path / "east") as east:
        both = west.connection_string, east.connection_string
        with (
            ReplicatedSender(*both, "active", outbox=tmp_path / "outbox") as active,
            ReplicatedSender(*both, "passive", mode="passive", state=tmp_path / "roles") as passive,
            DurableSender(west.connection_string, "durable", tmp_path / "durable", attempt_timeout=2.0) as durable,
        ):
            threads = [
                threading.Thread(target=send_all, args=(sender, count, seed + index, failures))
                for index, sender in enumerate((active, passive, durable))
            ]
            with Faults((west, east), seed, pause_seconds) as faults:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            assert faults.error is None
            assert not failures
            assert durable.flush(FLUSH_SECONDS)
            for outbox in active._outboxes.values():
                assert outbox.flush(FLUSH_SECONDS)
            swaps = passive.statistics().swaps
        reported = f"{total} messages, faults {faults.counts}, {swaps} swaps, seed {seed}"
        wrong = {"durable": faults_of(numbers(west, "durable"), count)}
        for name, one in (("west", west), ("east", east)):
            wrong[f"active, {name}"] = faults_of(numbers(one, "active"), count, in_order=False)
        parts = [numbers(one, "passive") for one in (west, east)]
        wrong["passive"] = faults_of(sorted(set(parts[0]) | set(parts[1])), count)
        for part in parts:
            assert len(part) == len(set(part)), f"passive, doubled in one namespace: {reported}"
        assert not any(wrong.values()), f"{wrong}: {reported}"
    return reported


@pytest.fixture
def seed() -> int:
    chosen = int(os.environ.get("ISTHMUS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"seed {chosen}")
    return chosen


def test_senders_lose_nothing_under_random_faults(
    tmp_path: Path, seed: int, counted: Callable[[str, str], None]
) -> None:
    counted("client senders: 3000 messages", run(tmp_path, 3_000, seed, pause_seconds=0.5))


@pytest.mark.soak
def test_senders_lose_nothing_in_200_000_messages(
    tmp_path: Path, seed: int, counted: Callable[[str, str], None]
) -> None:
    counted(f"client senders: {MESSAGES} messages", run(tmp_path, MESSAGES, seed, pause_seconds=4.0))
