"""Reference data from a CSV or Parquet file.

Invariants:
    I1. A key of a CSV file is its text: 007 is not only 7, and NA is not null.
    I2. A value is the value in the file, or its text: no digit is lost.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.replication.step.reference.value import Reference, json_value, text_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load_reference"]

_INTEGER = re.compile(r"[+-]?[0-9]{1,100}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")

_LIKE_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
# The beginning of a code or a telephone number, but not of a number.
_PADDED = re.compile(r"\+|-?0[0-9]")


def load_reference(path: str, key: str, columns: Sequence[str]) -> Reference:
    """Reference data of a CSV or Parquet file.

    Raises:
        ValueError: the file is no CSV or Parquet file, or lacks a column.
        OSError: the file cannot be read.
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
    cells = [[json_value(each) for each in table.column(name).to_pylist()] for name in columns]
    rows = list(zip(keys, zip(*cells, strict=True), strict=True))
    if is_parquet:
        return {text_of(each): row for each, row in rows if each is not None}
    rows = [(each, tuple(None if cell == "" else cell for cell in row)) for each, row in rows if each]
    return {_plain(each): row for each, row in rows} | dict(rows)


def _read_csv(data: bytes, columns: Sequence[str], kind: pa.DataType | None = None) -> pa.Table:
    """Columns of a CSV file, as texts unless all are numbers, times or booleans; NA is a text."""
    import pyarrow as pa
    from pyarrow import csv

    types = dict.fromkeys(columns, kind) if kind is not None else {}
    options = csv.ConvertOptions(include_columns=columns, column_types=types)
    table = csv.read_csv(pa.BufferReader(data), convert_options=options)
    # In a column of only NA and similar texts, Arrow reads all of them as null.
    nulls = [field.name for field in table.schema if pa.types.is_null(field.type)]
    if nulls:
        options.column_types = types | dict.fromkeys(nulls, pa.string())
        table = csv.read_csv(pa.BufferReader(data), convert_options=options)
    return table


def _as_written(table: pa.Table, data: bytes) -> pa.Table:
    """A table of a CSV file, with texts instead of numbers in each column that has a number which would not be written as in the file: 01234, or
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
    """Whether a number represents the text of a cell completely."""
    if value is None or text is None or not _LIKE_NUMBER.fullmatch(text := text.strip()):
        return value is None or not math.isfinite(value)
    return not _PADDED.match(text) and math.isfinite(value) and Decimal(text) == Decimal(repr(value))


def _plain(text: str) -> str:
    """The text of the number or boolean that a text of a CSV file represents: 7 also finds 007."""
    if text.lower() in ("true", "false"):
        return text.lower()
    if _INTEGER.fullmatch(text):
        return str(int(text))
    return text_of(float(text)) if _NUMBER.fullmatch(text) else text
