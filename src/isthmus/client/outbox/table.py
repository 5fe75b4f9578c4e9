"""An outbox in the application's own SQLite database: a message is sent if, and only if, the application's transaction commits.

What it is: a table that the application adds messages to within its own transaction, and a thread that delivers what has been
committed. What it is not: a connection of its own for adding; that is the application's.

    box = outbox.sqlite(connection, "orders")
    with connection:
        connection.execute("INSERT INTO bookings …")
        box.add(ServiceBusMessage("booked"))

    with outbox.SqliteDelivery(namespace, "orders", "app.db"): …

Invariants:
    I1. A message is delivered only after the transaction that added it has committed; then at least once, with one MessageId.
    I2. Messages are delivered in the order in which their transactions took SQLite's write lock, which is the order of their numbers.
    I3. A row is deleted only after the namespace accepted its message. The row of a refused message stays, with the reason; the message is
        sent again once the reason is null.
"""

from __future__ import annotations

import os
import sqlite3
import time
import zlib
from contextlib import closing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from azure.servicebus.exceptions import MessageSizeExceededError

from isthmus.client.endpoint import Endpoint, EndpointLike
from isthmus.client.outbox.backlog import Batch
from isthmus.client.outbox.drain import Drain, DrainState
from isthmus.client.outbox.folder import Lock
from isthmus.client.send.lane import Lane
from isthmus.client.send.parcel import Parcel
from isthmus.errors import InvalidArgumentError, StoreError

__all__ = ["SqliteDelivery", "SqliteOutbox", "sqlite"]

TABLE = "isthmus_outbox"
_BUSY_SECONDS = 30.0
_SAFE_LIMIT_BYTES = 252 << 10  # every tier accepts it


def sqlite(
    connection: sqlite3.Connection, entity: str, *, table: str = TABLE, max_message_bytes: int = _SAFE_LIMIT_BYTES
) -> SqliteOutbox:
    """The outbox of an entity in the database of a connection; a missing table is created.

    Args:
        connection: the application's own. No transaction may be open.
        entity: queue or topic that the messages are for.
        table: its name.
        max_message_bytes: the largest message that the namespace accepts.

    Raises:
        InvalidArgumentError: the name is no plain name, or a transaction is open.
    """
    return SqliteOutbox(connection, entity, table, max_message_bytes)


class SqliteOutbox:
    """The application's side: adds messages within its transaction. It belongs to the thread of the connection."""

    def __init__(self, connection: sqlite3.Connection, entity: str, table: str, max_message_bytes: int) -> None:
        # With `autocommit=False` (Python 3.12) a transaction is always open; one that has changed nothing may be committed.
        is_always_open = getattr(connection, "autocommit", None) is False
        if connection.in_transaction and not (is_always_open and connection.total_changes == 0):
            raise InvalidArgumentError("a transaction is open; make the outbox before it begins")
        self._connection = connection
        self._entity = entity
        self._limit = max_message_bytes
        self._table = _checked(table)
        _make(connection, self._table)

    def add(self, message: Any) -> tuple[str, ...]:
        """Add one or several messages to the open transaction; without one, SQLite's own rules decide when it commits.

        Args:
            message: messages of azure-servicebus.

        Returns:
            Their MessageIds, in order.

        Raises:
            MessageSizeExceededError: a message is larger than the namespace accepts.
        """
        parcel = Parcel.of(message)
        for payload in parcel.payloads:
            if len(payload) > self._limit:
                raise MessageSizeExceededError(
                    message=f"a message for {self._entity!r} has {len(payload)} bytes; the limit is {self._limit} bytes"
                )
        now_ms = time.time_ns() // 1_000_000
        self._connection.executemany(
            f"INSERT INTO {self._table} (entity, written_ms, payload) VALUES (?, ?, ?)",  # noqa: S608  # a checked name
            [(self._entity, now_ms, payload) for payload in parcel.payloads],
        )
        return parcel.message_ids


class SqliteDelivery:
    """Delivers committed messages until it is closed. Of several for one entity, only one delivers at a time.

    Args:
        namespace: see `isthmus.client.endpoint` for the accepted forms.
        entity: queue or topic.
        database: the file of the database.
        table: name of the applications' table.
        attempt_timeout: seconds within which the namespace has to answer a batch; they count from when its last bytes have arrived there.
        options: further arguments of `ServiceBusClient`.
    """

    def __init__(
        self,
        namespace: EndpointLike,
        entity: str,
        database: str | os.PathLike[str],
        *,
        table: str = TABLE,
        attempt_timeout: float = 10.0,
        **options: Any,
    ) -> None:
        self._source = _TableSource(Path(database), entity, _checked(table))
        lane = Lane(Endpoint.of(namespace, **options), entity)
        self._drain = Drain(self._source, lane, attempt_timeout=attempt_timeout)
        self._drain.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all committed messages are delivered. Returns whether they are.

        Raises:
            StoreError: the table cannot be read.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._source.waiting():
            self._drain.wake()
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def statistics(self) -> DrainState:
        """The state of the delivery."""
        return self._drain.state()

    def close(self) -> None:
        """Stop; waiting messages stay in the table."""
        self._drain.close()


class _TableSource:
    """The waiting messages of the table, for the drain."""

    def __init__(self, database: Path, entity: str, table: str) -> None:
        self._database = database
        self._entity = entity
        self._table = table
        self._lock: Lock | None = None
        self._connection: sqlite3.Connection | None = None
        self._numbers: list[int] = []  # of the batch that is being delivered
        # Messages that the namespace accepted and the table still has, since the application has locked it: they are not sent again (I1, within
        # this process). Stored with the payloads: in a table that was dropped and created again, the numbers belong to other messages.
        self._taken: list[tuple[int, bytes]] = []

    def acquire(self) -> bool:
        database = self._database.resolve()  # SQLite also follows links, and compares table names without case
        lock_name = f"{database.name}.{self._table.lower()}.{zlib.crc32(self._entity.encode()):08x}.lock"
        self._lock = Lock.take(database.with_name(lock_name))
        if self._lock is None:
            return False
        self._connection = self._open()
        return True

    def release(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def next_batch(self, limit_bytes: int, limit_count: int) -> Batch | None:
        assert self._connection is not None
        if self._taken:
            self._forget()
        batch, size = Batch(), 0
        self._numbers = []
        statement = f"SELECT number, written_ms, payload FROM {self._table} WHERE entity = ? AND refused IS NULL "  # noqa: S608
        try:
            # Row by row: the rows beyond the batch may be many and large.
            with closing(
                self._connection.execute(statement + "ORDER BY number LIMIT ?", (self._entity, limit_count))
            ) as rows:
                for number, written_ms, payload in rows:
                    size += len(payload) + 8
                    if batch.payloads and size > limit_bytes:
                        break
                    if not batch.payloads:
                        batch.oldest_ms = written_ms
                    batch.payloads.append(payload)
                    batch.last_number = number
                    self._numbers.append(number)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return batch if batch.payloads else None

    def done(self, batch: Batch) -> None:
        self._taken += zip(self._numbers, batch.payloads, strict=True)
        self._forget()

    def _forget(self) -> None:
        # Only these rows: one with a lower number, which was refused, may have to be sent again by now.
        self._run("BEGIN IMMEDIATE")
        try:
            for row in self._taken:
                self._run(f"DELETE FROM {self._table} WHERE number = ? AND payload = ?", row)  # noqa: S608
        finally:
            self._run("COMMIT")
        self._taken = []

    def set_aside(self, batch: Batch, reason: str) -> None:
        self._run(f"UPDATE {self._table} SET refused = ? WHERE number = ?", (reason, batch.last_number))  # noqa: S608

    def waiting(self) -> int:
        """The number of committed messages that are not delivered; may be called from any thread."""
        with closing(self._open()) as connection:
            try:
                row = connection.execute(
                    f"SELECT count(*) FROM {self._table} WHERE entity = ? AND refused IS NULL",  # noqa: S608
                    (self._entity,),
                ).fetchone()
            except sqlite3.Error as error:
                raise self._failed(error) from error
        return int(row[0])

    def _open(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self._database, timeout=_BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise StoreError(f"the database {self._database} cannot be opened: {error}") from error
        try:
            _make(connection, self._table)
        except StoreError:
            connection.close()
            raise
        return connection

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        assert self._connection is not None
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> StoreError:
        return StoreError(f"the table {self._table} of {self._database} cannot be used: {error}")


def _make(connection: sqlite3.Connection, table: str) -> None:
    try:
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {table} (number INTEGER PRIMARY KEY AUTOINCREMENT, entity TEXT NOT NULL, "
            "written_ms INTEGER NOT NULL, payload BLOB NOT NULL, refused TEXT)"
        )
        connection.commit()
    except sqlite3.Error as error:
        raise StoreError(f"the table {table} cannot be made: {error}") from error


def _checked(table: str) -> str:
    if not table.isidentifier():
        raise InvalidArgumentError(f"the table's name is {table!r}; it must be letters, digits and _")
    return table
