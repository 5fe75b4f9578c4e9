"""Single-message steps, applied to Arrow batches of rows.

What it is: the work of the reader before its rows enter Spark, and of the sink on arriving rows: it writes columns that a DataFrame
step has changed to messages, applies steps to them one by one, and adds the columns that the next DataFrame step needs. A separate
Python worker would cost each message another transfer through Java, and Spark does not pass on such a worker's output while it
waits for more input. What it is not: the steps, nor the order of stages (`chain`).

Rows have the form of `isthmus.bridge.spark.row`. A flush row is passed on unchanged, after all earlier rows, followed by the
row of route 0.

Invariants:
    I1. Every row of a message is passed on, in order, with its route and position; a row on which a step failed has a disposition.
    I2. A row with a disposition is processed by no further step.
    I3. Flush rows and canaries pass untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.spark.row import FILLER_ROUTE
from isthmus.message.column import COLUMN_TYPES
from isthmus.replication.canary_mark import is_canary
from isthmus.replication.step.base import STEP_FAILED, disposition_of, guarded
from isthmus.replication.step.chain.opener import open_message_steps
from isthmus.replication.step.message import column
from isthmus.replication.step.message.message import StepMessage

__all__ = ["MARKS", "RowStage"]

MARKS = ("disposition", "reason", "description")
_RAW = ("message", "route", "position")
# Arrow's exceptions for a value that does not have its column's type.
_UNFIT = (pa.ArrowException, ValueError, TypeError, OverflowError)


class RowStage:
    """The processing of each batch by the reader or the sink.

    Args:
        steps: the steps, in the form of `StepDeclaration.to_text`.
        written: columns whose values are written to messages first.
        added: columns that are added last.

    Raises:
        InvalidArgumentError: a file, a key or a function that a step names is invalid.
    """

    def __init__(self, steps: Sequence[str], written: Sequence[str] = (), added: Sequence[str] = ()) -> None:
        self._steps = open_message_steps(steps)
        self._written = tuple(written)
        self._added = tuple(added)
        marks = [(name, pa.string()) for name in MARKS]
        raw = [("message", pa.binary()), ("route", pa.int32()), ("position", pa.int64())]
        self._schema = pa.schema([*raw, *marks, *((name, _ARROW[name]) for name in added)])

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows that are passed on; None if there are none."""
        routes: list[int] = batch.column("route").to_pylist()
        # A filler is added after the flush row; incoming ones are removed.
        rows = [row for row, route in enumerate(routes) if route != FILLER_ROUTE]
        if not rows:
            return None
        cells = {name: self._cells(batch, name) for name in (*_RAW, *MARKS, *self._written)}
        messages, kinds = cells["message"], cells["disposition"]
        written = [cells[name] for name in self._written]
        added: dict[str, list[Any]] = {name: [None] * len(routes) for name in self._added}
        for row in rows:
            if routes[row] < FILLER_ROUTE or kinds[row] is not None:
                continue
            made = self._message(messages[row], [column[row] for column in written])
            messages[row] = made.payload
            if made.disposition is not None:
                for name, value in zip(MARKS, made.disposition, strict=True):
                    cells[name][row] = value
            for name, value in zip(self._added, made.columns, strict=False):
                added[name][row] = value
        cells |= added
        if len(rows) < len(routes):
            cells = {name: [values[row] for row in rows] for name, values in cells.items()}
        if any(route < FILLER_ROUTE for route in routes):
            for name, values in cells.items():
                values.append({"message": b"", "route": FILLER_ROUTE, "position": 0}.get(name))
        try:
            return self._batch(cells)
        except _UNFIT:
            self._set_aside_unfit(cells)
            return self._batch(cells)

    def _batch(self, cells: dict[str, list[Any]]) -> pa.RecordBatch:
        arrays = [pa.array(cells[field.name], field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _set_aside_unfit(self, cells: dict[str, list[Any]]) -> None:
        """Rows with a value that its column cannot contain are set aside: otherwise the batch would be repeated without end."""
        for row in range(len(cells["route"])):
            try:
                self._batch({name: [values[row]] for name, values in cells.items()})
            except _UNFIT as error:
                marks = _failed(
                    f"the message has a value that its column cannot contain: {type(error).__name__}: {error}"
                )
                for name in self._schema.names[len(_RAW) :]:
                    cells[name][row] = dict(zip(MARKS, marks, strict=True)).get(name)

    @staticmethod
    def _cells(batch: pa.RecordBatch, name: str) -> list[Any]:
        if name not in batch.schema.names:
            return [None] * batch.num_rows
        cells: list[Any] = batch.column(name).to_pylist()
        return cells

    def _message(self, payload: bytes, written: Sequence[Any]) -> _Made:
        """The result for one message."""
        if is_canary(payload):
            return _Made(payload)
        try:
            message = StepMessage(payload)
            for name, value in zip(self._written, written, strict=True):
                column.write(message, name, value)
        except Exception as error:  # noqa: BLE001 - a message may have any bytes; it is set aside
            return _Made(payload, _failed(f"the message cannot be read or written: {error}"))
        for step in self._steps:
            found = guarded(step, message)
            if found is not None:
                return _Made(payload, found)
        try:
            made = message.encoded()
            if self._added and message.is_changed:
                message = StepMessage(made)
            return _Made(made, None, [column.read(message, name) for name in self._added])
        except Exception as error:  # noqa: BLE001 - a step has set a value that no message can have
            return _Made(payload, _failed(f"the message cannot be written: {type(error).__name__}: {error}"))


class _Made(NamedTuple):
    """The result for one message: its bytes, its disposition if it is not passed on, its columns."""

    payload: bytes
    disposition: Disposition | None = None
    columns: Sequence[Any] = ()


def _failed(text: str) -> Disposition:
    return disposition_of("dead-letter", STEP_FAILED, text)


_PROPERTY = pa.struct(
    [
        ("boolean", pa.bool_()),
        ("long", pa.int64()),
        ("double", pa.float64()),
        ("string", pa.string()),
        ("datetime", pa.timestamp("us", tz="UTC")),
        ("timespan_microseconds", pa.int64()),
        ("uuid", pa.string()),
        ("binary", pa.binary()),
        ("type", pa.string()),
    ]
)
_TYPES = {
    "binary": pa.binary(),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_ARROW = {name: _TYPES.get(ddl, pa.map_(pa.string(), _PROPERTY)) for name, ddl in COLUMN_TYPES.items()}
