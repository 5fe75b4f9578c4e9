"""The checks of a DataFrame step before its query starts.

What it is: checks of the plan of the rows that a step `python` or `sql` returned, and of their columns. What it is not: the execution.

A lease keeps messages unsettled while their rows are in one task, and flush rows have to pass through: a step that removes rows removes flush
rows, and then no messages move until the lease ends; a step that shuffles would keep all rows until the lease ends
(docs/explanation/lease.md).

Invariants:
    I1. A plan with a node that is not known to pass every row on, one by one, is refused with the node's name.
    I2. A column with a type that would change its values is refused with the type to cast it to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidArgumentError
from isthmus.replication.step.message.column import READ_ONLY

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_narrow", "completed"]

_PASSING = frozenset(
    {
        "Project",
        "SubqueryAlias",
        "View",
        "StreamingRelation",
        "StreamingRelationV2",
        "StreamingDataSourceV2Relation",
        "LogicalRDD",
        "LocalRelation",
        "UnresolvedHint",
    }
)
_IN_PYTHON = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow", "BatchEvalPython", "ArrowEvalPython"})
_REMOVING = frozenset({"Filter", "GlobalLimit", "LocalLimit", "Limit", "Sample", "Offset"})
_RAW = {"message": "binary", "route": "int", "position": "bigint"}
_MARKS = ("disposition", "reason", "description")


def check_narrow(rows: DataFrame, step: str) -> None:
    """Refuse rows whose plan removes, gathers or multiplies them.

    Args:
        rows: the rows that the step returned.
        step: its name.

    Raises:
        InvalidArgumentError: with the node and the alternative.
    """
    for plan in _plans(rows._jdf.queryExecution().analyzed()):
        node = str(plan.nodeName())
        if node in _IN_PYTHON or _has_udf(plan):
            raise InvalidArgumentError(
                f"step {step} runs Python for its rows ({node}), and Spark does not pass on its output while it waits for more rows: use "
                "Spark's own functions, or a function of one message (takes: message)"
            )
        if node in _PASSING:
            continue
        if node in _REMOVING:
            raise InvalidArgumentError(
                f"step {step} removes rows ({node}): set their columns disposition ('complete' or 'dead-letter') and reason instead"
            )
        raise InvalidArgumentError(
            f"step {step} needs {node}, which does not pass on each row separately: a lease supports no shuffle, no join and no "
            "aggregate; for reference data use the step enrich"
        )


def completed(rows: DataFrame, step: str, columns: tuple[str, ...]) -> DataFrame:
    """The rows with the columns for dispositions, added if the step has not.

    Args:
        rows: the rows that the step returned.
        step: its name.
        columns: the columns that a message can have.

    Raises:
        InvalidArgumentError: a raw column is missing, a column has a type that would change its values, or a column is none of a message's
            columns.
    """
    from pyspark.sql import functions as F

    from isthmus.connectors.servicebus.spark.column import misfit

    given = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
    for name, kind in _RAW.items():
        if given.get(name) != kind:
            raise InvalidArgumentError(
                f"step {step}: column {name} is {given.get(name, 'missing')}; it has to be passed on unchanged ({kind})"
            )
    for name in given:
        if name not in {*_RAW, *_MARKS, *columns}:
            raise InvalidArgumentError(
                f"step {step}: a column {name!r} is not written to messages; drop it, or name it as one of {', '.join(columns)}"
            )
    for field in rows.schema.fields:
        if field.name not in {*_RAW, *READ_ONLY} and (hint := misfit(field.name, field.dataType)):
            raise InvalidArgumentError(f"step {step}: column {field.name} is {field.dataType.simpleString()}; {hint}")
    missing = {name: F.lit(None).cast("string") for name in _MARKS if name not in given}
    return rows.withColumns(missing) if missing else rows


def _plans(plan: Any) -> Iterator[Any]:
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        pending += _items(node.children())


def _has_udf(plan: Any) -> bool:
    """Whether an expression of a plan's node is a Python UDF."""
    pending = _items(plan.expressions())
    while pending:
        expression = pending.pop()
        if "PythonUDF" in expression.getClass().getSimpleName():
            return True
        pending += _items(expression.children())
    return False


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]
