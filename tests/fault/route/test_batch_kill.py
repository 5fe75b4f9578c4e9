"""A query from a queue into a table that is killed with -9, driver, Java and workers, leaves each message once.

Spark's file sink recognises a batch by its number, and a batch that is repeated after a kill holds the same messages.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from isthmus.bench.counter import Counter
from isthmus.bench.load import pace
from isthmus.bench.table import QUEUE
from isthmus.testing.namespace import NamespaceProcess, namespace

pytestmark = pytest.mark.spark

ROUNDS = 20
RATE = 500
SECONDS = 4
LONG_SECONDS = 240


@contextmanager
def query(served: NamespaceProcess, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The query of `isthmus bench table`, in a session of processes of its own."""
    command = [
        sys.executable,
        "-m",
        "isthmus.bench.table",
        str(folder),
        "batch_seconds=0.3",
        f"spool={folder / 'spool'}",
    ]
    environment = {**os.environ, "BENCH_SOURCE": served.connection_string}
    with (folder / "query.log").open("ab") as log:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()


def test_a_killed_query_leaves_each_message_once(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    rounds, seed = long_count(ROUNDS), secrets.randbits(32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    sent = 0
    with namespace(tmp_path / "namespace", config=f"queues: {{{QUEUE}: {{lock_duration: 5s}}}}") as served:
        counter = Counter(served.admin_connection_string, served.ports["http"], QUEUE)
        for _ in range(rounds):
            with query(served, tmp_path) as process:
                pace(served.connection_string, [QUEUE], RATE, SECONDS)
                sent += RATE * SECONDS
                time.sleep(chance.uniform(0.0, 1.0))
                os.killpg(process.pid, signal.SIGKILL)
        with query(served, tmp_path) as process:
            limit = time.monotonic() + LONG_SECONDS
            while counter.read():
                assert process.poll() is None, (tmp_path / "query.log").read_text()[-2000:]
                assert time.monotonic() < limit
                time.sleep(0.1)
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            reported = json.loads(process.stdout.readline())
            process.wait(60)
        counter.close()
    assert (reported["rows"], reported["distinct"]) == (sent, sent)
    counted(f"{rounds} kills of a query into a table", f"{sent} messages, {reported['rows']} rows, seed {seed}")
