"""What a batch leaves in the outgoing spool, killed and repeated at any place; without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.errors import ConfigError
from isthmus.replication.shuffle import query as module
from isthmus.replication.shuffle.note import last_note
from isthmus.replication.shuffle.query import ShuffleQuery, ShuffleSettings
from isthmus.topology.step import StepDeclaration


class Killed(BaseException):
    """Ends what runs, as a signal would."""


def opened(folder: Path, step: str = "deduplicate", **settings: Any) -> ShuffleQuery:
    """A query as it is after its start."""
    step_text = StepDeclaration(step, {"window": 1000, "interval": 100, "by": "system:MessageId", **settings}).to_text()
    made = ShuffleQuery(
        None,  # type: ignore[arg-type]
        ShuffleSettings(
            task="t", step=step_text, incoming=folder / "in", outgoing=folder / "out", source="ewr/q/t", checkpoint=""
        ),
    )
    made._writer.open()
    made._note = last_note(folder / "out")
    made._query = SimpleNamespace(id="q1", stop=lambda: None)  # type: ignore[assignment]
    made._started.set()
    return made


def batch(*numbers: int, taken: int = 0) -> Any:
    """What `deduplicate` lets pass of a batch, in no order, and the row behind it."""
    rows = [{"kind": 0, "spool_number": n, "source": "ewr/q id", "message": b"m%d" % n} for n in reversed(numbers)]
    rows.append({"kind": 1, "spool_number": 99, "source": "", "message": b"%d" % (taken or len(numbers))})
    return frame(rows)


def frame(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Any:
    """A DataFrame, as far as a query asks it."""
    return SimpleNamespace(toArrow=lambda: pa.Table.from_pylist(rows, schema))


def written(folder: Path) -> list[bytes]:
    reader = SpoolReader(folder / "out")
    return [
        record.message
        for part in reader.ranges(reader.first(), reader.last(), 1 << 40)
        for _, records in reader.blocks(part)
        for record in records
        if record.key
    ]


def test_i1_a_batch_that_spark_repeats_is_written_once(tmp_path: Path) -> None:
    query = opened(tmp_path)
    query._take(batch(1, 2, taken=5), 0)
    query._take(batch(1, 2, taken=5), 0)
    query._take(batch(3), 1)
    query.stop()
    again = opened(tmp_path)
    again._take(batch(3), 1)
    again._take(batch(4), 2)
    again.stop()
    assert written(tmp_path) == [b"m1", b"m2", b"m3", b"m4"]
    assert (again.note.taken, again.note.passed, again.note.suppressed) == (7, 4, 3)
    assert SpoolFolder(tmp_path / "out").origin() == "id"


@pytest.mark.parametrize("place", ["append", "sync", "write_note"])
def test_i1_a_kill_at_any_place_writes_a_batch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    query = opened(tmp_path)
    query._take(batch(1), 0)

    def kill(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if place == "write_note":
            patch.setattr(module, place, kill)
        else:
            patch.setattr(query._writer, place, kill)
        with pytest.raises(Killed):
            query._take(batch(2, 3), 1)
    query._writer.close()
    again = opened(tmp_path)
    again._take(batch(2, 3), 1)
    again._take(batch(4), 2)
    again.stop()
    assert written(tmp_path) == [b"m1", b"m2", b"m3", b"m4"]


def test_a_disk_that_refuses_fails_the_batch_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = opened(tmp_path)

    def full(*_: Any) -> None:
        raise SpoolError("spool out cannot be written: No space left on device")

    monkeypatch.setattr(query._writer, "append", full)
    with pytest.raises(SpoolError):
        query._take(batch(1), 0)
    assert query._error == "spool out cannot be written: No space left on device"


def test_nothing_is_written_after_the_stop_and_spark_does_not_commit_the_batch(tmp_path: Path) -> None:
    query = opened(tmp_path)
    query._take(batch(1), 0)
    query.stop()
    with pytest.raises(SpoolError, match="repeats the batch"):
        query._take(batch(2), 1)
    assert written(tmp_path) == [b"m1"]


def test_a_batch_in_which_no_window_closes_writes_nothing(tmp_path: Path) -> None:
    query = opened(tmp_path, "aggregate", fields={"n": "count"}, by=[], wait=1000)
    row = {"kind": 0, "start_ms": 0, "end_ms": 1000, "by": "[]", "count": 2, "v0": 2.0}
    query._take(frame([], pa.schema([("kind", pa.int32())])), 0)
    assert written(tmp_path) == []
    query._take(frame([row]), 1)
    query._take(frame([row]), 1)
    query.stop()
    assert len(written(tmp_path)) == 1


def test_i4_windows_that_are_open_are_of_the_same_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark would add delays to what the first settings made of fares: both are numbers."""
    stopped: list[str] = []

    def started(name: str) -> Any:
        return SimpleNamespace(id=name, stop=lambda: stopped.append(name))

    def start(query: str, field: str) -> ShuffleQuery:
        made = opened(tmp_path, "aggregate", fields={"sum": f"sum({field})"}, by=["carrier"], wait=1000)
        made._writer.close()
        monkeypatch.setattr(made, "_start", lambda: started(query))
        made._started.clear()
        return made.start()

    start("q1", "fare").stop()
    start("q1", "fare").stop()
    stopped.clear()
    with pytest.raises(ConfigError, match="fields or by of the step aggregate were changed"):
        start("q1", "delay")
    assert stopped == ["q1"]
    start("q1", "fare").stop()
    start("q2", "delay").stop()  # the checkpoint was deleted
