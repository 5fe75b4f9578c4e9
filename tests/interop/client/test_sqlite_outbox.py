"""An outbox in the application's own SQLite database, delivered to a real namespace."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from harness.client.client_region import Region, eventually, region
from isthmus.client import outbox
from isthmus.errors import InvalidArgumentError

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

CONFIG = "queues: {orders: {}, sessions: {requires_session: true}}"


@pytest.fixture(scope="module")
def served() -> Iterator[Region]:
    with region(CONFIG) as here:
        yield here


@pytest.fixture
def here(served: Region) -> Iterator[Region]:
    served.mend()
    yield served
    served.mend()
    served.drain("orders")


def text(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(b"%d" % number, message_id=str(number))


def booked(connection: sqlite3.Connection, box: outbox.SqliteOutbox, number: int) -> None:
    connection.execute("INSERT INTO bookings VALUES (?)", (number,))
    box.add(text(number))


def test_messages_are_sent_if_and_only_if_the_transaction_commits(here: Region, tmp_path: Path) -> None:
    """I1 to I3."""
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("CREATE TABLE bookings (number INTEGER)")
        box = outbox.sqlite(connection, "orders")
        with outbox.SqliteDelivery(
            here.connection_string, "orders", tmp_path / "app.db", attempt_timeout=2
        ) as delivery:
            for number in range(20):
                try:
                    with connection:
                        booked(connection, box, number)
                        if number % 3 == 0:
                            raise RuntimeError("the application changes its mind")
                except RuntimeError:
                    pass
                if number == 10:
                    here.cut()
            eventually(lambda: delivery.statistics().failure)
            here.mend()
            assert delivery.flush(60)
        rows = [row[0] for row in connection.execute("SELECT number FROM bookings ORDER BY rowid")]
    assert rows == [number for number in range(20) if number % 3]
    found = [int(str(message)) for message in here.received("orders")]
    assert list(dict.fromkeys(found)) == rows


def test_an_open_transaction_is_not_delivered(here: Region, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        box = outbox.sqlite(connection, "orders")
        with outbox.SqliteDelivery(here.connection_string, "orders", tmp_path / "app.db") as delivery:
            box.add(text(1))
            assert delivery.flush(10)
            assert here.received("orders", wait=0.5) == []
            connection.commit()
            assert delivery.flush(60)
    assert [int(str(message)) for message in here.received("orders")] == [1]


def test_a_message_that_is_refused_stays_with_its_reason(here: Region, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        box = outbox.sqlite(connection, "sessions")
        with connection:
            box.add(
                [
                    ServiceBusMessage(b"a", session_id="s"),
                    ServiceBusMessage(b"b"),
                    ServiceBusMessage(b"c", session_id="s"),
                ]
            )
        with outbox.SqliteDelivery(here.connection_string, "sessions", tmp_path / "app.db") as delivery:
            assert delivery.flush(60)
            assert delivery.statistics().refused == 1
        [[reason]] = connection.execute("SELECT refused FROM isthmus_outbox").fetchall()
    assert "SessionId" in reason


def test_what_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as connection:
        with pytest.raises(InvalidArgumentError, match="letters, digits"):
            outbox.sqlite(connection, "orders", table="a; DROP TABLE b")
        box = outbox.sqlite(connection, "orders")
        with pytest.raises(MessageSizeExceededError, match="the limit is"):
            box.add(ServiceBusMessage(b"x" * 300_000))
        connection.execute("BEGIN")
        with pytest.raises(InvalidArgumentError, match="a transaction is open"):
            outbox.sqlite(connection, "orders")
