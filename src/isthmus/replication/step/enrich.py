"""The step `enrich`.

What it is: reference data as one mapping in memory, read again when its file has changed, and its columns added to JSON bodies. It is
a look-up in the worker and not a join of Spark's: a lease is one micro-batch of an hour, for which Spark would read the data once.

Invariants:
    I1. Data that cannot be read after a change leaves the data before in use.
    I2. A key of a CSV file is the text that stands there: 007 is not 7 alone, and NA is not null.
    I3. A value is added as it stands in the file, or as the text of it: no digit is lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.bridge.delivery_event import Disposition
from isthmus.replication.step.base import MessageStep, Settings, StepRefusalError
from isthmus.replication.step.message.field import ABSENT, put, reader
from isthmus.replication.step.message.message import StepMessage
from isthmus.replication.step.watched_file import WatchedFile
from isthmus.topology.step.enrich import join_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NO_REFERENCE_DATA", "load_reference", "open_enrich"]

NO_REFERENCE_DATA = "NoReferenceData"
_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")

_LIKE_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# What a code or a telephone number begins with, and a number is not written with.
_PADDED = re.compile(r"\+|-?0[0-9]")

Reference = dict[str, tuple[Any, ...]]
"""By the text of the value that is looked up: the columns to add."""


def open_enrich(settings: Settings) -> MessageStep:
    """See `isthmus.topology.step.enrich.EnrichStep`."""
    field, key = join_of(settings["on"])
    columns = settings["columns"]
    names = [settings.get("prefix", "") + name for name in columns]
    data = WatchedFile(settings["from"], _loader(key, columns))
    value_of = reader(field)
    fails = settings["missing"] == "fail"

    def step(message: StepMessage) -> Disposition | None:
        value = value_of(message)
        is_absent = value is ABSENT or value is None
        found = None if is_absent else data.get().get(_text(value))
        if found is None:
            if fails:
                told = "the message has not got it" if is_absent else f"it is {_text(value)!r}"
                raise StepRefusalError(NO_REFERENCE_DATA, f"nothing is known for {field}: {told}")
            return None
        body = message.json_object()
        for name, each in zip(names, found, strict=True):
            put(body, name, each)
        message.touch_json()
        return None

    return step


def _loader(key: str, columns: Sequence[str]) -> Callable[[str], Reference]:
    return lambda path: load_reference(path, key, columns)


def load_reference(path: str, key: str, columns: Sequence[str]) -> Reference:
    """Reference data of a CSV or Parquet file.

    Raises:
        ValueError: the file is no such file, or has not got a column.
        OSError: it cannot be read.
    """
    import pyarrow as pa

    wanted = list(dict.fromkeys((key, *columns)))
    is_parquet = path.endswith(".parquet")
    try:
        if is_parquet:
            import pyarrow.parquet as pq

            table = pq.read_table(path, columns=wanted)
            keys = table.column(key).to_pylist() if key in table.column_names else []
        else:
            data = Path(path).read_bytes()
            table = _as_written(_read_csv(data, wanted), data)
            keys = _read_csv(data, [key], pa.string()).column(key).to_pylist()
    except (pa.ArrowInvalid, KeyError) as error:
        raise ValueError(f"{path}: {error}") from None
    missing = [name for name in wanted if name not in table.column_names]
    if missing:
        raise ValueError(f"{path} has no column {', '.join(missing)}")
    cells = [[_json_value(each) for each in table.column(name).to_pylist()] for name in columns]
    rows = list(zip(keys, zip(*cells, strict=True), strict=True))
    if is_parquet:
        return {_text(each): row for each, row in rows if each is not None}
    rows = [(each, tuple(None if cell == "" else cell for cell in row)) for each, row in rows if each]
    return {_plain(each): row for each, row in rows} | dict(rows)


def _read_csv(data: bytes, columns: Sequence[str], kind: pa.DataType | None = None) -> pa.Table:
    """Columns of a CSV file, as texts where they are not all numbers, times or truth values; NA is a text as others are."""
    import pyarrow as pa
    from pyarrow import csv

    types = dict.fromkeys(columns, kind) if kind is not None else {}
    options = csv.ConvertOptions(include_columns=columns, column_types=types)
    table = csv.read_csv(pa.BufferReader(data), convert_options=options)
    # Where a column has nothing but NA and its like, Arrow takes all of them for null.
    nulls = [field.name for field in table.schema if pa.types.is_null(field.type)]
    if nulls:
        options.column_types = types | dict.fromkeys(nulls, pa.string())
        table = csv.read_csv(pa.BufferReader(data), convert_options=options)
    return table


def _as_written(table: pa.Table, data: bytes) -> pa.Table:
    """A table of a CSV file, with texts in place of numbers in each column of which a number would not show what is written: 01234, or
    more digits than a float has.
    """
    import pyarrow as pa

    for at, field in enumerate(table.schema):
        if not (pa.types.is_integer(field.type) or pa.types.is_floating(field.type)):
            continue
        texts = _read_csv(data, [field.name], pa.string()).column(field.name)
        if not all(map(_is_written, table.column(at).to_pylist(), texts.to_pylist())):
            table = table.set_column(at, field.name, texts)
    return table


def _is_written(value: float | None, text: str | None) -> bool:
    """Whether a number is all that a cell says."""
    if value is None or text is None or not _LIKE_NUMBER.fullmatch(text := text.strip()):
        return value is None or not math.isfinite(value)
    return not _PADDED.match(text) and math.isfinite(value) and Decimal(text) == Decimal(repr(value))


def _plain(text: str) -> str:
    """The text of the number, or of the truth value, that a text of a CSV file is: 007 is found by 7, too."""
    if text.lower() in ("true", "false"):
        return text.lower()
    if _INTEGER.fullmatch(text):
        return str(int(text))
    return _text(float(text)) if _NUMBER.fullmatch(text) else text


def _text(value: Any) -> str:
    """Numbers and texts compare as texts, so that 5 in JSON finds "5" and 5 in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else str(value)


def _json_value(value: Any) -> Any:
    """A cell as JSON says it; numbers that it has not are null."""
    if isinstance(value, dict):
        return {name: _json_value(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return float(value) if Decimal(repr(float(value))) == value else str(value)
    if isinstance(value, bytes):
        return value.hex()
    return None if isinstance(value, float) and not math.isfinite(value) else value
