"""The columns of the data source `isthmus`, as Spark's types.

What it is: what planning a query needs to know of rows. Spark plans in several Python processes; what those import here, each
of them spends time and memory on, so that numpy and Arrow stay outside. What it is not: the rows (`row`).
"""

from __future__ import annotations

from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

__all__ = ["DDL", "OPTIONAL", "REQUIRED", "is_own"]

DDL = "message binary, route int, position bigint"
REQUIRED: dict[str, DataType] = {"message": BinaryType(), "route": IntegerType(), "position": LongType()}
OPTIONAL: dict[str, DataType] = {"disposition": StringType(), "reason": StringType(), "description": StringType()}


def is_own(schema: StructType) -> bool:
    """Whether a schema is the one that the data source reads with."""
    return [(field.name, field.dataType, field.nullable) for field in schema.fields] == [
        (name, kind, True) for name, kind in REQUIRED.items()
    ]
