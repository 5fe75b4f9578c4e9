"""The rows that a delivery reads from a table of SQLite, and deletes there."""

from __future__ import annotations

import sqlite3
import tracemalloc
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest
from azure.servicebus import ServiceBusMessage

from isthmus.client.outbox.drain import Drain
from isthmus.client.outbox.table import SqliteDelivery, _TableSource, sqlite
from isthmus.client.outbox.table_postgresql import _TableSource as PostgresqlSource
from isthmus.errors import InvalidArgumentError, StoreError


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "app.db")) as made:
        yield made


def add(connection: sqlite3.Connection, entity: str, *texts: bytes) -> None:
    with connection:
        sqlite(connection, entity).add([ServiceBusMessage(text) for text in texts])


def source(path: Path, entity: str) -> _TableSource:
    made = _TableSource(path / "app.db", entity, "isthmus_outbox")
    assert made.acquire(), "another delivery of this entity is at work"
    return made


class AlwaysOpen(sqlite3.Connection):
    """As a connection with `autocommit=False`, which Python 3.12 brought: a transaction is open from the beginning."""

    autocommit = False


def test_an_outbox_is_made_over_a_connection_with_a_transaction_from_the_beginning(tmp_path: Path) -> None:
    """It was refused whatever the application did. What has changed something is not committed unasked."""
    with closing(sqlite3.connect(tmp_path / "app.db", factory=AlwaysOpen)) as connection:
        connection.execute("BEGIN")
        sqlite(connection, "orders").add(ServiceBusMessage(b"one"))
        with pytest.raises(InvalidArgumentError, match="before it begins"):
            sqlite(connection, "invoices")
        connection.commit()
    here = source(tmp_path, "orders")
    assert here.next_batch(1000, 10) is not None
    here.release()


def test_entities_of_one_database_are_delivered_side_by_side(tmp_path: Path, connection: sqlite3.Connection) -> None:
    """A second entity's messages would wait for as long as the first one's delivery exists."""
    add(connection, "orders", b"order")
    add(connection, "invoices", b"invoice")
    both = [source(tmp_path, entity) for entity in ("orders", "invoices")]
    for each in both:
        batch = each.next_batch(1000, 10)
        assert batch is not None
        assert len(batch.payloads) == 1
        each.done(batch)
    assert not _TableSource(tmp_path / "app.db", "orders", "isthmus_outbox").acquire()
    for each in both:
        each.release()
    assert connection.execute("SELECT count(*) FROM isthmus_outbox").fetchone() == (0,)


def test_a_refused_message_that_is_to_be_sent_again_is_not_deleted_with_later_ones(
    tmp_path: Path, connection: sqlite3.Connection
) -> None:
    """The operator says so while a batch of later ones is under way."""
    add(connection, "orders", b"refused", b"later")
    here = source(tmp_path, "orders")
    first = here.next_batch(1000, 1)
    assert first is not None
    here.set_aside(first, "too large")
    batch = here.next_batch(1000, 10)
    assert batch is not None
    with connection:
        connection.execute("UPDATE isthmus_outbox SET refused = NULL")
    here.done(batch)
    again = here.next_batch(1000, 10)
    assert again is not None
    assert again.payloads == first.payloads
    here.done(again)
    assert here.next_batch(1000, 10) is None
    here.release()


def test_what_was_delivered_is_not_sent_again_because_the_application_has_the_table_locked(
    tmp_path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a drain continues: it closes the source after an error, and opens it again."""
    monkeypatch.setattr("isthmus.client.outbox.table._BUSY_SECONDS", 0.05)
    add(connection, "orders", b"a", b"b")
    here = source(tmp_path, "orders")
    batch = here.next_batch(1000, 10)
    assert batch is not None
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        here.done(batch)
    here.release()
    assert here.acquire()
    with pytest.raises(StoreError):
        here.next_batch(1000, 10)
    connection.commit()
    assert here.next_batch(1000, 10) is None
    add(connection, "orders", b"c")
    batch = here.next_batch(1000, 10)
    assert batch is not None
    assert len(batch.payloads) == 1
    here.release()


def test_a_table_that_was_made_anew_loses_nothing_for_what_was_delivered_before(
    tmp_path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("isthmus.client.outbox.table._BUSY_SECONDS", 0.05)
    add(connection, "orders", b"a")
    here = source(tmp_path, "orders")
    batch = here.next_batch(1000, 10)
    assert batch is not None
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError):
        here.done(batch)
    here.release()
    connection.execute("DROP TABLE isthmus_outbox")
    connection.commit()
    add(connection, "orders", b"other")
    assert here.acquire()
    batch = here.next_batch(1000, 10)
    assert batch is not None
    assert b"other" in batch.payloads[0]
    here.release()


def test_one_database_under_two_names_is_delivered_by_one(tmp_path: Path, connection: sqlite3.Connection) -> None:
    """SQLite follows links, and ignores the case of table names."""
    add(connection, "orders", b"order")
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(tmp_path / "app.db")
    here = source(tmp_path, "orders")
    assert not _TableSource(link, "orders", "isthmus_outbox").acquire()
    assert not _TableSource(tmp_path / "app.db", "orders", "Isthmus_Outbox").acquire()
    here.release()


def test_no_more_is_read_than_a_batch_takes(tmp_path: Path, connection: sqlite3.Connection) -> None:
    """Otherwise a table of large messages is read again whole for every few that are sent."""
    add(connection, "orders", *[bytes(100_000)] * 200)
    here = source(tmp_path, "orders")
    tracemalloc.start()
    batch = here.next_batch(250_000, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert batch is not None
    assert len(batch.payloads) == 2
    assert peak < 1_000_000
    here.done(batch)  # no reading is left open
    here.release()


@pytest.fixture
def delivery(tmp_path: Path, connection: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch) -> SqliteDelivery:
    """One that has a message to deliver, and no thread that delivers it."""
    add(connection, "orders", b"order")
    monkeypatch.setattr(Drain, "start", lambda self: None)
    endpoint = "Endpoint=sb://localhost/;SharedAccessKeyName=k;SharedAccessKey=a2V5"
    return SqliteDelivery(endpoint, "orders", tmp_path / "app.db")


def test_flush_says_in_an_error_of_ours_that_the_table_cannot_be_read(
    delivery: SqliteDelivery, connection: sqlite3.Connection
) -> None:
    assert not delivery.flush(timeout=0)
    with connection:
        connection.execute("ALTER TABLE isthmus_outbox RENAME COLUMN refused TO reason")
    with pytest.raises(StoreError, match="no such column: refused"):
        delivery.flush(timeout=0)


def test_flush_says_in_an_error_of_ours_that_the_file_is_no_database(delivery: SqliteDelivery, tmp_path: Path) -> None:
    (tmp_path / "app.db").write_bytes(b"no database" * 1000)
    with pytest.raises(StoreError, match="cannot be made: file is not a database"):
        delivery.flush(timeout=0)


def test_a_connection_to_postgresql_is_closed_where_the_table_cannot_be_made() -> None:
    """A delivery tries again each second: the server would soon have no connection left."""
    made = Mock()
    made.cursor.return_value.execute.side_effect = RuntimeError("permission denied")
    with pytest.raises(StoreError, match="permission denied"):
        PostgresqlSource(lambda: made, "orders", "isthmus_outbox").acquire()
    made.close.assert_called_once_with()
