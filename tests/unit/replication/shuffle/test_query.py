"""What a batch leaves in the outgoing spool when it is killed and repeated at any point; without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.errors import ConfigError
from isthmus.replication.shuffle import query as module
from isthmus.replication.shuffle.note import last_note
from isthmus.replication.shuffle.query import ShuffleQuery, ShuffleSettings
from isthmus.replication.shuffle.state import in_windows, leave, past
from isthmus.replication.step.message.message import StepMessage
from isthmus.topology.step import StepDeclaration


class Killed(BaseException):
    """Ends what runs, as a signal would."""


def opened(
    folder: Path, step: str = "deduplicate", query: str = "q1", *, source: str = "ewr/q/t", **settings: Any
) -> ShuffleQuery:
    """A query as it is after its start."""
    step_text = StepDeclaration(step, {"window": 1000, "interval": 100, "by": "system:MessageId", **settings}).to_text()
    made = ShuffleQuery(
        None,  # type: ignore[arg-type]
        ShuffleSettings(
            task="t", step=step_text, incoming=folder / "in", outgoing=folder / "out", source=source, checkpoint="c"
        ),
    )
    made._writer.open()
    made._note = last_note(folder / "out")
    made._query = SimpleNamespace(id=query, stop=lambda: None)  # type: ignore[assignment]
    made._started.set()
    return made


def batch(*numbers: int, taken: int = 0, end: int = 0) -> Any:
    """What `deduplicate` lets pass of a batch, in no order, and the row after it, which names the next record."""
    rows = [{"kind": 0, "spool_number": n, "source": "ewr/q id", "message": b"m%d" % n} for n in reversed(numbers)]
    count = b"%d" % (taken or len(numbers))
    rows.append({"kind": 1, "spool_number": end or max(numbers) + 1, "source": "", "message": count})
    return frame(rows)


def window(second: int, count: int = 2) -> dict[str, Any]:
    """A window that has closed."""
    start_ms = second * 1000
    return {"kind": 0, "start_ms": start_ms, "end_ms": start_ms + 1000, "by": "[]", "count": count, "v0": float(count)}


def frame(rows: list[dict[str, Any]], schema: pa.Schema | None = None) -> Any:
    """A DataFrame, as far as a query uses it."""
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
    query._take(batch(1, 2, taken=5, end=5), 0)
    query._take(batch(1, 2, taken=5, end=5), 0)
    query._take(batch(5), 1)
    query.stop()
    again = opened(tmp_path)
    again._take(batch(5), 1)
    again._take(batch(6), 2)
    again.stop()
    assert written(tmp_path) == [b"m1", b"m2", b"m5", b"m6"]
    assert (again.note.taken, again.note.passed, again.note.suppressed) == (7, 4, 3)
    assert SpoolFolder(tmp_path / "out").origin() == "id"


def test_i1_batches_that_begin_again_elsewhere_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """After a power cut Spark's checkpoint may have gone back by some batches, and those that it makes instead end elsewhere."""
    query = opened(tmp_path)
    query._take(batch(0, 1), 0)
    query._take(batch(2), 1)
    query._take(batch(3), 2)
    query.stop()
    again = opened(tmp_path)
    again._take(batch(2, 3, 4, 5, taken=5, end=7), 1)
    assert (again.note.taken, again.note.passed, again.note.suppressed) == (7, 6, 1)
    again._take(batch(7), 2)
    again._take(batch(8), 3)
    again.stop()
    assert written(tmp_path) == [b"m%d" % number for number in (0, 1, 2, 3, 4, 5, 7, 8)]


def test_what_was_read_is_not_written_again_by_a_query_whose_checkpoint_was_deleted(tmp_path: Path) -> None:
    query = opened(tmp_path)
    query._take(batch(0, 1), 0)
    query.stop()
    again = opened(tmp_path, query="q2")
    again._take(batch(0, 1, 2), 0)
    again.stop()
    assert written(tmp_path) == [b"m0", b"m1", b"m2"]


def test_a_spool_that_was_made_again_is_read_from_its_beginning(tmp_path: Path) -> None:
    query = opened(tmp_path)
    SpoolFolder(tmp_path / "in").make()
    query._take(batch(0, 1), 0)
    (tmp_path / "in" / "id").unlink()
    SpoolFolder(tmp_path / "in").make()
    query._take(batch(0), 1)
    query.stop()
    assert written(tmp_path) == [b"m0", b"m1", b"m0"]


def test_a_spool_that_is_away_for_a_moment_is_no_other_one(tmp_path: Path) -> None:
    """What a repeated batch had written was written again."""
    query = opened(tmp_path)
    SpoolFolder(tmp_path / "in").make()
    query._take(batch(0, 1), 0)
    (tmp_path / "in").rename(tmp_path / "away")
    with pytest.raises(SpoolError, match="is not there"):
        query._take(batch(0, 1), 0)
    (tmp_path / "away").rename(tmp_path / "in")
    query._take(batch(0, 1), 0)
    query.stop()
    assert written(tmp_path) == [b"m0", b"m1"]


def test_a_note_of_an_earlier_release_is_known_by_its_batch(tmp_path: Path) -> None:
    query = opened(tmp_path)
    query._take(batch(0, 1), 0)
    query._note = replace(query._note, spool="", read=0)
    query._take(batch(0, 1), 0)
    query._take(batch(2), 1)
    query.stop()
    assert written(tmp_path) == [b"m0", b"m1", b"m2"]


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


def test_i1_windows_that_close_again_in_other_batches_are_sent_once(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"fields": {"n": "count"}, "by": [], "wait": 1000}
    query = opened(tmp_path, "aggregate", **settings)
    for number in range(3):
        query._take(frame([window(number)]), number)
    query.stop()
    again = opened(tmp_path, "aggregate", **settings)
    again._take(frame([window(1)]), 1)
    again._take(frame([window(2), window(3), window(4)]), 2)
    again.stop()
    starts = [StepMessage(each).json["window_start"][-3:-1] for each in written(tmp_path)]
    assert starts == ["00", "01", "02", "03", "04"]
    assert again.note.taken == 10


def test_windows_of_a_query_whose_checkpoint_was_deleted_are_sent(tmp_path: Path) -> None:
    """They consist of other messages."""
    settings: dict[str, Any] = {"fields": {"n": "count"}, "by": [], "wait": 1000}
    query = opened(tmp_path, "aggregate", **settings)
    query._take(frame([window(5)]), 0)
    query.stop()
    again = opened(tmp_path, "aggregate", query="q2", **settings)
    again._take(frame([window(4)]), 0)
    again.stop()
    assert len(written(tmp_path)) == 2


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


@pytest.mark.parametrize("step", ["aggregate", "deduplicate"])
def test_i4_what_is_remembered_is_of_the_same_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """`deduplicate` would hold the ids of the former queue's messages against those of the present one."""

    def start(query: str, source: str) -> ShuffleQuery:
        settings = {"fields": {"n": "count"}, "by": [], "wait": 1000} if step == "aggregate" else {}
        made = opened(tmp_path, step, source=source, **settings)
        made._writer.close()
        monkeypatch.setattr(made, "_start", lambda: SimpleNamespace(id=query, stop=lambda: None))
        made._started.clear()
        return made.start()

    start("q1", "ewr/q/t").stop()
    with pytest.raises(
        ConfigError, match=f"step {step} belongs to messages of ewr/q, and the task reads ewr/other now"
    ) as reported:
        start("q1", "ewr/other/t")
    assert "delete the checkpoint c" in reported.value.faults[0].hint
    start("q1", "ewr/q/t").stop()
    start("q2", "ewr/other/t").stop()  # the checkpoint was deleted
    with pytest.raises(ConfigError, match="belongs to messages of ewr/other"):
        start("q2", "ewr/q/t")


@pytest.mark.parametrize(("was", "now"), [("aggregate", "deduplicate"), ("deduplicate", "aggregate")])
def test_i4_a_state_of_one_step_is_not_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was: str, now: str
) -> None:
    """What waits in the spool is of the former one, too: copies, or results, which have another origin."""

    def start(query: str, step: str) -> ShuffleQuery:
        settings = {"fields": {"n": "count"}, "by": [], "wait": 1000} if step == "aggregate" else {}
        made = opened(tmp_path, step, **settings)
        made._writer.close()
        monkeypatch.setattr(made, "_start", lambda: SimpleNamespace(id=query, stop=lambda: None))
        made._started.clear()
        return made.start()

    start("q1", was).stop()
    with pytest.raises(ConfigError, match=f"belongs to a step {was}, and the step is {now} now") as reported:
        start("q1", now)
    assert f"restore {was}" in reported.value.faults[0].hint
    start("q1", was).stop()
    start("q2", now).stop()  # the checkpoint was deleted


def test_windows_that_are_open_in_another_checkpoint_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(query: str) -> ShuffleQuery:
        made = opened(tmp_path, "aggregate", fields={"n": "count"}, by=[], wait=1000)
        made._writer.close()
        monkeypatch.setattr(made, "_start", lambda: SimpleNamespace(id=query, stop=lambda: None))
        made._started.clear()
        return made.start()

    writer = SpoolWriter(tmp_path / "in").open()
    writer.append([Record("ewr/q id", number, 1, b"m") for number in range(10)])
    writer.sync()
    writer.close()
    SpoolReader(tmp_path / "in").take(2)
    query = start("q1")
    SpoolReader(tmp_path / "in").take(7)
    query._take(frame([window(1, count=3)]), 0)
    query.stop()
    assert in_windows(tmp_path / "in", tmp_path / "out") == 2
    start("q1").stop()
    assert "windows" not in caplog.text
    start("q2").stop()
    assert "task t: 2 messages are in windows of its step aggregate in another checkpoint than c" in caplog.text
    assert in_windows(tmp_path / "in", tmp_path / "out") == 0


def test_what_a_route_without_the_query_takes_is_no_message_of_its_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step was taken out of the file, while `when_full: spool` stayed, and put back: the query read what had been sent."""

    def start() -> ShuffleQuery:
        made = opened(tmp_path, "aggregate", fields={"n": "count"}, by=[], wait=1000)
        made._writer.close()
        monkeypatch.setattr(made, "_start", lambda: SimpleNamespace(id="q1", stop=lambda: None))
        made._started.clear()
        return made.start()

    incoming, outgoing = tmp_path / "in", tmp_path / "out"
    writer = SpoolWriter(incoming).open()
    writer.append([Record("ewr/q id", number, 1, b"m") for number in range(10)])
    writer.sync()
    writer.close()
    leave(incoming, outgoing)
    start().stop()
    assert past(incoming, outgoing) == ""
    SpoolReader(incoming).take(4)
    for taken in (6, 9):
        leave(incoming, outgoing)
        SpoolReader(incoming).take(taken)  # sent to the target
        assert in_windows(incoming, outgoing) == 4
        start().stop()
        assert in_windows(incoming, outgoing) == 4
        assert past(incoming, outgoing) == f"{SpoolReader(incoming).identity} {taken}"
    SpoolReader(incoming).take(10)  # by the query
    start().stop()
    assert in_windows(incoming, outgoing) == 5
    assert past(incoming, outgoing).endswith(" 9")


def test_a_state_without_a_source_is_of_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = opened(tmp_path, "aggregate", fields={"n": "count"}, by=[], wait=1000)
    made._writer.close()
    (tmp_path / "out" / "state").write_text('{"query": "q1", "fields": {"n": "count"}, "by": []}')
    monkeypatch.setattr(made, "_start", lambda: SimpleNamespace(id="q1", stop=lambda: None))
    made._started.clear()
    made.start().stop()
