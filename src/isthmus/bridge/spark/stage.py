"""The steps of reader and sink on batches.

What it is: the protocol, and the name of its implementation: steps are in a layer above the bridge, which refers to them only by name,
like connectors (`isthmus.bridge.registry`). What it is not: the steps.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Stage", "open_stage"]

_PLACE = "isthmus.replication.step.chain.row_stage"


class Stage(Protocol):
    """Steps of one message each, applied to batches."""

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The remaining rows, flush rows included; None where there are none."""
        ...


def open_stage(steps: Sequence[str], written: Sequence[str] = (), added: Sequence[str] = ()) -> Stage | None:
    """A stage; None where it would have no steps.

    Args:
        steps: the steps, each as JSON with one key.
        written: columns whose values are written into messages first.
        added: columns that are added at last.

    Raises:
        InvalidArgumentError: a step cannot work.
    """
    if not (steps or written or added):
        return None
    return cast(Stage, importlib.import_module(_PLACE).RowStage(steps, written, added))
