"""isthmus.replication.step.chain.narrow: the columns that a step of DataFrames leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from isthmus.errors import InvalidArgumentError
from isthmus.message.column import COLUMNS
from isthmus.replication.step.chain.narrow import completed

_OWN = {"message": BinaryType(), "route": IntegerType(), "position": LongType()}
_MARKS = {"disposition": StringType(), "reason": StringType(), "description": StringType()}


def rows(**columns: DataType) -> Any:
    fields = {**_OWN, **_MARKS, **columns}
    return SimpleNamespace(schema=StructType([StructField(name, kind) for name, kind in fields.items()]))


@pytest.mark.parametrize(
    ("name", "kind", "reported"),
    [
        ("body", IntegerType(), "step sql: column body is int; cast it to binary or string"),
        ("message_id", LongType(), "step sql: column message_id is bigint; cast it to string"),
        ("subject", BooleanType(), "column subject is boolean; cast it to string"),
        ("application_properties", StringType(), "make a map"),
        ("disposition", BooleanType(), "column disposition is boolean; cast it to string"),
    ],
)
def test_i2_a_column_whose_values_would_be_written_as_others_is_refused(
    name: str, kind: DataType, reported: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reported):
        completed(rows(**{name: kind}), "sql", COLUMNS)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("body", StringType()),
        ("body", NullType()),
        ("application_properties", MapType(StringType(), TimestampType())),
        ("delivery_count", StringType()),  # is not looked at
    ],
)
def test_other_columns_continue(name: str, kind: DataType) -> None:
    made = rows(**{name: kind})
    assert completed(made, "sql", COLUMNS) is made
