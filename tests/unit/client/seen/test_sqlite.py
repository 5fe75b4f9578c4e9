"""The list of seen messages in a file: the common scenarios, and those that only a file has."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from isthmus.client.seen import Bounds, SeenStore, SeenStoreError, SqliteSeen, Verdict
from isthmus.client.seen.sqlite import _Handling
from isthmus.testing.clock import ManualClock
from isthmus.testing.seen_conformance import MakeSeen, SeenConformance


class TestSqliteSeen(SeenConformance):
    @pytest.fixture(autouse=True)
    def clock(self) -> None:
        self.time = ManualClock()

    def advance(self, seconds: float) -> None:
        self.time.advance(round(seconds * 1000))

    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[MakeSeen]:
        made: list[SqliteSeen] = []

        def make(bounds: Bounds) -> SeenStore:
            made.append(SqliteSeen(tmp_path / "folder" / "seen.db", bounds, self.time))
            return made[-1]

        yield make
        for each in made:
            each.close()


def test_what_was_handled_stays_after_the_store_is_opened_again(tmp_path: Path) -> None:
    store = SqliteSeen(tmp_path / "seen.db")
    store.handle([(b"a" * 16,)], "one")
    store.close()
    again = SqliteSeen(tmp_path / "seen.db")
    assert again.claim([(b"a" * 16,), (b"b" * 16,)], "two") == [Verdict.HANDLED, Verdict.NEW]
    again.close()


def test_only_its_user_may_read_it(tmp_path: Path) -> None:
    SqliteSeen(tmp_path / "seen.db").close()
    assert stat.S_IMODE((tmp_path / "seen.db").stat().st_mode) == 0o600


def test_a_file_that_is_no_such_list_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "seen.db").write_bytes(b"not a database, but longer than a header of one" * 100)
    with pytest.raises(SeenStoreError, match=r"seen\.db failed: file is not a database"):
        SqliteSeen(tmp_path / "seen.db")


def test_a_list_of_a_later_version_is_refused(tmp_path: Path) -> None:
    SqliteSeen(tmp_path / "seen.db").close()
    with sqlite3.connect(tmp_path / "seen.db") as connection:
        connection.execute("PRAGMA user_version=9")
    connection.close()
    with pytest.raises(SeenStoreError, match="it is of version 9, this program reads 1"):
        SqliteSeen(tmp_path / "seen.db")


def test_the_file_does_not_grow_beyond_its_bounds(tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    store = SqliteSeen(path, Bounds(max_count=2000))
    sizes = []
    for iteration in range(10):
        store.handle([(b"%016d" % number,) for number in range(iteration * 2000, iteration * 2000 + 2000)], "one")
        store.sweep()
        sizes.append(path.stat().st_size + (tmp_path / "seen.db-wal").stat().st_size)
    assert store.count() == 2000
    store.close()
    assert path.stat().st_size <= 3 * 2000 * 100
    assert max(sizes) < 6_000_000  # SQLite writes its log back to the file at 1000 pages of 4 KiB


def test_the_file_is_bounded_by_time(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteSeen(tmp_path / "seen.db", Bounds(window=timedelta(seconds=10)), clock)
    for number in range(100):
        store.handle([(b"%016d" % number,)], "one")
        clock.advance(1000)
        store.sweep()
        assert store.count() <= 11
    store.close()


_HANDLES = """
import sys
from isthmus.client.seen import SqliteSeen
store = SqliteSeen(sys.argv[1])
for number in range(int(sys.argv[2]), 1_000_000_000):
    store.claim([(b"%016d" % number,)], sys.argv[3])
    store.handle([(b"%016d" % number,)], sys.argv[3])
    print(number, flush=True)
"""


def test_what_handle_returned_for_is_there_after_kill_9_of_one_of_two_processes(tmp_path: Path) -> None:
    path = tmp_path / "seen.db"
    SqliteSeen(path).close()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    starts = (0, 1_000_000)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _HANDLES, str(path), str(start), f"owner {start}"],
            stdout=subprocess.PIPE,
            env=environment,
        )
        for start in starts
    ]
    lines = []
    for process in processes:
        assert process.stdout is not None
        lines.append([process.stdout.readline() for _ in range(20)])
    for process, reported in zip(processes, lines, strict=True):
        process.send_signal(signal.SIGKILL)
        reported.extend(process.communicate()[0].splitlines(keepends=True))
    store = SqliteSeen(path)
    for reported in lines:
        keys = [(b"%016d" % int(line),) for line in reported if line.endswith(b"\n")]
        assert len(keys) >= 20
        assert store.claim(keys, "late") == [Verdict.HANDLED] * len(keys)
    store.close()


def test_a_commit_that_is_interrupted_is_reported_to_all_that_share_it(tmp_path: Path) -> None:
    """The main thread commits for all when Ctrl-C comes; a receiver that gets a message as handled settles it."""
    seen = SqliteSeen(tmp_path / "seen.db")
    run = seen._run

    def interrupted(connection: Any, work: Any) -> Any:
        def all_but_commit(cursor: Any) -> None:
            work(cursor)
            raise KeyboardInterrupt

        seen._run = run  # type: ignore[method-assign]
        return run(connection, all_but_commit)

    other = _Handling([(b"other",)])
    seen._waiting.append(other)
    seen._run = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        seen.handle([(b"own",)], "o")
    assert seen.count() == 0
    assert other.is_done
    assert other.error is not None
    assert seen.handle([(b"own",), (b"other",)], "o") == [True, True]
    seen.close()


def test_a_lease_begins_when_it_is_written(tmp_path: Path) -> None:
    """Not when the call began to wait for others: a later one may be written before, and would be shortened."""
    clock = ManualClock()
    store = SqliteSeen(tmp_path / "seen.db", Bounds(lease=timedelta(seconds=30)), clock)
    asked: list[bool] = []
    wall_ms = clock.wall_ms

    def read() -> int:
        asked.append(store._quick.in_transaction or store._durable.in_transaction)
        return wall_ms()

    clock.wall_ms = read  # type: ignore[method-assign]
    store.claim([(b"one",)], "me")
    store.renew("me")
    store.handle([(b"one",)], "me")
    store.sweep()
    assert asked == [True] * 4
    store.close()
