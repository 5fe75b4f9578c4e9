"""Reference data of a database: SQLite here, PostgreSQL in tests/interop/client/test_reference_database.py."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from isthmus.amqp import section
from isthmus.errors import InvalidArgumentError
from isthmus.replication.step.chain.opener import open_message_step
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.step.reference.database import DatabaseQuery
from isthmus.topology.step import StepDeclaration

QUERY = "SELECT faa, name, lat FROM airports WHERE name LIKE '%o%'"


@pytest.fixture(name="database")
def _database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "airports.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE airports (faa, name, lat)")
        rows = [
            ("IAH", "Houston", 29.98),
            ("ORD", "Chicago", 41.97),
            (None, "Nowhere", 0),
            ("7", "Seven", 1),
            ("7", "Neo", None),
        ]
        connection.executemany("INSERT INTO airports VALUES (?, ?, ?)", rows)
    connection.close()
    monkeypatch.setenv("AIRPORTS", f"sqlite:///{path}")
    return path


def test_rows_are_found_by_the_text_of_their_key(database: Path) -> None:
    found = DatabaseQuery("env:AIRPORTS", QUERY, "faa", ["name", "lat"])()
    assert found == {"IAH": ("Houston", 29.98), "ORD": ("Chicago", 41.97), "7": ("Neo", None)}


def test_a_message_gets_its_columns(database: Path) -> None:
    settings = {
        "database": "env:AIRPORTS",
        "query": QUERY,
        "on": "dest = faa",
        "columns": ["name", "lat"],
        "missing": "fail",
    }
    step = open_message_step(StepDeclaration("enrich", settings))
    message = StepMessage(section.encode_message(b'{"dest": "IAH"}'))
    assert step.apply(message) is None
    assert message.json == {"dest": "IAH", "name": "Houston", "lat": 29.98}


@pytest.mark.parametrize(
    ("url", "query", "reported"),
    [
        ("", QUERY, "AIRPORTS"),
        ("nonsense", QUERY, "the secret is no URL of a database"),
        ("postgresql+nodriver://u:hunter2@h/d", QUERY, "Can't load plugin"),
        ("oracle+oracledb://u:hunter2@h/d", QUERY, "the driver oracledb is not installed"),
        ("postgresql+pg8000://u:hunter2@127.0.0.1:1/d", QUERY, "env:AIRPORTS"),
        (None, "SELECT nonesuch FROM airports", "no such column"),
        (None, "SELECT name FROM airports", "the query returns no column faa, lat"),
        (None, "SELECT faa, name, lat FROM airports WHERE name = :name", "name"),
        (None, "DELETE FROM airports", "env:AIRPORTS"),
    ],
)
def test_what_is_wrong_is_reported_without_the_password_i1(
    database: Path, monkeypatch: pytest.MonkeyPatch, url: str | None, query: str, reported: str
) -> None:
    if url is not None:
        monkeypatch.setenv("AIRPORTS", url)
    settings = {
        "database": "env:AIRPORTS",
        "query": query,
        "on": "dest = faa",
        "columns": ["name", "lat"],
        "missing": "keep",
    }
    with pytest.raises(InvalidArgumentError) as raised:
        open_message_step(StepDeclaration("enrich", settings))
    assert reported in str(raised.value)
    assert "hunter2" not in str(raised.value)
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT count(*) FROM airports").fetchone() == (5,)
    connection.close()
