"""What verification reads from a ledger."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from isthmus.amqp import section, types
from isthmus.connectors.ledger.file import OPEN
from isthmus.connectors.spool.block import Record, encode
from isthmus.replication.ledger.moved import LedgerUnreadableError, enqueued, moved
from isthmus.replication.ledger.table import LEDGER_SCHEMA


def test_moved_messages_of_a_route_and_origin_count_from_table_and_open_files(tmp_path: Path) -> None:
    rows = [
        {"route": "t.ewr.jfk", "outcome": "moved", "origin": "ewr/Orders", "origin_sequence_number": 1},
        {"route": "t.ewr.jfk", "outcome": "refused: TooLarge", "origin": "ewr/orders", "origin_sequence_number": 2},
        {"route": "t.jfk.lga", "outcome": "moved", "origin": "ewr/orders", "origin_sequence_number": 3},
        {"route": "t.ewr.jfk", "outcome": "moved", "origin": "lga/orders", "origin_sequence_number": 4},
        {"route": "t.ewr.jfk", "outcome": "moved", "source": "ewr/orders", "sequence_number": 5},
    ]
    folder = tmp_path / "date=2026-11-23"
    folder.mkdir()
    reported = [each | {"moved_time": datetime(2026, 11, 23, tzinfo=UTC)} for each in rows]
    pq.write_table(pa.Table.from_pylist(reported, LEDGER_SCHEMA), folder / "a.parquet")
    (tmp_path / OPEN).mkdir(parents=True)
    message = section.encode_message(b"x", annotations={"x-opt-sequence-number": types.Long(6)})
    (tmp_path / OPEN / "b.log").write_bytes(encode([Record("t.ewr.jfk\nmoved", 6, 0, message)], 0, 1))
    at_ms = 1_795_392_000_000
    assert moved(tmp_path, "t.ewr.jfk", ["ewr/orders"]) == {1: at_ms, 5: at_ms, 6: 1}


def test_what_steps_have_diverted_is_distinguished(tmp_path: Path) -> None:
    (tmp_path / OPEN).mkdir(parents=True)
    reported = {"moved": 1, "divert": 2}
    records = [
        Record(
            f"r\n{outcome}", 0, 0, section.encode_message(b"x", annotations={"x-opt-sequence-number": types.Long(n)})
        )
        for outcome, n in reported.items()
    ]
    (tmp_path / OPEN / "b.log").write_bytes(encode(records, 0, 1))
    for outcome, number in reported.items():
        assert list(moved(tmp_path, "r", ["ewr/orders"], outcome)) == [number]


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    folder = tmp_path / "date=2026-11-23"
    folder.mkdir()
    (folder / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(LedgerUnreadableError, match=r"a\.parquet cannot be read"):
        moved(tmp_path, "t.ewr.jfk", ["ewr/orders"])
    (folder / "a.parquet").unlink()
    (tmp_path / OPEN / "b.log").mkdir(parents=True)
    with pytest.raises(LedgerUnreadableError, match=r"b\.log cannot be read"):
        moved(tmp_path, "t.ewr.jfk", ["ewr/orders"])


def test_i3_a_ledger_shows_when_a_message_was_enqueued_at_its_origin_and_no_other_time(tmp_path: Path) -> None:
    early, late = "2026-11-23T07:00:00.000Z", "2026-11-23T08:30:00.000+00:00"
    own = {"source": "ewr/orders", "origin": "ewr/Orders", "outcome": "moved"}
    rows = [
        own | {"origin_sequence_number": 1, "enqueued_time": early},
        own | {"origin_sequence_number": 1, "enqueued_time": late},  # the queue was made again
        own | {"origin_sequence_number": 2, "enqueued_time": late, "source": "hub/orders"},  # when it came to the hub
        own | {"origin_sequence_number": 3, "enqueued_time": "half past eight"},
        own | {"origin_sequence_number": 4},
        own | {"origin_sequence_number": 5, "enqueued_time": early, "outcome": "refused: TooLarge"},
        {"source": "ewr/orders", "sequence_number": 6, "enqueued_time": early, "outcome": "moved"},
        own | {"origin_sequence_number": 7, "enqueued_time": "9999-12-31T23:59:59-23:59"},
    ]
    folder = tmp_path / "date=2026-11-23"
    folder.mkdir()
    reported = [{"route": "t.ewr.jfk", "moved_time": datetime(2026, 11, 23, tzinfo=UTC)} | each for each in rows]
    pq.write_table(pa.Table.from_pylist(reported, LEDGER_SCHEMA), folder / "a.parquet")
    found = enqueued(tmp_path, "t.ewr.jfk", ["ewr/orders"])
    at_ms = int(datetime(2026, 11, 23, 7, tzinfo=UTC).timestamp() * 1000)
    assert {number: ms for number, ms in found.items() if number != 7} == {1: at_ms + 5_400_000, 6: at_ms}
    assert enqueued(tmp_path / "nothing", "t.ewr.jfk", ["ewr/orders"]) == {}


def test_a_ledger_without_rows_shows_nothing(tmp_path: Path) -> None:
    assert moved(tmp_path, "t.ewr.jfk", ["ewr/orders"]) == {}
