"""The steps of a group of routes, composed.

What it is: declarations to a query. Single-message steps are applied in the Python workers that the query has anyway: those before
the first DataFrame step in the reader's, the others in the sink's; without a DataFrame step both get about the same load. DataFrame
steps (`python` with `takes: rows`, `sql`) work on columns that the reader adds and the sink writes back, in Java alone. There is no
shuffle and no further worker.

    reader: steps…, columns added ─ python, sql, filter… ─ sink: columns written, steps…

What it is not: the steps.

Invariants:
    I1. Steps are applied in the order in which they are declared.
    I2. The inputs of a step are checked before anything starts (`check`).
    I3. Rows are raw except for the columns that DataFrame steps need. Only without steps may a row contain many messages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.message.column import COLUMNS
from isthmus.replication.step.chain.narrow import check_narrow, completed
from isthmus.replication.step.chain.opener import open_message_step
from isthmus.replication.step.custom import find_function, frame_function, frame_select, needed_columns
from isthmus.replication.step.rule import frame_filter
from isthmus.topology.step import StepDeclaration
from isthmus.topology.step.order import split

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Chain", "check"]


def check(texts: Sequence[str]) -> None:
    """Open the inputs of steps, and close them again.

    Raises:
        InvalidArgumentError: a file, a key or a function that a step names is invalid.
    """
    before, frames, after = split([StepDeclaration.from_text(text) for text in texts])
    for step in (*before, *after):
        open_message_step(step)
    for step in frames:
        if step.kind == "python":
            find_function(step.settings["function"])


class Chain:
    """The steps of one query.

    Args:
        texts: the steps, in the form of `StepDeclaration.to_text`.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._before, self._frames, self._after = split([StepDeclaration.from_text(text) for text in texts])
        needed = {name for step in self._frames for name in needed_columns(step.kind, step.settings)}
        self._columns = [name for name in COLUMNS if name in needed]

    def read_options(self) -> dict[str, str]:
        """The options of the reader."""
        if not (self._before or self._frames or self._after):
            return {"blocks": "true"}
        return _options(self._before, self._columns)

    def apply(self, rows: DataFrame) -> DataFrame:
        """The rows after the DataFrame steps.

        Raises:
            InvalidArgumentError: a step is not found, or needs what a lease does not support.
        """
        for step in self._frames:
            if step.kind == "filter":
                rows = frame_filter(rows, step.settings)
            else:
                made = (frame_select if step.kind == "sql" else frame_function)(rows, step.settings)
                check_narrow(made, str(step))
                rows = completed(made, str(step), COLUMNS)
        return rows

    def write_options(self, rows: DataFrame) -> dict[str, str]:
        """The options of the sink.

        Args:
            rows: as `apply` returned them.
        """
        return _options(self._after, [name for name in rows.columns if name in COLUMNS])


def _options(steps: Sequence[StepDeclaration], columns: Sequence[str]) -> dict[str, str]:
    options = {"steps": [step.to_text() for step in steps], "columns": list(columns)}
    return {name: json.dumps(each) for name, each in options.items() if each}
