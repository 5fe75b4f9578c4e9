"""The step `enrich` from a real PostgreSQL: types of its columns, and a database that is stopped and started."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from harness.server.postgresql_server import PostgresqlServer, postgresql_server
from isthmus.replication.step.reference.database import DatabaseQuery
from isthmus.replication.step.reference.repeated import Repeated

COLUMNS = ["name", "lat", "fee", "big", "opened", "id", "raw", "tags", "extra", "open"]
QUERY = f"SELECT code, {', '.join(COLUMNS)} FROM airports WHERE name LIKE '%o%' AND opened::text <> ''"


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[PostgresqlServer]:
    with postgresql_server() as running:
        connection = running.connect()
        connection.autocommit = True
        connection.cursor().execute(
            "CREATE TABLE airports (code numeric, name text, lat double precision, fee numeric, big bigint, opened timestamptz, id uuid, "
            "raw bytea, tags text[], extra jsonb, open boolean)"
        )
        connection.cursor().execute(
            "INSERT INTO airports VALUES (7, 'Houston', 29.98, 12.50, 9007199254740993, '1969-06-08T00:00:00Z', "
            "'00000000-0000-0000-0000-000000000007', '\\x01ff', ARRAY['a', 'b'], '{\"a\": [1, null]}', true)"
        )
        connection.close()
        yield running


def test_values_are_as_json_says_them_and_an_outage_leaves_them(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRPORTS", f"postgresql+pg8000://app@127.0.0.1:{server.port}/postgres")
    now = [0.0]
    data = Repeated(DatabaseQuery("env:AIRPORTS", QUERY, "code", COLUMNS), 60.0, "the airports", lambda: now[0])
    houston = (
        "Houston", 29.98, 12.5, 9007199254740993, "1969-06-08T00:00:00+00:00", "00000000-0000-0000-0000-000000000007",
        "01ff", ["a", "b"], {"a": [1, None]}, True,
    )  # fmt: skip
    assert data.get() == {"7": houston}

    def again() -> None:
        now[0] += 60.0
        data.get()
        data._thread.join(60.0)
        data.get()

    server.stop()
    with caplog.at_level(logging.WARNING):
        again()
        again()
    assert data.get() == {"7": houston}
    assert [each.getMessage().partition(" (")[0] for each in caplog.records if "airports" in each.getMessage()] == [
        "the airports cannot be read again; the previous data stays in use"
    ]
    server.start()
    connection = server.connect()
    connection.autocommit = True
    connection.cursor().execute("UPDATE airports SET name = 'Hobo'")
    connection.close()
    again()
    assert data.get()["7"][0] == "Hobo"
