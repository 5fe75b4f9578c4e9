"""The account of a route's messages: appended before the outcome is reported, kept across a kill, and finally a table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from isthmus.amqp import section, types
from isthmus.bridge.delivery_event import Disposition, Granted, Lost, Opened, Outcome, Send, Stopped
from isthmus.bridge.host.sender.handle import TargetHandle
from isthmus.bridge.host.sender.rows import Part
from isthmus.bridge.port import Copies, TargetEvent
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.ledger.connector import LedgerTargets, with_ledger
from isthmus.connectors.ledger.file import OPEN, LedgerFile
from isthmus.connectors.ledger.target import LedgerTarget
from isthmus.connectors.servicebus.message.message_rewriter import MessageRewriter
from isthmus.connectors.spool.block import Record
from isthmus.errors import ConfigError
from isthmus.replication.ledger.ledger import check_ledgers
from isthmus.replication.ledger.table import LEDGER_SCHEMA, collect
from isthmus.topology.ledger import LedgerOptions
from isthmus.topology.model import Endpoint, Route, RouteOptions

REFUSED = Refusal(RefusalKind.MESSAGE, "amqp:too-large", "too large", "MessageTooLarge")


class Inner:
    """A target that a test scripts."""

    def __init__(self) -> None:
        self.events: list[TargetEvent] = []
        self.sent: list[bytes] = []

    def open(self) -> None:
        self.events += [Opened(), Granted(10)]

    def poll(self, now: float) -> Sequence[TargetEvent]:
        events, self.events = self.events, []
        return events

    def deadline(self, now: float) -> float:
        return now + 100

    def copies(self, data: bytes, offsets: Sequence[int], now_ms: int) -> Copies:
        return Copies((), [(0, Disposition("dead-letter", "Returning"))], ())

    def send(self, send: Send) -> None:
        self.sent += send.payloads

    def close(self) -> None:
        self.events.clear()


def message(number: int) -> bytes:
    return section.encode_message(
        b"body %d" % number,
        annotations={
            "x-opt-sequence-number": types.Long(number),
            "x-opt-enqueued-time": types.Timestamp(1_700_000_000_000 + number),
        },
        properties={"message_id": f"m{number}", "group_id": "s"},
    )


def made(folder: Path) -> tuple[Inner, LedgerTarget]:
    inner = Inner()
    target = LedgerTarget(inner, "t.ewr.jfk", LedgerFile(folder))
    target.open()
    target.poll(0.0)
    return inner, target


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.glob("date=*/*.parquet")) for row in pq.ParquetFile(file).read().to_pylist()]


def test_i1_an_outcome_is_noted_before_it_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, target = made(tmp_path)
    target.send(Send([message(1), message(2)]))
    target.send(Send([message(3), message(4)], is_envelope=True))
    noted: list[int] = []
    real = LedgerFile.append

    def append(self: LedgerFile, records: Sequence[Record]) -> None:
        noted.append(len(records))
        real(self, records)

    monkeypatch.setattr(LedgerFile, "append", append)
    inner.events = [Outcome(1, 2), Outcome(0, 0, REFUSED)]
    assert target.poll(1.0) == [Outcome(1, 2), Outcome(0, 0, REFUSED)]
    assert noted == [4]
    # The process is killed here: what was noted is in the file.
    target._file.close()
    assert collect(tmp_path, bodies=False) == 1
    found = [(row["outcome"], row["sequence_number"]) for row in rows(tmp_path)]
    assert sorted(found) == [("moved", 2), ("moved", 3), ("moved", 4), ("refused: MessageTooLarge", 1)]


def test_of_an_envelope_that_is_refused_what_was_taken_is_noted_and_nothing_else(tmp_path: Path) -> None:
    """The others are sent again, each alone: what becomes of them is not known yet."""
    inner, target = made(tmp_path)
    target.send(Send([message(1), message(2), message(3)], is_envelope=True))
    target.send(Send([message(4), message(5)], is_envelope=True))
    inner.events = [Outcome(0, 0, REFUSED, (0, 2)), Outcome(1, 1, REFUSED)]
    target.poll(1.0)
    target.close()
    collect(tmp_path, bodies=False)
    assert sorted((row["outcome"], row["sequence_number"]) for row in rows(tmp_path)) == [("moved", 1), ("moved", 3)]


def test_i2_while_it_cannot_be_written_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner, target = made(tmp_path)
    target.send(Send([message(1)]))
    real = os.write
    monkeypatch.setattr(os, "write", refuse)
    inner.events = [Outcome(0, 0)]
    (stopped,) = target.poll(1.0)
    assert isinstance(stopped, Stopped)
    assert "cannot be written, and the route waits: No space" in stopped.reason
    assert target.deadline(1.0) == 2.0
    assert target.poll(2.0) == ()
    monkeypatch.setattr(os, "write", real)
    assert target.poll(3.0) == [Outcome(0, 0), Stopped("")]
    assert target.poll(4.0) == []
    target.close()
    collect(tmp_path, bodies=False)
    assert [row["outcome"] for row in rows(tmp_path)] == ["moved"]


@pytest.mark.parametrize(
    ("events", "reason"),
    [([Stopped("no memory")], "no memory"), ([Stopped("no memory"), Lost(REFUSED)], ""), ([Stopped("")], "")],
)
def test_a_target_that_accepts_nothing_still_says_so_once_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: list[TargetEvent], reason: str
) -> None:
    inner, target = made(tmp_path)
    target.send(Send([message(1)]))
    with monkeypatch.context() as full:
        full.setattr(os, "write", refuse)
        inner.events = [Outcome(0, 0), *events]
        assert len(target.poll(1.0)) == 1
    assert target.poll(2.0) == [Outcome(0, 0), *events, Stopped(reason)]
    target.close()


def test_i2_the_route_waits_for_as_long_as_it_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its messages were sent again after each time-out, and the target had accepted them each time."""
    inner, target = Inner(), LedgerTarget(Inner(), "r", LedgerFile(tmp_path))
    target._inner = inner
    spec = RouteSpec(name="r", source=End("k", "a"), target=End("k", "b"), target_seconds=30.0)
    reports = Mock()
    handle = TargetHandle(1, spec, target, reports, 0.0)
    handle.open()
    handle.step(0.0, True)
    monkeypatch.setattr(inner, "copies", lambda data, offsets, now_ms: Copies([data]))
    handle.add(Part([7], message(7), [0, len(message(7))], (), None, ()))
    handle.step(1.0, False)
    with monkeypatch.context() as full:
        full.setattr(os, "write", refuse)
        inner.events = [Outcome(0, 0)]
        for now in range(2, 200):
            handle.step(float(now), True)
    reports.failed.assert_not_called()
    reports.settle.assert_not_called()
    (paused,) = reports.pause.call_args_list
    assert "the ledger of route r cannot be written" in paused.args[1]
    handle.step(200.0, True)
    reports.settle.assert_called_once_with(1, [7])
    reports.resume.assert_called_once_with(1)


def test_what_is_noted_after_a_file_could_not_get_its_name_is_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LedgerFile(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(Path, "rename", refuse)
        with pytest.raises(OSError, match="No space"):
            file.append([Record("t.ewr.jfk\nmoved", -1, 0, message(1))])
    file.append([Record("t.ewr.jfk\nmoved", -1, 0, message(1))])
    file.close()
    assert collect(tmp_path, bodies=False) == 1
    assert not list((tmp_path / OPEN).iterdir())


def refuse(*_: object) -> Any:
    raise OSError(28, "No space left on device")


def test_what_is_not_sent_is_noted_with_what_becomes_of_it(tmp_path: Path) -> None:
    _, target = made(tmp_path)
    payload = message(1)
    target.copies(payload, [0, len(payload)], 0)
    target.poll(1.0)
    target.close()
    collect(tmp_path, bodies=False)
    assert [row["outcome"] for row in rows(tmp_path)] == ["dead-letter: Returning"]


def test_i1_what_is_not_sent_is_noted_before_it_is_reported(tmp_path: Path) -> None:
    """The message leaves its source at once: after a kill there would have been nothing of it in the account."""
    _, target = made(tmp_path)
    payload = message(7)
    target.copies(payload, [0, len(payload)], 0)
    target._file.close()  # the process is killed here
    assert collect(tmp_path, bodies=False) == 1
    assert [(row["outcome"], row["sequence_number"]) for row in rows(tmp_path)] == [("dead-letter: Returning", 7)]


def test_a_lost_connection_begins_its_ordinals_again(tmp_path: Path) -> None:
    inner, target = made(tmp_path)
    target.send(Send([message(1), message(2)]))
    inner.events = [Lost(Refusal(RefusalKind.UNKNOWN, "", "gone"))]
    target.poll(1.0)
    target.open()
    target.send(Send([message(2)]))
    inner.events += [Outcome(0, 0)]
    target.poll(2.0)
    target.close()
    collect(tmp_path, bodies=False)
    assert [row["sequence_number"] for row in rows(tmp_path)] == [2]


def test_a_copy_shows_its_source_and_its_origin(tmp_path: Path) -> None:
    rewriter = MessageRewriter("ewr/q", "jfk", 8, origin_namespace="one", target_namespace="two", entity="q")
    payload = message(7)
    (copy,), _ = rewriter.copy_all(payload, [0, len(payload)], 1_700_000_001_000)
    file = LedgerFile(tmp_path)
    file.append([Record("r\nmoved", -1, 0, copy)])
    file.close()
    collect(tmp_path, bodies=True)
    (row,) = rows(tmp_path)
    assert (row["route"], row["outcome"], row["source"], row["sequence_number"]) == ("r", "moved", "ewr/q", 7)
    assert (row["origin"], row["origin_namespace"], row["origin_sequence_number"]) == ("ewr/q", "one", 7)
    assert (row["message_id"], row["session_id"], row["message"]) == ("m7", "s", copy)
    assert row["enqueued_time"].startswith("2023-11-14T22:13:20.007")


def test_i1_a_file_that_is_written_is_left_alone_until_it_is_old(tmp_path: Path) -> None:
    now = [100.0]
    file = LedgerFile(tmp_path, lambda: now[0])
    file.append([Record("r\nmoved", -1, 0, message(1))])
    assert collect(tmp_path, bodies=False) == 0
    file.tick()
    assert file.is_open
    now[0] += 60
    file.tick()
    assert collect(tmp_path, bodies=False) == 1
    assert list((tmp_path / OPEN).iterdir()) == []


def test_i2_a_kill_between_the_table_and_the_file_leaves_each_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LedgerFile(tmp_path)
    file.append([Record("r\nmoved", -1, 0, message(1))])
    file.close()

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, bodies=False)
    monkeypatch.undo()
    collect(tmp_path, bodies=False)
    assert len(rows(tmp_path)) == 1


def test_i3_a_torn_end_is_left_out_and_a_message_that_cannot_be_read_is_not(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path)
    file.append([Record("r\nmoved", -1, 0, b"junk")])
    file.append([Record("r\nmoved", -1, 0, message(2))])
    file.close()
    (path,) = (tmp_path / OPEN).iterdir()
    os.truncate(path, path.stat().st_size - 3)
    collect(tmp_path, bodies=False)
    assert [(row["outcome"], row["sequence_number"], row["size_bytes"]) for row in rows(tmp_path)] == [
        ("moved", None, 4)
    ]
    assert pq.read_schema(next(tmp_path.glob("date=*/*.parquet"))).names == LEDGER_SCHEMA.names


def test_what_a_divert_target_takes_has_an_outcome_of_its_own(tmp_path: Path) -> None:
    inner = Inner()
    target = LedgerTarget(inner, "r", LedgerFile(tmp_path), "divert")
    target.open()
    target.send(Send([message(1)]))
    inner.events.append(Outcome(0, 0))
    assert Outcome(0, 0) in target.poll(0.0)
    target.close()
    collect(tmp_path, bodies=False)
    assert [row["outcome"] for row in rows(tmp_path)] == ["divert"]


def test_a_route_keeps_its_target_behind_the_ledger(tmp_path: Path) -> None:
    inner = End("spool", "table:", {"path": str(tmp_path / "spool"), "source": "ewr/q"})
    end = with_ledger(inner, "r", tmp_path / "ledger")
    assert (end.kind, end.alias) == ("ledger", "table:")
    pool = LedgerTargets()
    assert isinstance(pool.target(1, end.options), LedgerTarget)
    assert len(pool.descriptors()) == 1
    pool.close()


def test_a_path_that_cannot_be_a_ledger_is_reported_before_anything_runs(tmp_path: Path) -> None:
    def route(path: Path) -> Route:
        options = RouteOptions(ledger=LedgerOptions(str(path)))
        return Route(
            name="r", task="t", pattern="p", source=Endpoint("a", "q"), targets=(Endpoint("b", "q"),), options=options
        )

    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="is no folder"):
        check_ledgers([route(tmp_path / "file" / "ledger")])
    with pytest.raises(ConfigError, match="contains something else"):
        check_ledgers([route(tmp_path)])
    check_ledgers([route(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
