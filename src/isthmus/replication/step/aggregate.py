"""The step `aggregate`: one message for all messages of a window, with counts and sums of their fields.

What it is: the values of a message, Spark's aggregation over windows, and the message built from a result. What it is not: the
spool that the rows come from (`isthmus.connectors.spool.timed_reader`), or the query (`isthmus.replication.shuffle`).
Specification: Spark's documentation, "Structured Streaming", windows and watermarks; docs/explanation/spool.md.

Invariants:
    I1. Each message counts in one window. A message that is later than `wait` counts in the oldest open window.
    I2. The message of a window and its group has the same MessageId each time it is built, and no other message has it.
    I3. The required fields of a message are checked before it is settled at its source (`open_aggregate`).
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from isthmus.amqp import section
from isthmus.amqp.types import Long, Timestamp
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.spool.refused import set_aside
from isthmus.connectors.spool.spool_clock import MESSAGE_ROW
from isthmus.message.json_number import read_json, write_json
from isthmus.message.name import ENQUEUED_TIME, SEQUENCE_NUMBER
from isthmus.replication.step.base import STEP_FAILED, MessageStep, Settings
from isthmus.replication.step.message.field import ABSENT, is_utf8, reader
from isthmus.replication.step.message.message import StepMessage
from isthmus.topology.file.duration import format_ms
from isthmus.topology.step.window import FUNCTION, result_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["aggregated", "message_of", "open_aggregate", "result_of"]

# Beyond it a float cannot distinguish adjacent integers.
_EXACT = 1 << 53
_ID_CHARACTERS = 100
SET_ASIDE_ROW = 2


class Function(NamedTuple):
    """The function over a field: `count` without a field counts messages."""

    name: str
    field: str = ""


class _Values:
    """Extracts the values of a message for its window."""

    def __init__(self, settings: Settings) -> None:
        self._by = [(name, reader(name)) for name in settings.get("by") or ()]
        functions = [_function(text) for text in settings["fields"].values()]
        self._fields = [(each, reader(each.field) if each.field else None) for each in functions]

    def of(self, message: StepMessage) -> tuple[str, list[float | None]]:
        """Its group as JSON, and its value for each function; None if it has none.

        Raises:
            ValueError: it lacks a field of the group, or a value is no number.
        """
        group = []
        for name, value_of in self._by:
            value = value_of(message)
            if value is ABSENT or isinstance(value, dict | list):
                raise ValueError(f"it has no field {name} of the group")
            group.append(value)
        text = f"[{', '.join(map(write_json, group))}]"
        if not is_utf8(text):
            raise ValueError("a field of the group contains half of a surrogate pair, which is no valid text")
        return text, [_value(message, *each) for each in self._fields]


def _function(text: str) -> Function:
    match = FUNCTION.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is none of count, count(FIELD), sum(FIELD), avg(FIELD), min(FIELD), max(FIELD)")
    return Function(match[1] or "count", match[2] or "")


def _value(message: StepMessage, function: Function, value_of: Callable[[StepMessage], Any] | None) -> float | None:
    if value_of is None:
        return 1.0
    value = value_of(message)
    if value is ABSENT or value is None:
        return None
    if function.name == "count":
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"its field {function.field} is {str(value)[:40]!r}, and {function.name} needs numbers")
    return float(value)


def open_aggregate(settings: Settings) -> MessageStep:
    """The part before the spool: the message is checked, and set aside if it lacks the fields that the step needs."""
    values = _Values(settings)

    def step(message: StepMessage) -> Disposition | None:
        values.of(message)
        return None

    return step


def aggregated(rows: DataFrame, settings: Settings, spool: Path) -> DataFrame:
    """One row for each window and group that has closed: kind, start_ms, end_ms, by, count, v0, v1 …

    Args:
        rows: rows of a spool, with times.
        settings: settings of the step.
        spool: the spool of the rows; keeps a message that lacks the fields of changed settings.
    """
    from pyspark.sql import functions as F

    functions = [_function(text).name for text in settings["fields"].values()]
    schema = "kind int, time timestamp, by string" + "".join(f", v{at} double" for at in range(len(functions)))
    made = {"count": F.count, "sum": F.sum, "avg": F.avg, "min": F.min, "max": F.max}
    columns = [made[name](f"v{at}").alias(f"v{at}") for at, name in enumerate(functions)]
    window = F.window("time", f"{int(settings['window'])} milliseconds")
    valued = rows.mapInArrow(partial(_with_values, dict(settings), spool), schema)
    grouped = valued.withWatermark("time", f"{int(settings['wait'])} milliseconds").groupBy(window, "kind", "by")
    return grouped.agg(F.count(F.lit(1)).alias("count"), *columns).select(
        "kind",
        F.unix_millis("window.start").alias("start_ms"),
        F.unix_millis("window.end").alias("end_ms"),
        "by",
        "count",
        *(f"v{at}" for at in range(len(functions))),
    )


def _with_values(settings: Settings, spool: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    values = _Values(settings)
    width = len(settings["fields"])
    nothing: tuple[str, list[float | None]] = ("[]", [None] * width)
    for batch in batches:
        kinds, numbers, messages = (batch.column(name).to_pylist() for name in ("kind", "spool_number", "message"))
        found = []
        for at, (kind, number, payload) in enumerate(zip(kinds, numbers, messages, strict=True)):
            contribution = nothing
            if kind == MESSAGE_ROW:
                try:
                    contribution = values.of(StepMessage(payload))
                except Exception as error:  # noqa: BLE001 - a fault of one message, which would stop its route permanently
                    disposition = Disposition("dead-letter", STEP_FAILED, f"step aggregate: {error}")
                    set_aside(spool, number, payload, disposition, time.time())
                    kinds[at] = SET_ASIDE_ROW
            found.append(contribution)
        columns = [pa.array([each[1][at] for each in found], pa.float64()) for at in range(width)]
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(kinds, pa.int32()),
                batch.column("time"),
                pa.array([each[0] for each in found], pa.string()),
                *columns,
            ],
            names=["kind", "time", "by", *(f"v{at}" for at in range(width))],
        )


def result_of(settings: Settings, row: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON body of a window's message."""
    body: dict[str, Any] = {"window_start": _text(row["start_ms"]), "window_end": _text(row["end_ms"])}
    body |= {
        result_name(name): value
        for name, value in zip(settings.get("by") or (), read_json(row["by"].encode()), strict=True)
    }
    return body | {name: _number(row[f"v{at}"]) for at, name in enumerate(settings["fields"])}


def message_of(settings: Settings, row: Mapping[str, Any], task: str, number: int) -> bytes:
    """The message of a window.

    Args:
        settings: settings of the step.
        row: a row of `aggregated`.
        task: the task's name.
        number: its number in the spool that it is written to, which identifies copies.
    """
    by: Sequence[Any] = read_json(row["by"].encode())
    shown = list(map(_shown, by))
    # With its length: after a change of `window`, another window may begin at the same time.
    window = f"{task}/{_text(row['start_ms'])}/{format_ms(row['end_ms'] - row['start_ms'])}"
    message_id = "/".join((window, *shown))
    is_plain = all(isinstance(value, str) != _is_json(text) for value, text in zip(by, shown, strict=True))
    if (
        len(message_id) > _ID_CHARACTERS
        or not message_id.isprintable()
        or any("/" in each for each in shown)
        or not is_plain
    ):
        message_id = f"{window}/{sha256(row['by'].encode()).hexdigest()[:16]}"
    body = write_json(result_of(settings, row))
    return section.encode_message(
        body.encode(),
        properties={"message_id": message_id[-128:], "content_type": "application/json"},
        annotations={SEQUENCE_NUMBER: Long(number), ENQUEUED_TIME: Timestamp(int(row["end_ms"]))},
    )


def _shown(value: Any) -> str:
    """A value of a group in a MessageId."""
    return value if isinstance(value, str) else write_json(value)


def _is_json(text: str) -> bool:
    """Whether a text reads as a number, null, true or false: the group of "1" differs from that of 1."""
    try:
        json.loads(text[:_ID_CHARACTERS])
    except ValueError:
        return False
    return True


def _text(ms: int) -> str:
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")


def _number(value: float | None) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if float(value).is_integer() and abs(value) < _EXACT else value
