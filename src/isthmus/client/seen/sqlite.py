"""The list of seen messages in an SQLite file, which several processes of one machine may share.

What it is: two tables in write-ahead logging mode (https://www.sqlite.org/wal.html): handled keys in the order in which they were
handled, and claims. A claim is written without waiting for the disk; a handled message is on the disk when `handle` returns, and
messages that several threads handle at the same time share one transaction and one sync. What it is not: for several machines;
SQLite's locks are not reliable on network file systems (use `redis` there).

Invariants: those of `isthmus.client.seen.store`, and:
    I5. Handled rows are removed from the front, so that their number is at most a difference of two row numbers.
    I6. Every transaction begins as a writer (BEGIN IMMEDIATE): two processes never both see a message as new. The time is read within it.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from isthmus.client.seen.store import Bounds, Keys, SeenStoreError, Swept, Verdict
from isthmus.clock import Clock, SystemClock

__all__ = ["SqliteSeen"]

_SCHEMA = """
CREATE TABLE IF NOT EXISTS handled (number INTEGER PRIMARY KEY, key BLOB NOT NULL UNIQUE, at_ms INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS claim (key BLOB PRIMARY KEY, owner TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS owner (owner TEXT PRIMARY KEY, until_ms INTEGER NOT NULL) WITHOUT ROWID;
"""
_VERSION = 1
# Longer than any transaction of another process on a busy disk; a process that is frozen within a transaction blocks the others for this long.
_BUSY_SECONDS = 10.0
_SWEPT_AT_ONCE = 10_000
T = TypeVar("T")


@dataclass(slots=True)
class _Handling:
    """Messages of one caller of `handle` that wait for the next transaction."""

    messages: Sequence[Keys]
    fresh: list[bool] = field(default_factory=list)
    error: SeenStoreError | None = None
    is_done: bool = False


class SqliteSeen:
    """A list of seen messages in a file.

    Args:
        path: path of the file, which is created with mode 0600 if it is missing; SQLite keeps two more files beside it.
        bounds: bounds of the list.
        clock: source of the time.

    Raises:
        SeenStoreError: the file cannot be opened, or is not a list of seen messages.
    """

    def __init__(self, path: str | os.PathLike[str], bounds: Bounds | None = None, clock: Clock | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._path = Path(path)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._waiting: list[_Handling] = []
        self._waiting_lock = threading.Lock()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as error:
            raise self._failed(error) from None
        with self._errors():
            self._durable = self._open("FULL")
            self._quick = self._open("NORMAL")

    def claim(self, messages: Sequence[Keys], owner: str) -> list[Verdict]:
        def work(cursor: sqlite3.Cursor) -> list[Verdict]:
            now_ms = self._clock.wall_ms()
            self._renew(cursor, owner, now_ms)
            return [self._claim(cursor, keys, owner, now_ms) for keys in messages]

        return self._transact(self._quick, work)

    def handle(self, messages: Sequence[Keys], owner: str) -> list[bool]:
        mine = _Handling(messages)
        with self._waiting_lock:
            self._waiting.append(mine)
        with self._lock:
            if not mine.is_done:  # otherwise another caller's transaction included it
                with self._waiting_lock:
                    batch, self._waiting = self._waiting, []
                self._handle(batch)
        if mine.error is not None:
            raise mine.error
        return mine.fresh

    def release(self, messages: Sequence[Keys], owner: str) -> None:
        rows = [(key, owner) for keys in messages for key in keys]
        self._transact(
            self._quick, lambda cursor: cursor.executemany("DELETE FROM claim WHERE key = ? AND owner = ?", rows)
        )

    def renew(self, owner: str) -> None:
        self._transact(self._quick, lambda cursor: self._renew(cursor, owner, self._clock.wall_ms()))

    def retire(self, owner: str) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            cursor.execute("DELETE FROM claim WHERE owner = ?", (owner,))
            cursor.execute("DELETE FROM owner WHERE owner = ?", (owner,))

        self._transact(self._quick, work)

    def sweep(self) -> Swept:
        def work(cursor: sqlite3.Cursor) -> Swept:
            now_ms = self._clock.wall_ms()
            expired = cursor.execute("SELECT owner FROM owner WHERE until_ms < ?", (now_ms,)).fetchall()
            cursor.executemany("DELETE FROM claim WHERE owner = ?", expired)
            cursor.executemany("DELETE FROM owner WHERE owner = ?", expired)
            first, last = cursor.execute("SELECT min(number), max(number) FROM handled").fetchone()
            if first is None:
                return Swept()
            kept = cursor.execute(
                "SELECT number FROM handled WHERE at_ms >= ? ORDER BY number LIMIT 1", (now_ms - self.bounds.window_ms,)
            ).fetchone()
            by_age = min((last + 1 if kept is None else kept[0]) - first, _SWEPT_AT_ONCE)
            by_count = min(max(0, last - first + 1 - by_age - self.bounds.max_count), _SWEPT_AT_ONCE)
            cursor.execute("DELETE FROM handled WHERE number < ?", (first + by_age + by_count,))
            return Swept(by_age, by_count)

        total = Swept()
        while True:
            swept = self._transact(self._quick, work)
            total = Swept(total.by_age + swept.by_age, total.by_count + swept.by_count)
            if max(swept.by_age, swept.by_count) < _SWEPT_AT_ONCE:
                return total

    def count(self) -> int:
        with self._errors(), self._lock:
            (count,) = self._quick.execute("SELECT coalesce(max(number) - min(number) + 1, 0) FROM handled").fetchone()
        return int(count)

    def close(self) -> None:
        with self._lock:
            self._quick.close()
            self._durable.close()

    # ---- within a transaction

    def _claim(self, cursor: sqlite3.Cursor, keys: Keys, owner: str, now_ms: int) -> Verdict:
        if self._any_handled(cursor, keys, now_ms):
            self._mark(cursor, keys, now_ms)
            return Verdict.HANDLED
        owners = {
            row[0]
            for key in keys
            for row in cursor.execute(
                "SELECT claim.owner FROM claim JOIN owner USING (owner) WHERE key = ? AND until_ms >= ?", (key, now_ms)
            )
        }
        if owners - {owner}:
            return Verdict.OTHERS
        cursor.executemany("INSERT OR REPLACE INTO claim VALUES (?, ?)", [(key, owner) for key in keys])
        return Verdict.MINE if owners else Verdict.NEW

    def _handle(self, batch: Sequence[_Handling]) -> None:
        def work(cursor: sqlite3.Cursor) -> None:
            now_ms = self._clock.wall_ms()
            for each in batch:
                each.fresh = []
                for keys in each.messages:
                    each.fresh.append(not self._any_handled(cursor, keys, now_ms))
                    self._mark(cursor, keys, now_ms)

        # After an interrupted commit, e.g. by Ctrl-C, its outcome is unknown: the other callers may ask again.
        error: SeenStoreError | None = self._failed(InterruptedError("the transaction was interrupted"))
        try:
            self._run(self._durable, work)
            error = None
        except SeenStoreError as failure:
            error = failure
        finally:
            for each in batch:
                each.error, each.is_done = error, True

    def _any_handled(self, cursor: sqlite3.Cursor, keys: Keys, now_ms: int) -> bool:
        since = now_ms - self.bounds.window_ms
        return any(
            cursor.execute("SELECT 1 FROM handled WHERE key = ? AND at_ms >= ?", (key, since)).fetchone()
            for key in keys
        )

    def _mark(self, cursor: sqlite3.Cursor, keys: Keys, now_ms: int) -> None:
        since = now_ms - self.bounds.window_ms
        for key in keys:
            cursor.execute("DELETE FROM claim WHERE key = ?", (key,))
            # A key beyond the window that no sweep has removed yet counts as absent: it is among the oldest rows, which the next sweep removes.
            cursor.execute("DELETE FROM handled WHERE key = ? AND at_ms < ?", (key, since))
            cursor.execute("INSERT OR IGNORE INTO handled (key, at_ms) VALUES (?, ?)", (key, now_ms))

    def _renew(self, cursor: sqlite3.Cursor, owner: str, now_ms: int) -> None:
        cursor.execute("INSERT OR REPLACE INTO owner VALUES (?, ?)", (owner, now_ms + self.bounds.lease_ms))

    # ---- transactions

    def _open(self, synchronous: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={synchronous}")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            connection.close()
            raise SeenStoreError(str(self._path), f"it is of version {version}, this program reads {_VERSION}")
        connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={_VERSION}; COMMIT;")
        return connection

    def _transact(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Cursor], T]) -> T:
        with self._lock:
            return self._run(connection, work)

    def _run(self, connection: sqlite3.Connection, work: Callable[[sqlite3.Cursor], T]) -> T:
        with self._errors():
            cursor = connection.execute("BEGIN IMMEDIATE")
            try:
                done = work(cursor)
                cursor.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.rollback()
                raise
            return done

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> SeenStoreError:
        return SeenStoreError(str(self._path), f"{error}")
