"""An outbox in the application's own PostgreSQL database, delivered to a real namespace."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from harness.client.client_region import Region, eventually, region
from harness.server.postgresql_server import PostgresqlServer, postgresql_server
from isthmus.client import outbox
from isthmus.client.outbox.table_postgresql import _TableSource
from isthmus.errors import InvalidArgumentError, StoreError

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def here() -> Iterator[Region]:
    with region("queues: {orders: {}, sessions: {requires_session: true}}") as running:
        yield running


@pytest.fixture(scope="module")
def database() -> Iterator[PostgresqlServer]:
    with postgresql_server() as server:
        with closing(server.connect()) as connection:
            connection.cursor().execute("CREATE TABLE bookings (number INTEGER)")
            connection.cursor().execute("CREATE TABLE seats (seat TEXT)")
            connection.commit()
        yield server


def text(number: int) -> ServiceBusMessage:
    return ServiceBusMessage(b"%d" % number, message_id=str(number))


def book(connection: Any, box: outbox.PostgresqlOutbox, number: int) -> None:
    connection.cursor().execute("INSERT INTO bookings VALUES (%s)", (number,))
    box.add(text(number))


def found(here: Region, queue: str = "orders") -> list[int]:
    return list(dict.fromkeys(int(str(message)) for message in here.received(queue)))


def test_messages_are_sent_if_and_only_if_the_transaction_commits(here: Region, database: PostgresqlServer) -> None:
    """I1 and I3, while the namespace is cut off and the database is ended and started."""
    with outbox.PostgresqlDelivery(here.connection_string, "orders", database.connect, attempt_timeout=2) as delivery:
        with closing(database.connect()) as connection:
            box = outbox.postgresql(connection, "orders")
            for number in range(20):
                book(connection, box, number)
                if number % 3:
                    connection.commit()
                else:
                    connection.rollback()
                if number == 10:
                    here.cut()
            eventually(lambda: delivery.statistics().failure)
        database.stop()
        database.start()
        here.mend()
        assert delivery.flush(60)
    with closing(database.connect()) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT number FROM bookings ORDER BY number")
        rows = [row[0] for row in cursor.fetchall()]
    assert rows == [number for number in range(20) if number % 3]
    assert found(here) == rows


def test_the_order_is_that_of_commits(here: Region, database: PostgresqlServer) -> None:
    """I2: a transaction that began to add before another, and commits after it, does not overtake it or get lost."""
    with closing(database.connect()) as first, closing(database.connect()) as second:
        boxes = [outbox.postgresql(each, "orders") for each in (first, second)]
        with outbox.PostgresqlDelivery(here.connection_string, "orders", database.connect) as delivery:
            boxes[0].add([text(1), text(2)])

            def add_later() -> None:
                boxes[1].add(text(3))  # waits for the first transaction
                second.commit()

            waiting = threading.Thread(target=add_later)
            waiting.start()
            waiting.join(0.5)
            assert waiting.is_alive()
            assert delivery.flush(10)  # nothing is committed
            first.commit()
            waiting.join(20)
            assert delivery.flush(30)
    assert found(here) == [1, 2, 3]


def test_what_commits_late_without_the_lock_is_not_lost(here: Region, database: PostgresqlServer) -> None:
    with closing(database.connect()) as first, closing(database.connect()) as second:
        boxes = [outbox.postgresql(each, "orders", ordered=False) for each in (first, second)]
        with outbox.PostgresqlDelivery(here.connection_string, "orders", database.connect) as delivery:
            boxes[0].add(text(1))
            boxes[1].add(text(2))
            second.commit()
            assert delivery.flush(30)
            first.commit()
            assert delivery.flush(30)
    assert found(here) == [2, 1]


def test_one_delivers_at_a_time_and_what_is_refused_stays(here: Region, database: PostgresqlServer) -> None:
    """I3 and I4."""
    with closing(database.connect()) as connection:
        box = outbox.postgresql(connection, "sessions")
        with outbox.PostgresqlDelivery(here.connection_string, "sessions", database.connect) as one:
            eventually(lambda: one.statistics().is_leader)
            with outbox.PostgresqlDelivery(here.connection_string, "sessions", database.connect) as other:
                box.add(text(1))  # without a session
                connection.commit()
                eventually(lambda: one.statistics().refused)
                assert (other.statistics().is_leader, other.statistics().refused) == (False, 0)
                one.close()
                eventually(lambda: other.statistics().is_leader)
        cursor = connection.cursor()
        cursor.execute("SELECT refused FROM isthmus_outbox WHERE entity = 'sessions'")
        [[reason]] = cursor.fetchall()
        assert "session" in reason.lower()
        connection.rollback()
        with pytest.raises(MessageSizeExceededError):
            box.add(ServiceBusMessage(bytes(300_000)))
        with pytest.raises(InvalidArgumentError):
            outbox.postgresql(connection, "orders", table="No Table")


class Losing:
    """A connection that is lost when something is deleted over it."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def cursor(self) -> Any:
        cursor = self._connection.cursor()

        def execute(statement: str, values: Any = ()) -> None:
            if statement.startswith("DELETE"):
                self._connection.close()
            cursor.execute(statement, values)

        return SimpleNamespace(execute=execute, fetchall=cursor.fetchall, fetchone=cursor.fetchone, close=cursor.close)


def test_what_was_delivered_is_not_sent_again_because_the_database_was_lost_i5(database: PostgresqlServer) -> None:
    """As a drain continues: it closes the source after an error, and opens it again."""
    connections: list[Any] = [Losing(database.connect()), database.connect(), database.connect()]
    source = _TableSource(lambda: connections.pop(0), "lost", "isthmus_outbox")
    with closing(database.connect()) as connection:
        box = outbox.postgresql(connection, "lost")
        box.add([text(1), text(2)])
        connection.commit()
        assert source.acquire()
        batch = source.next_batch(1 << 20, 2)
        assert batch is not None
        with pytest.raises(StoreError):
            source.done(batch)
        source.release()
        box.add(text(3))
        connection.commit()
        assert source.acquire()
        batch = source.next_batch(1 << 20, 10)
        assert batch is not None
        assert len(batch.payloads) == 1
        source.done(batch)
        assert source.next_batch(1 << 20, 10) is None
        source.release()


def test_an_outbox_does_not_commit_what_the_application_has_not(database: PostgresqlServer) -> None:
    with closing(database.connect()) as connection, closing(database.connect()) as other:
        connection.cursor().execute("INSERT INTO seats VALUES (%s)", ("1B",))
        with pytest.raises(InvalidArgumentError, match="would commit it"):
            outbox.postgresql(connection, "orders")
        connection.rollback()
        cursor = other.cursor()
        cursor.execute("SELECT seat FROM seats WHERE seat = '1B'")
        assert list(cursor.fetchall()) == []
        outbox.postgresql(connection, "orders").add(text(1))
        connection.rollback()


def test_schemas_of_one_database_are_delivered_side_by_side(here: Region, database: PostgresqlServer) -> None:
    """A table of the same name in each: one application's delivery must not wait for as long as another's lives."""

    def connecting(schema: str) -> Any:
        connection = database.connect()
        connection.cursor().execute(f"SET search_path TO {schema}")
        connection.commit()
        return connection

    with closing(database.connect()) as connection:
        for schema in ("east", "west"):
            connection.cursor().execute(f"CREATE SCHEMA {schema}")
        connection.commit()
    with (
        outbox.PostgresqlDelivery(here.connection_string, "orders", lambda: connecting("east")) as one,
        outbox.PostgresqlDelivery(here.connection_string, "orders", lambda: connecting("west")) as other,
        closing(connecting("east")) as first,
        closing(connecting("west")) as second,
    ):
        boxes = [outbox.postgresql(each, "orders") for each in (first, second)]
        boxes[0].add(text(1))
        boxes[1].add(text(2))  # waits for no transaction in the other schema
        for each in (second, first):
            each.commit()
        assert one.flush(30)
        assert other.flush(30)
    assert sorted(found(here)) == [1, 2]


def test_the_example_of_the_page(here: Region, database: PostgresqlServer, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "send-durably.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("PRIMARY", here.connection_string)
    exec(blocks[2], {"outbox": outbox, "ServiceBusMessage": ServiceBusMessage, "connect": database.connect})
    assert [str(message) for message in here.received("orders")] == ["seat 12A is booked"]
