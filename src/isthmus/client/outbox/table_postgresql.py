"""An outbox in the application's own PostgreSQL database: a message is sent if, and only if, the application's transaction commits.

What it is: a table that the application adds messages to within its own transaction, and a thread that delivers what has been
committed. What it is not: a driver; connections are those of one with Python's DB-API (PEP 249) whose parameters are `%s`, such as
psycopg, psycopg2 and pg8000.

    box = outbox.postgresql(connection, "orders")
    cursor.execute("INSERT INTO bookings …")
    box.add(ServiceBusMessage("booked"))
    connection.commit()

    with outbox.PostgresqlDelivery(namespace, "orders", connect): …

Invariants:
    I1. A message is delivered only after the transaction that added it has committed; then at least once, with one MessageId.
    I2. Messages are delivered in the order in which their transactions commit: `add` takes a lock until the end of the
        transaction, so that numbers follow commits. Without it (`ordered=False`) only those of one transaction keep their order.
    I3. A row is deleted only after the namespace accepted its message. The row of a refused message stays, with the reason.
    I4. Of several deliveries for one entity one works at a time, for as long as its connection is open.
    I5. What the namespace took is not sent again where the database is lost before its row is deleted, as long as this process lasts and no
        other delivery has taken over.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from types import TracebackType
from typing import Any, Self

from azure.servicebus.exceptions import MessageSizeExceededError

from isthmus.client.endpoint import Endpoint, EndpointLike
from isthmus.client.outbox.backlog import Batch
from isthmus.client.outbox.drain import Drain, DrainState
from isthmus.client.send.lane import Lane
from isthmus.client.send.parcel import Parcel
from isthmus.errors import InvalidArgumentError, StoreError

__all__ = ["PostgresqlDelivery", "PostgresqlOutbox", "postgresql"]

TABLE = "isthmus_outbox"
_SAFE_LIMIT_BYTES = 252 << 10  # every tier accepts it
_COLUMNS = (
    "number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, entity TEXT NOT NULL, written_ms BIGINT NOT NULL, "
    "payload BYTEA NOT NULL, refused TEXT"
)
# First keys of advisory locks: of those who add, and of the one who delivers.
_ADDING, _DELIVERING = 0x69737468, 0x69737469
# Their second keys, of a table and an entity. The locks are the database's: a table of the same name in another schema has its own.
_LOCK_KEY = "('x' || substr(md5(to_regclass(%s::text)::oid::text || '/' || %s::text), 1, 8))::bit(32)::int"


def postgresql(
    connection: Any,
    entity: str,
    *,
    table: str = TABLE,
    max_message_bytes: int = _SAFE_LIMIT_BYTES,
    ordered: bool = True,
) -> PostgresqlOutbox:
    """The outbox of an entity in the database of a connection; a missing table is created and committed.

    Args:
        connection: the application's own. No transaction may be open.
        entity: queue or topic that the messages are for.
        table: its name.
        max_message_bytes: the largest message that the namespace accepts.
        ordered: keep the order of commits; transactions that add to the entity are then serialised.

    Raises:
        InvalidArgumentError: the name is no plain name, or a transaction has changed something: it would be committed.
    """
    return PostgresqlOutbox(connection, entity, table, max_message_bytes, ordered=ordered)


class PostgresqlOutbox:
    """The application's side: adds messages within its transaction. It belongs to the thread of the connection."""

    def __init__(self, connection: Any, entity: str, table: str, max_message_bytes: int, *, ordered: bool) -> None:
        self._connection = connection
        self._entity = entity
        self._limit = max_message_bytes
        self._table = _checked(table)
        self._ordered = ordered
        _refuse_changes(connection)
        _make(connection, self._table)

    def add(self, message: Any) -> tuple[str, ...]:
        """Add one or several messages to the open transaction.

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
        with closing(self._connection.cursor()) as cursor:
            if self._ordered:
                cursor.execute(
                    f"SELECT pg_advisory_xact_lock(%s::int, {_LOCK_KEY})", (_ADDING, self._table, self._entity)
                )
            for payload in parcel.payloads:
                cursor.execute(
                    f"INSERT INTO {self._table} (entity, written_ms, payload) VALUES (%s, %s, %s)",  # noqa: S608
                    (self._entity, now_ms, payload),
                )
        return parcel.message_ids


class PostgresqlDelivery:
    """Delivers committed messages until it is closed. Of several for one entity, only one delivers at a time.

    Args:
        namespace: see `isthmus.client.endpoint` for the accepted forms.
        entity: queue or topic.
        connect: opens a connection to the database; called again after a connection was lost.
        table: name of the applications' table.
        attempt_timeout: seconds within which the namespace has to answer a batch; they count from when its last bytes have arrived there.
        options: further arguments of `ServiceBusClient`.
    """

    def __init__(
        self,
        namespace: EndpointLike,
        entity: str,
        connect: Callable[[], Any],
        *,
        table: str = TABLE,
        attempt_timeout: float = 10.0,
        **options: Any,
    ) -> None:
        self._source = _TableSource(connect, entity, _checked(table))
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
            StoreError: the database cannot be queried.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._source.waiting():
            self._drain.wake()
            if deadline is not None and time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True

    def statistics(self) -> DrainState:
        """The state of the delivery."""
        return self._drain.state()

    def close(self) -> None:
        """Stop; waiting messages stay in the table."""
        self._drain.close()


class _TableSource:
    """The waiting messages of the table, for the drain."""

    def __init__(self, connect: Callable[[], Any], entity: str, table: str) -> None:
        self._connect = connect
        self._entity = entity
        self._table = table
        self._connection: Any = None
        self._numbers: list[tuple[int, int]] = []  # of the batch that is being delivered, each with its time
        # What the namespace took and the table may still have (I5). In a table that was dropped and created again the numbers belong to other
        # messages, which were written later.
        self._taken: list[tuple[int, int]] = []

    def acquire(self) -> bool:
        self._connection = self._open()
        rows = self._run(f"SELECT pg_try_advisory_lock(%s::int, {_LOCK_KEY})", (_DELIVERING, self._table, self._entity))
        taken = bool(rows[0][0])
        if not taken:
            self.release()
        return taken

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # the server releases the lock with the connection, however that ends
                connection.close()

    def next_batch(self, limit_bytes: int, limit_count: int) -> Batch | None:
        if self._taken:
            self._forget()
        batch, size = Batch(), 0
        self._numbers = []
        first = f"SELECT number, written_ms, payload FROM {self._table} WHERE entity = %s AND refused IS NULL ORDER BY number LIMIT %s"  # noqa: S608
        # The rows beyond the batch may be many and large; the length of a payload is known without reading it.
        sizes = f"SELECT *, sum(octet_length(payload) + 8) OVER (ORDER BY number) - octet_length(payload) AS before FROM ({first}) AS first"  # noqa: S608
        for number, written_ms, payload in self._run(
            f"SELECT number, written_ms, payload FROM ({sizes}) AS waiting WHERE before <= %s ORDER BY number",  # noqa: S608
            (self._entity, limit_count, limit_bytes),
        ):
            size += len(payload) + 8
            if batch.payloads and size > limit_bytes:
                break
            if not batch.payloads:
                batch.oldest_ms = int(written_ms)
            batch.payloads.append(bytes(payload))
            batch.last_number = int(number)
            self._numbers.append((int(number), int(written_ms)))
        return batch if batch.payloads else None

    def done(self, batch: Batch) -> None:
        self._taken += self._numbers
        self._forget()

    def _forget(self) -> None:
        # These and no others: without the lock of `add`, one with a lower number may have been committed meanwhile.
        self._run(
            f"DELETE FROM {self._table} WHERE (number, written_ms) IN (SELECT * FROM unnest(%s::bigint[], %s::bigint[]))",  # noqa: S608
            ([number for number, _ in self._taken], [written_ms for _, written_ms in self._taken]),
            reads=False,
        )
        self._taken = []

    def set_aside(self, batch: Batch, reason: str) -> None:
        self._run(
            f"UPDATE {self._table} SET refused = %s WHERE number = %s",  # noqa: S608
            (reason, batch.last_number),
            reads=False,
        )

    def waiting(self) -> int:
        """The number of committed messages that are not delivered; may be called from any thread."""
        connection = self._open()
        try:
            return int(
                _run(
                    connection,
                    f"SELECT count(*) FROM {self._table} WHERE entity = %s AND refused IS NULL",  # noqa: S608
                    (self._entity,),
                )[0][0]
            )
        finally:
            with suppress(Exception):
                connection.close()

    def _open(self) -> Any:
        try:
            connection = self._connect()
        except Exception as error:  # each driver has errors of its own
            raise StoreError(f"no connection to the database of the table {self._table}: {error}") from error
        try:
            _make(connection, self._table)
        except StoreError:
            with suppress(Exception):
                connection.close()
            raise
        return connection

    def _run(self, statement: str, values: tuple[Any, ...], *, reads: bool = True) -> Sequence[Any]:
        return _run(self._connection, statement, values, reads=reads)


def _run(connection: Any, statement: str, values: tuple[Any, ...] = (), *, reads: bool = True) -> Sequence[Any]:
    """Execute and commit; the rows of a statement that reads."""
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute(statement, values)
            rows: Sequence[Any] = cursor.fetchall() if reads else ()
        connection.commit()
    except Exception as error:  # each driver has errors of its own
        raise StoreError(f"the outbox's table cannot be used: {error}") from error
    return rows


def _refuse_changes(connection: Any) -> None:
    """Refuse a connection whose transaction has changed something."""
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute("SELECT txid_current_if_assigned()")
            has_changed = cursor.fetchone()[0] is not None
    except Exception as error:  # each driver has errors of its own
        raise StoreError(f"the outbox's database cannot be asked: {error}") from error
    if has_changed:
        raise InvalidArgumentError(
            "a transaction has changed something, and making the outbox would commit it; make the outbox before it begins"
        )


def _make(connection: Any, table: str) -> None:
    # Two connections that create it at once would collide in the catalogue.
    statements = (
        f"SELECT pg_advisory_xact_lock({_ADDING}, {zlib.crc32(table.encode()) & 0x7FFFFFFF})",
        f"CREATE TABLE IF NOT EXISTS {table} ({_COLUMNS})",
    )
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute("SELECT to_regclass(%s::text)", (table,))
            if cursor.fetchone()[0] is None:
                for statement in statements:
                    cursor.execute(statement)
        connection.commit()
    except Exception as error:  # each driver has errors of its own
        raise StoreError(f"the table {table} cannot be made: {error}") from error


def _checked(table: str) -> str:
    if not (table.isascii() and table.isidentifier() and table == table.lower()):
        raise InvalidArgumentError(f"the table's name is {table!r}; it must be lower-case letters, digits and _")
    return table
