"""The step `deduplicate`: a message with the key of an earlier one, within a window, is not passed on.

What it is: the key of a message, and Spark's deduplication over keys. What it is not: the spool of the rows
(`isthmus.connectors.spool.timed_reader`), or the query (`isthmus.replication.shuffle`). docs/explanation/spool.md.
Specification: Spark's documentation, "Structured Streaming", `dropDuplicatesWithinWatermark`.

Invariants:
    I1. Of the messages with one key within a window the first one passes. A message without the key always passes.
    I2. The last row of a batch, which is no message, passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

from isthmus.connectors.spool.spool_clock import MESSAGE_ROW
from isthmus.replication.canary_mark import is_canary
from isthmus.replication.step.base import Settings
from isthmus.replication.step.message.field import ABSENT, is_utf8, reader
from isthmus.replication.step.message.message import StepMessage

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["deduplicated", "key_of", "slack_ms"]

_KEYED = "kind int, spool_number long, source string, time timestamp, message binary, key string"


def slack_ms(settings: Settings) -> int:
    """The delay of the watermark. Spark keeps a key until the watermark, which is this far behind the latest row, is this far after the key's
    row: half the window results in the whole.
    """
    return max(1, int(settings["window"]) // 2)


def key_of(settings: Settings) -> Callable[[bytes], str]:
    """The function that returns a message's key; empty if it has none. The key includes the name of its field: after a change of the field, a
    stored key of another field matches no message, even with an equal value.
    """
    by = settings["by"]
    value_of = reader(by)

    def key(payload: bytes) -> str:
        if is_canary(payload):
            return ""
        try:
            value = value_of(StepMessage(payload))
        except Exception:  # noqa: BLE001 - a message may have any bytes; without a key it passes
            return ""
        if value is ABSENT or value is None or value == "":
            return ""
        kind, text = type(value).__name__, str(value)
        if not is_utf8(text):  # it would fail its batch each time
            text = f"#{sha256(text.encode(errors='surrogatepass')).hexdigest()}"
        return f"{by}:{kind}:{text}"

    return key


def deduplicated(rows: DataFrame, settings: Settings) -> DataFrame:
    """The rows without repeated keys; columns unchanged."""
    keyed = rows.mapInArrow(partial(_with_keys, dict(settings)), _KEYED)
    delay = f"{slack_ms(settings)} milliseconds"
    return keyed.withWatermark("time", delay).dropDuplicatesWithinWatermark(["key"]).drop("key")


def _with_keys(settings: Settings, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    find = key_of(settings)
    for batch in batches:
        kinds, numbers, messages = (batch.column(name).to_pylist() for name in ("kind", "spool_number", "message"))
        times = batch.column("time").to_pylist()
        found = [
            # With its time: a spool that was deleted starts its numbers again.
            (find(message) if kind == MESSAGE_ROW else "") or f"#{kind}:{number}:{time}"
            for kind, number, message, time in zip(kinds, numbers, messages, times, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(found, pa.string())], names=[*batch.schema.names, "key"]
        )
