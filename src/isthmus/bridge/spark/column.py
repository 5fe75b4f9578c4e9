"""The columns of the data source `isthmus`, as Spark's types.

What it is: the schema, which planning a query needs. Spark plans in several Python processes, each of which spends time and
memory on the imports of this module, so it imports neither numpy nor Arrow. What it is not: the rows (`row`).
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import BinaryType, DataType, IntegerType, LongType, StringType, StructType

from isthmus.message.column import COLUMN_TYPES

__all__ = ["DDL", "OPTIONAL", "REQUIRED", "ddl", "is_own"]

DDL = "message binary, route int, position bigint"
REQUIRED: dict[str, DataType] = {"message": BinaryType(), "route": IntegerType(), "position": LongType()}
OPTIONAL: dict[str, DataType] = {"disposition": StringType(), "reason": StringType(), "description": StringType()}


def ddl(steps: Sequence[str], columns: Sequence[str]) -> str:
    """The columns of a read with steps, and with columns for steps of the query."""
    if not steps and not columns:
        return DDL
    more = [f"{name} string" for name in OPTIONAL] + [f"`{name}` {COLUMN_TYPES[name]}" for name in columns]
    return f"{DDL}, {', '.join(more)}"


def is_own(schema: StructType, steps: Sequence[str] = (), columns: Sequence[str] = ()) -> bool:
    """Whether a schema is the one that the data source reads with."""
    wanted = {name: kind.simpleString() for name, kind in REQUIRED.items()}
    if steps or columns:
        wanted |= {name: kind.simpleString() for name, kind in OPTIONAL.items()}
        wanted |= {name: COLUMN_TYPES[name] for name in columns}
    return [(field.name, field.dataType.simpleString(), field.nullable) for field in schema.fields] == [
        (name, kind, True) for name, kind in wanted.items()
    ]
