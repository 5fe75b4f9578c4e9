"""A process that sends durably is killed at random instants: nothing that `send_messages` returned for is lost, nothing comes out
of order, and a queue with duplicate detection has each message once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.client.client_region import region
from isthmus.client import DurableSender
from isthmus.client.outbox.store import status

CHILD = Path(__file__).parents[2] / "harness" / "client" / "outbox_child.py"
CONFIG = """
queues:
  orders: {requires_duplicate_detection: true, duplicate_detection_history_time_window: 1h, max_size_in_megabytes: 5120}
"""
KILLS = 200
LONGEST_LIFE_SECONDS = 0.6

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_kills_lose_nothing_and_keep_the_order(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    kills = long_count(KILLS)
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    source = random.Random(seed)
    returned = 0
    with region(CONFIG) as here:
        for kill in range(kills):
            child = subprocess.Popen(
                [sys.executable, str(CHILD), here.connection_string, str(tmp_path / "box"), str(returned)],
                stdout=subprocess.PIPE,
                text=True,
            )
            assert child.stdout is not None
            if kill % 3 == 1:
                here.cut()  # so that much waits when the next one starts
            try:
                line = child.stdout.readline()  # it has begun
                assert line, "the application ended by itself"
                time.sleep(source.random() * LONGEST_LIFE_SECONDS)
            finally:
                child.kill()
                child.wait()
                here.mend()
            lines = [line, *child.stdout.read().splitlines(keepends=True)]
            child.stdout.close()
            returned = int([each for each in lines if each.endswith("\n")][-1])
        with DurableSender(here.connection_string, "orders", tmp_path / "box") as sender:
            assert sender.flush(120)
        found = [int(str(message)) for message in here.received("orders", wait=1)]
        left = status(tmp_path / "box")
    counted(f"outbox: {kills} kills", f"{returned} messages, {len(found)} received, seed {seed}")
    assert left.messages == 0
    assert left.damaged == 0
    assert found == sorted(set(found)), "out of order or doubled"
    assert found[:returned] == list(range(returned)), "lost"
