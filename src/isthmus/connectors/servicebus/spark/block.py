"""Messages before they become Spark's rows.

What it is: the fields of messages that a read needs, and the choice of their columns. What it is not: the columns themselves (`row`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from isthmus.connectors.servicebus.spark.row import decoded_batch, raw_batch

__all__ = ["Block", "batch_of"]


class Block(NamedTuple):
    """Messages in the order of arrival."""

    sequences: Sequence[int]
    tokens: list[bytes]
    payloads: list[bytes]


def batch_of(mode: str, messages: Block) -> pa.RecordBatch:
    """Messages as the rows of a read."""
    make = raw_batch if mode == "raw" else decoded_batch
    return make(messages.payloads, messages.tokens, messages.sequences)
