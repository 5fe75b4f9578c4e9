"""Messages from Spark to the sink.

What it is: splitting batches into runs of one route, with flush rows at their positions. The bytes of a run are passed on in
one piece with their offsets, without a Python object per row. What it is not: Spark (`sink`), or the sending (`isthmus.bridge.host.sender.sender`).

Invariants:
    I1. Rows are handed over in their order, whatever the order of routes in a batch.
    I2. Every row of a route is handed over with its position, or the query fails; none is dropped.
    I3. Values that a step wrote into a flush row are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from isthmus.bridge.delivery_event import DIVERT, Disposition
from isthmus.bridge.spark.block import runs_of
from isthmus.bridge.spark.row import BLOCK_ROUTE, FEW_ROWS, FILLER_ROUTE, FLUSH_ROUTE, NO_FLUSH
from isthmus.errors import InvalidArgumentError

__all__ = ["DISPOSITIONS", "Inflow", "RowSink"]

DISPOSITIONS = ("complete", "dead-letter", "defer", "abandon")
_DIVERTS = f"{DIVERT}:"


class RowSink(Protocol):
    """The receiver of messages: `isthmus.bridge.host.sender.sender.SenderHost`."""

    def hand_over(
        self,
        handle: int,
        positions: Sequence[int],
        data: bytes,
        offsets: list[int],
        disposed: Sequence[tuple[int, Disposition]] = (),
        diverted: Sequence[tuple[int, Disposition, bytes]] = (),
        *,
        is_last: bool = True,
    ) -> None:
        """Messages of one handle; `disposed` are positions that get a disposition at their source instead, `diverted` those whose messages are
        sent to another entity.

        `is_last`: nothing more comes at once.
        """
        ...

    def flush(self, number: int) -> None:
        """Flush row `number` came."""
        ...


class Inflow:
    """Takes batches apart."""

    def __init__(self, sink: RowSink) -> None:
        self._sink = sink

    def take(self, batch: pa.RecordBatch) -> None:
        """Hands over the rows of one batch.

        Raises:
            InvalidArgumentError: a step of the query has made a row that nothing can be done with.
        """
        if not batch.num_rows:
            return
        rows = _Rows(batch)
        for start, stop, route in rows.runs():
            if route > FILLER_ROUTE:
                self._sink.hand_over(route, *rows.cut(start, stop), is_last=stop == batch.num_rows)
            elif route == FLUSH_ROUTE:
                for number in rows.positions[start:stop].tolist():
                    self._sink.flush(number)
            elif route == BLOCK_ROUTE:
                for row in range(start, stop):
                    self._take_block(rows.cell(row), int(rows.positions[row]))
            elif route != FILLER_ROUTE:
                raise InvalidArgumentError(
                    f"column 'route' holds {route}, which is no route's handle; a step has to pass the column on as it is"
                )

    def _take_block(self, cell: pa.Buffer, flush: int) -> None:
        runs = list(runs_of(cell))
        for number, (handle, positions, data, offsets) in enumerate(runs, 1):
            self._sink.hand_over(handle, positions, data, offsets, is_last=number == len(runs) and flush == NO_FLUSH)
        if flush != NO_FLUSH:
            self._sink.flush(flush)


_Cut = tuple[Sequence[int], bytes, list[int], list[tuple[int, Disposition]], list[tuple[int, Disposition, bytes]]]


class _Rows:
    """The columns of a batch."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self.routes = self._integers("route")
        self.positions = self._integers("position")
        self._messages = batch.column("message")
        _, offsets, self._data = self._messages.buffers()
        width = np.int64 if self._messages.type == pa.large_binary() else np.int32
        at = self._messages.offset
        self._offsets = np.frombuffer(offsets, width)[at : at + batch.num_rows + 1]
        self._has_dispositions = (
            "disposition" in batch.schema.names and batch.column("disposition").null_count < batch.num_rows
        )

    def _integers(self, name: str) -> np.ndarray[Any, Any]:
        column = self._batch.column(name)
        if column.null_count:
            raise InvalidArgumentError(
                f"column '{name}' holds null, and without it a message cannot be settled; a step has to pass the column on as it is"
            )
        # From its buffer: Arrow's own conversion loads pandas where that is installed, for half a second and 25 MiB.
        numbers: np.ndarray[Any, Any] = np.frombuffer(column.buffers()[1], f"i{column.type.bit_width // 8}")
        return numbers[column.offset : column.offset + len(column)]

    def runs(self) -> list[tuple[int, int, int]]:
        """Rows of one route that follow each other: (first row, row behind the last, route)."""
        routes = self.routes
        count = len(routes)
        if count <= FEW_ROWS:
            values: list[int] = routes.tolist()
            starts = [0, *(row for row in range(1, count) if values[row] != values[row - 1])]
        else:
            starts = [0, *(np.flatnonzero(routes[1:] != routes[:-1]) + 1).tolist()]
        stops = [*starts[1:], count]
        return [(start, stop, int(routes[start])) for start, stop in zip(starts, stops, strict=True)]

    def cut(self, start: int, stop: int) -> _Cut:
        """The rows of one run: positions, bytes, offsets of those that are sent, and the others with their disposition."""
        positions = _joined(self.positions[start:stop])
        if self._has_dispositions:
            stays, disposed, diverted = self._disposed(start, stop)
            if disposed or diverted:
                return self._picked(stays, disposed, diverted)
        self._check_messages(start, stop)
        offsets = self._offsets[start : stop + 1]
        return positions, self._bytes(offsets), (offsets - offsets[0]).tolist(), [], []

    def cell(self, row: int) -> pa.Buffer:
        """The message of one row, where it stands."""
        return self._data[int(self._offsets[row]) : int(self._offsets[row + 1])]

    def _bytes(self, offsets: np.ndarray[Any, Any]) -> bytes:
        if self._data is None:
            return b""
        data: bytes = self._data[int(offsets[0]) : int(offsets[-1])].to_pybytes()
        return data

    def _check_messages(self, start: int, stop: int) -> None:
        if self._messages.null_count and self._messages.slice(start, stop - start).null_count:
            raise InvalidArgumentError(
                "column 'message' holds null; a step has to give such rows a disposition instead"
            )

    def _disposed(
        self, start: int, stop: int
    ) -> tuple[list[int], list[tuple[int, Disposition]], list[tuple[int, Disposition, bytes]]]:
        """The rows that are sent, and the others."""
        stays: list[int] = []
        disposed: list[tuple[int, Disposition]] = []
        diverted: list[tuple[int, Disposition, bytes]] = []
        columns = [self._cells(name, start, stop) for name in ("disposition", "reason", "description")]
        for row, (kind, reason, description) in enumerate(zip(*columns, strict=True), start):
            if kind is None:
                stays.append(row)
            elif kind in DISPOSITIONS:
                disposition = Disposition(kind, str(reason or ""), str(description or ""))
                disposed.append((int(self.positions[row]), disposition))
            elif kind.startswith(_DIVERTS):
                self._check_messages(row, row + 1)
                disposition = Disposition(kind, str(reason or ""), str(description or ""))
                diverted.append((int(self.positions[row]), disposition, self._bytes(self._offsets[row : row + 2])))
            else:
                raise InvalidArgumentError(
                    f"column 'disposition' holds '{kind}'; write {', '.join(DISPOSITIONS)} or null"
                )
        return stays, disposed, diverted

    def _cells(self, name: str, start: int, stop: int) -> list[Any]:
        if name not in self._batch.schema.names:
            return [None] * (stop - start)
        cells: list[Any] = self._batch.column(name).slice(start, stop - start).to_pylist()
        return cells

    def _picked(
        self,
        stays: list[int],
        disposed: list[tuple[int, Disposition]],
        diverted: list[tuple[int, Disposition, bytes]],
    ) -> _Cut:
        pieces: list[bytes] = []
        offsets = [0]
        for row in stays:
            self._check_messages(row, row + 1)
            pieces.append(self._bytes(self._offsets[row : row + 2]))
            offsets.append(offsets[-1] + len(pieces[-1]))
        return self.positions[stays].tolist() if stays else [], b"".join(pieces), offsets, disposed, diverted


def _joined(positions: np.ndarray[Any, Any]) -> Sequence[int]:
    """Positions as a range where they follow each other."""
    first, count = int(positions[0]), len(positions)
    run = range(first, first + count)
    if count > FEW_ROWS:
        return run if positions[-1] == run[-1] and bool((np.diff(positions) == 1).all()) else positions.tolist()
    numbers: list[int] = positions.tolist()
    return run if numbers == list(run) else numbers
