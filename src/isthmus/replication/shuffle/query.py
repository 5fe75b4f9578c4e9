"""The Spark query between the two spools of a route: deduplication, or aggregation.

What it is: one streaming query in micro-batches. The results of a batch are collected at the driver and appended to the outgoing spool as
one block, with a note of the batch. What it is not: the steps (`isthmus.replication.step`), or the routes into and out of the spools (`route`).

After a kill:
    before the block is on disk    Spark repeats the batch from its checkpoint; the half-written block is cut off
    after that, before Spark's     Spark repeats the batch; its note is found, and nothing is written
    commit
    after Spark's commit           the next batch
    with the machine's power       Spark's checkpoint may be some batches older; repeated messages are written only if the note
                                   does not include them

Invariants:
    I1. The messages of a batch are in the outgoing spool once, completely and before Spark commits the batch.
    I2. Segments of the incoming spool are deleted only after Spark has committed the batches that read them.
    I3. Its failure text is written for operators, and does not change after it has ended.
    I4. The state of open windows of `aggregate` is never used with other `fields`, or another `by`, and no state with another source
        or another step.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.spool_clock import END_ROW, MESSAGE_ROW
from isthmus.connectors.spool.writer import SpoolWriter
from isthmus.errors import ConfigError, Fault, IsthmusError
from isthmus.replication.query.query_failure import cause_of
from isthmus.replication.shuffle.note import BatchNote, last_note, write_note
from isthmus.replication.shuffle.state import beginning_of, in_windows, kind_of, past, read_state, write_state
from isthmus.replication.spark.gone import SparkGoneError, calling_spark
from isthmus.replication.step.aggregate import aggregated, message_of
from isthmus.replication.step.deduplicate import deduplicated, slack_ms
from isthmus.topology.step import StepDeclaration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["ShuffleQuery", "ShuffleSettings", "check_folder", "results"]

log = logging.getLogger(__name__)

FORMAT = "isthmus_spool"
# A batch's results are one block, several times in the driver's memory.
_BATCH_BYTES = 16 << 20
_STATE_STORE = (
    "spark.sql.streaming.stateStore.providerClass",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
)
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleSettings:
    """The task, the step and the paths of a query.

    Attributes:
        task: the task's name.
        step: the step, in the form of `StepDeclaration.to_text`.
        incoming: folder of the spool that is read.
        outgoing: folder of the spool that is written.
        source: alias and entity that are the origin of results of `aggregate`.
        checkpoint: checkpoint of the query; a path, or a URI that Spark can write.
    """

    task: str
    step: str
    incoming: Path
    outgoing: Path
    source: str
    checkpoint: str


def check_folder(path: Path, task: str) -> None:
    """Check whether spools can be written below a folder, without changing anything.

    Raises:
        ConfigError: it is no folder that this user can write.
    """
    at = path
    while not at.exists():
        at = at.parent
    if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
        raise ConfigError([Fault(f"task {task}: spool {path}: {at} is no folder that this user can write")])


class ShuffleQuery:
    """A query from one spool to another.

    Args:
        spark: the session.
        settings: the task, the step and the paths.
    """

    def __init__(self, spark: SparkSession, settings: ShuffleSettings) -> None:
        self._spark = spark
        self._settings = settings
        self._step = StepDeclaration.from_text(settings.step)
        self._writer = SpoolWriter(settings.outgoing)
        self._query: StreamingQuery | None = None
        self._started = threading.Event()
        self._note = BatchNote()
        self._error = ""
        self._lock = (
            threading.Lock()
        )  # of the writer: Spark's thread may go on for a moment after the query was stopped
        self._is_stopped = False

    @property
    def note(self) -> BatchNote:
        """The note of the last written batch."""
        return self._note

    def start(self) -> ShuffleQuery:
        """Lock the outgoing spool and start.

        Raises:
            SpoolError: the spool cannot be written.
            SparkGoneError: Spark has ended.
            ConfigError: its state belongs to other settings, or to another source.
        """
        self._writer.open()
        try:
            self._note = last_note(self._settings.outgoing)
            if self._step.kind == "aggregate":
                folder = SpoolFolder(self._settings.outgoing)
                folder.write_origin(folder.identity())
            with calling_spark():
                self._query = self._start()
            self._check_state(str(self._query.id))
            self._started.set()
        except BaseException:
            self._is_stopped = True
            self._started.set()  # a batch may wait for it
            if self._query is not None:
                with suppress(SparkGoneError), calling_spark():
                    self._query.stop()
            self._writer.close()
            raise
        return self

    def _check_state(self, query: str) -> None:
        """Check that the query's state belongs to these settings (I4). Spark compares types alone: another field of the same type would be added
        to the values of the first one.

        Raises:
            ConfigError: the state belongs to other settings.
        """
        settings, kind = self._settings, self._step.kind
        fits = {name: self._step.settings.get(name) for name in ("fields", "by")} if kind == "aggregate" else {}
        wanted = json.loads(json.dumps({"query": query, "source": settings.source, **fits}))
        found = read_state(settings.outgoing)
        beyond = past(settings.incoming, settings.outgoing)
        is_same = found.get("query") == query
        if is_same:
            if kind_of(found) != kind:
                raise ConfigError([self._other_step(kind_of(found))])
            others = [name for name in wanted if found.get(name, wanted[name]) != wanted[name]]
            if "source" in others:
                raise ConfigError([self._other_source(str(found["source"]))])
            if others:
                raise ConfigError(
                    [
                        Fault(
                            f"task {settings.task}: fields or by of the step aggregate were changed, and windows are open that began "
                            "with the old ones",
                            "restore the old ones, let the windows close with publishers stopped, and delete the checkpoint "
                            f"{settings.checkpoint}",
                        )
                    ]
                )
        elif messages := in_windows(settings.incoming, settings.outgoing):
            log.warning(
                "task %s: %d messages are in windows of its step aggregate in another checkpoint than %s, and in no result of this one: "
                "restore that one if the setting checkpoints was changed",
                settings.task,
                messages,
                settings.checkpoint,
            )
        if kind == "aggregate":
            began = found.get("began") if is_same else beginning_of(settings.incoming, settings.outgoing)
            if began is not None and is_same and "left" in found:
                began = began | {"taken": began["taken"] + int(beyond.partition(" ")[2]) - found["left"]}
            wanted |= {"began": began} if began is not None else {}
        wanted |= {"past": beyond} if beyond else {}
        write_state(settings.outgoing, wanted)

    def _other_step(self, kind: str) -> Fault:
        settings = self._settings
        return Fault(
            f"task {settings.task}: the state of its query belongs to a step {kind}, and the step is {self._step.kind} now",
            f"restore {kind}, wait until isthmus status shows 0 waiting and windows close with publishers stopped, and delete the checkpoint "
            f"{settings.checkpoint}",
        )

    def _other_source(self, source: str) -> Fault:
        was, now = (each.rpartition("/")[0] for each in (source, self._settings.source))
        return Fault(
            f"task {self._settings.task}: the state of its step {self._step.kind} belongs to messages of {was}, and the task reads {now} now",
            "restore the former source, let its windows close with publishers stopped, and delete the checkpoint "
            f"{self._settings.checkpoint}",
        )

    def _start(self) -> StreamingQuery:
        settings, step = self._settings, self._step
        before = self._spark.conf.get(_STATE_STORE[0], None)
        self._spark.conf.set(*_STATE_STORE)
        try:
            is_aggregate = step.kind == "aggregate"
            slack = int(step.settings["wait"]) if is_aggregate else slack_ms(step.settings)
            rows = (
                self._spark.readStream.format(FORMAT)
                .options(path=str(settings.incoming), rows="timed", batch_bytes=str(_BATCH_BYTES), releases="true")
                .options(window_ms=str(step.settings["window"]), slack_ms=str(slack))
                .options(past=past(settings.incoming, settings.outgoing))
                .load()
            )
            made = (
                aggregated(rows, step.settings, settings.incoming)
                if is_aggregate
                else deduplicated(rows, step.settings)
            )
            return (
                made.writeStream.foreachBatch(self._take)
                .option("checkpointLocation", settings.checkpoint)
                .outputMode("append")
                .trigger(processingTime=f"{int(step.settings['interval'])} milliseconds")
                .start()
            )
        finally:
            if before is None:
                self._spark.conf.unset(_STATE_STORE[0])
            else:
                self._spark.conf.set(_STATE_STORE[0], before)

    def is_active(self) -> bool:
        """Whether the query runs.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if self._query is None:
            return False
        with calling_spark():
            return bool(self._query.isActive)

    def failure(self) -> str:
        """Why the query ended; empty if it runs or was stopped.

        Raises:
            SparkGoneError: Spark has ended.
        """
        if not self._error and self._query is not None:
            with calling_spark():
                error = None if self._query.isActive else self._query.exception()
            self._error = cause_of(str(error)) if error is not None else ""
        return f"step {self._step}: {self._error}" if self._error else ""

    def has_all(self) -> bool:
        """Whether a committed batch has read every message of the incoming spool."""
        reader = SpoolReader(self._settings.incoming)
        return (reader.taken() or 0) >= reader.last().number

    def stop(self) -> None:
        """Stop the query; blocks until a running batch has been given up, which the next start repeats."""
        if self._query is not None:
            with suppress(SparkGoneError), calling_spark():
                self._query.stop()
        with self._lock:
            self._is_stopped = True
            self._writer.close()

    def _take(self, rows: DataFrame, batch: int) -> None:
        """Write one micro-batch; called on a thread of Spark's."""
        try:
            self._write(rows, batch)
        except IsthmusError as error:
            self._error = str(error)
            raise
        except OSError as error:
            self._error = f"it cannot be written: {error.strerror or error}"
            raise

    def _write(self, rows: DataFrame, batch: int) -> None:
        # Spark calls this before `start` has returned.
        if not self._started.wait(_START_SECONDS):
            raise TimeoutError("the query was not started in time")
        assert self._query is not None
        query = str(self._query.id)
        found = rows.toArrow().to_pylist()  # also if the batch was written: Spark has to rebuild its state
        with self._lock:
            if self._is_stopped:
                raise SpoolError("the query was stopped; the next start repeats the batch")
            # A note of an earlier release has only the batch's number.
            if not self._note.has(query, batch) or self._note.read or self._note.closed_ms:
                self._append(found, query, batch)

    def _append(self, found: list[dict[str, Any]], query: str, batch: int) -> None:
        before, settings = self._note, self._settings
        if self._step.kind == "aggregate":
            source = f"{settings.source} {SpoolFolder(settings.outgoing).identity()}"
            closed_ms = before.closed_ms if query == before.query else 0
            fresh = [row for row in found if row["kind"] == MESSAGE_ROW and row["end_ms"] > closed_ms]
            records, taken = results(self._step.settings, fresh, settings.task, source, self._writer.number)
            closed_ms = max((int(row["end_ms"]) for row in fresh), default=closed_ms)
            note = replace(before, closed_ms=closed_ms)
        else:
            spool = SpoolReader(settings.incoming).identity
            if before.spool and not spool:  # what batches have read of it would be written again
                raise SpoolError(f"spool {settings.incoming} is not there: mount its folder, or restore it")
            records, taken, read = _passed(found, before.read if spool == before.spool else 0)
            note = replace(before, spool=spool, read=read, suppressed=before.suppressed + taken - len(records))
        if not records and not taken:
            return
        note = replace(
            note,
            number=before.number + 1,
            query=query,
            batch=batch,
            taken=before.taken + taken,
            passed=before.passed + len(records),
        )
        self._write_origin(records)
        self._writer.append([*records, note.record()])
        self._writer.sync()
        write_note(settings.outgoing, note)
        self._note = note

    def _write_origin(self, records: list[Record]) -> None:
        if records:
            SpoolFolder(self._settings.outgoing).write_origin(records[-1].key.rpartition(" ")[2])


def _passed(rows: list[dict[str, Any]], read: int) -> tuple[list[Record], int, int]:
    """The messages that `deduplicate` passes, in the order of the source, among those that no batch has read before the record `read`; the
    number of the latter, and the first record after them.
    """
    messages = sorted(
        (row for row in rows if row["kind"] == MESSAGE_ROW and row["spool_number"] >= read),
        key=lambda row: int(row["spool_number"]),
    )
    ends = [row for row in rows if row["kind"] == END_ROW]
    end = max((int(row["spool_number"]) for row in ends), default=read)
    taken = min(sum(int(row["message"]) for row in ends), max(0, end - read))
    return [Record(row["source"], -1, 0, bytes(row["message"])) for row in messages], taken, max(read, end)


def results(
    settings: Mapping[str, Any], rows: list[dict[str, Any]], task: str, source: str, number: int
) -> tuple[list[Record], int]:
    """The messages of closed windows, in the order of the windows, and the number of messages from which they are computed.

    Args:
        settings: settings of the step.
        rows: rows of `aggregated`.
        task: the task's name.
        source: the key of the records.
        number: number of the first record in the outgoing spool.
    """
    closed = sorted((row for row in rows if row["kind"] == MESSAGE_ROW), key=lambda row: (row["start_ms"], row["by"]))
    made = [
        Record(source, -1, int(row["end_ms"]), message_of(settings, row, task, at))
        for at, row in enumerate(closed, number)
    ]
    return made, sum(int(row["count"]) for row in closed)
