"""The size of a flush row, for a read with settle=sink.

What it is: `isthmus.bridge.spark.arrow_batch`, with what a user of this data source can do instead of changing the session.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.bridge.spark import arrow_batch
from isthmus.bridge.spark.arrow_batch import ARROW_BATCH_BYTES, ARROW_BATCH_SETTING

__all__ = ["ARROW_BATCH_BYTES", "ARROW_BATCH_SETTING", "padding_bytes"]


def padding_bytes(setting: Callable[[str], str | None], buffer_bytes: str | None) -> int:
    """How large a flush row has to be; see `isthmus.bridge.spark.arrow_batch.padding_bytes`."""
    return arrow_batch.padding_bytes(setting, buffer_bytes, otherwise="read with settle=commit")
