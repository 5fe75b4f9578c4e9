"""The messages of an archive that a replay sends, and their form."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.fixture.archive_filling import move, receive
from isthmus.amqp import section, types
from isthmus.connectors.spool.block import Record
from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.operations import replay as module
from isthmus.operations.deliver import UnconfirmedError
from isthmus.operations.replay import MARK, Replay, Replayed, chosen, outside, parse_moment, replayed_message
from isthmus.replication.archive.folder import ArchiveError

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000 // HOUR_MS * HOUR_MS
START = datetime.fromtimestamp(START_MS / 1000, UTC)


def record(number: int, ms: int) -> Record:
    message = section.encode_message(
        b"body %d" % number,
        header=section.Header(durable=True, ttl_ms=5000, delivery_count=3),
        annotations={
            "x-opt-sequence-number": types.Long(number),
            "x-opt-enqueued-time": types.Timestamp(START_MS + ms),
            "x-opt-partition-key": f"s{number % 2}",
            "x-own": 1,
        },
        properties={"message_id": f"m{number}", "group_id": f"s{number % 2}", "user_id": b"u"},
        application_properties={"n": types.UByte(number), "repl-origin": "jfk/q", "RuleName": "isthmus"},
    )
    return Record("ewr/q 01", number, START_MS + ms, message)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    receive(tmp_path / "spool", [record(number, number * HOUR_MS // 2) for number in range(6)])
    move(tmp_path / "spool", tmp_path / "lake")
    return tmp_path / "lake"


def numbers(table: Path, **wanted: object) -> list[int]:
    return [row["sequence_number"] for row, _ in chosen(table, Replay(name="r", **wanted), Replayed())]  # type: ignore[arg-type]


def test_a_window_a_session_a_filter_and_a_count_choose(table: Path) -> None:
    assert numbers(table) == [0, 1, 2, 3, 4, 5]
    assert numbers(table, after=datetime.fromtimestamp(START_MS / 1000 + 1800, UTC)) == [1, 2, 3, 4, 5]
    assert numbers(table, before=datetime.fromtimestamp(START_MS / 1000 + 3600, UTC)) == [0, 1]
    assert numbers(table, session="s1") == [1, 3, 5]
    assert numbers(table, where="n > 3 OR sys.MessageId = 'm0'") == [0, 4, 5]
    assert numbers(table, where="n > 1", count=2) == [2, 3]


def test_i4_what_is_not_in_the_table_yet_is_counted(table: Path, tmp_path: Path) -> None:
    assert outside(table, tmp_path / "spool") == 0
    receive(tmp_path / "spool", [record(number, number * HOUR_MS // 2) for number in range(6, 9)])
    assert len(numbers(table)) == 6
    assert outside(table, tmp_path / "spool") == 3
    move(tmp_path / "spool", table)
    assert (len(numbers(table)), outside(table, tmp_path / "spool")) == (9, 0)
    assert outside(table, tmp_path / "none") == 0


def test_i3_a_file_that_cannot_be_read_ends_a_replay_which_shows_what_was_sent(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = max(table.rglob("*.parquet"))
    last.write_bytes(last.read_bytes()[:-7])
    sender = SimpleNamespace(close=lambda: None)
    sender.wait_ready = lambda: sender
    monkeypatch.setattr(module, "Sender", lambda *_: sender)
    monkeypatch.setattr(module, "deliver", lambda client, sender, payloads: [None] * len(payloads))
    client: Any = None
    with pytest.raises(ArchiveError, match="parquet cannot be read") as damaged:
        module.replay(client, "q", table, Replay(name="first"))
    assert damaged.value.__notes__ == ["0 messages were sent; --name first gives them the same ids again"]


def test_a_message_keeps_all_that_its_sender_gave_it_and_is_marked(table: Path) -> None:
    wanted = Replay(name="again", keeps_ids=True)
    row, message = next(chosen(table, wanted, Replayed()))
    sent = replayed_message(row, message, wanted)
    sections = section.locate(sent)
    assert section.decode_properties(sent, sections.properties) == {
        "message_id": "m0",
        "group_id": "s0",
        "user_id": b"u",
    }
    own = section.decode_map(sent, sections.application_properties)
    assert own == {"n": 0, MARK: "again ewr/q/0"}
    assert type(own["n"]) is types.UByte
    annotations = {str(name) for name in section.decode_map(sent, sections.message_annotations)}
    assert annotations == {"x-opt-partition-key", "x-own"}
    assert section.decode_header(sent, sections.header).ttl_ms == 5000
    assert section.contents(sent, *sections.body) == b"body 0"


def test_i2_new_ids_are_the_same_for_the_same_name(table: Path) -> None:
    def ids(name: str) -> list[object]:
        wanted = Replay(name=name)
        sent = [replayed_message(row, message, wanted) for row, message in chosen(table, wanted, Replayed())]
        return [section.decode_properties(each, section.locate(each).properties)["message_id"] for each in sent]

    assert ids("a") == ids("a")
    assert len({*ids("a"), *ids("b")}) == 12


def test_i1_a_damaged_row_is_not_sent_and_is_reported(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from isthmus.operations import replay as module

    rows = list(module.rows_of(table))
    rows[2]["body"] = b"altered"
    monkeypatch.setattr(module, "rows_of", lambda *_: iter(rows))
    found = Replayed()
    assert [row["sequence_number"] for row, _ in chosen(table, Replay(name="r"), found)] == [0, 1, 3, 4, 5]
    assert (found.chosen, found.damaged) == (5, 1)
    assert "digest does not match" in found.first_damage


def test_what_is_no_archive_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="is not an archive"):
        list(chosen(tmp_path, Replay(name="r"), Replayed()))


def test_a_time_that_is_none_is_reported() -> None:
    assert parse_moment("--from", "2023-11-14T22:00:00Z") == START
    assert parse_moment("--from", "2023-11-14T22:00:00") == START
    with pytest.raises(InvalidArgumentError, match="--from yesterday: write a time"):
        parse_moment("--from", "yesterday")


def test_i3_a_replay_that_ends_early_shows_how_many_were_sent_and_under_which_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its name, which may have been made up, messages get other ids when it is run again."""

    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        error = UnconfirmedError("lost")
        error.results = [None, error, None]
        raise error

    rows = [({"source": "q", "sequence_number": number}, b"") for number in range(3)]
    sender = SimpleNamespace(close=lambda: None)
    sender.wait_ready = lambda: sender
    monkeypatch.setattr(module, "Sender", lambda *_: sender)
    monkeypatch.setattr(module, "deliver", deliver)
    monkeypatch.setattr(module, "chosen", lambda *_: iter(rows))
    monkeypatch.setattr(module, "replayed_message", lambda row, message, wanted: message)
    client: Any = None
    with pytest.raises(UnconfirmedError) as lost:
        module.replay(client, "q", tmp_path, Replay(name="first"))
    assert lost.value.__notes__ == [
        "message 1 of q",
        "2 messages were sent; --name first gives them the same ids again",
    ]


def test_what_is_stopped_shows_what_was_sent(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    sender = SimpleNamespace(close=lambda: None)
    sender.wait_ready = lambda: sender

    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        sent.extend(payloads)
        return [None] * len(payloads)

    monkeypatch.setattr(module, "Sender", lambda *_: sender)
    monkeypatch.setattr(module, "deliver", deliver)
    monkeypatch.setattr(module, "_AT_ONCE", 1)
    client: Any = None
    assert len(numbers(table)) > 2
    done = module.replay(client, "q", table, Replay(name="first"), is_stopped=lambda: len(sent) >= 2)
    assert (done.sent, len(sent), done.is_cut) == (2, 2, True)
    count = len(numbers(table))
    sent.clear()
    done = module.replay(client, "q", table, Replay(name="first"), is_stopped=lambda: len(sent) >= count)
    assert (done.sent, done.is_cut) == (count, False), "it has sent all when it is stopped"
