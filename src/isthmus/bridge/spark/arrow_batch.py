"""The number of bytes that Spark collects before it passes a batch to the next Python worker.

What it is: the session's setting, as a task reads it, and the padding of a flush row that closes such a batch. What it is
not: the flush rows (`outflow`).

Invariants:
    I1. A session in which no flush row of reasonable size closes a batch is refused with the setting to change: its rows
        would wait in Spark until their lease ends.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from isthmus.errors import InvalidArgumentError

__all__ = ["ARROW_BATCH_BYTES", "ARROW_BATCH_SETTING", "padding_bytes"]

ARROW_BATCH_SETTING = "spark.sql.execution.arrow.maxBytesPerBatch"
# The best value, and that of isthmus's own session. The larger, the less Python and Arrow work per message in bulk; the
# smaller, the less is copied for a single message. With 1 KiB messages 64 KiB cost a fifth more in bulk than
# 256 KiB, 128 KiB 4 % more; at 500 messages a second 128 KiB save Java a fourth of its work, 64 KiB a third (ADR 18).
ARROW_BATCH_BYTES = 131_072
LIMIT_BYTES = 4 << 20
# Spark's default.
DEFAULT_BYTES = 64 << 20
# Java's stream to a worker is flushed at this size, independent of batches (spark.buffer.size).
DEFAULT_BUFFER_BYTES = 65_536
# A batch is closed by the row that exceeds its limit.
_OVER_BYTES = 1024
_SIZE = re.compile(r"([0-9]+)([bkmgtp]?)b?")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def padding_bytes(setting: Callable[[str], str | None], buffer_bytes: str | None) -> int:
    """The size of a flush row.

    Args:
        setting: returns a setting of the session by name, as it was written; None if it was not set.
        buffer_bytes: `spark.buffer.size` as Spark passes it to its workers; None if it does not.

    Raises:
        InvalidArgumentError: Spark collects more bytes than a flush row should have.
    """
    written = setting(ARROW_BATCH_SETTING)
    limit = DEFAULT_BYTES if written is None else _bytes_of(written)
    if limit > LIMIT_BYTES:
        said = f"is {written}" if written is not None else f"is not set, and Spark's default is {DEFAULT_BYTES >> 20}m"
        raise InvalidArgumentError(
            f"{ARROW_BATCH_SETTING} {said}: Spark would hold messages back until so many bytes of them wait; set it to "
            f"{ARROW_BATCH_BYTES} ({LIMIT_BYTES >> 20}m at most) in the session before the query starts"
        )
    return max(limit, int(buffer_bytes or DEFAULT_BUFFER_BYTES)) + _OVER_BYTES


def _bytes_of(written: str) -> int:
    """Bytes of a size as Spark's settings write it: `131072`, `128k`, `1mb`."""
    match = _SIZE.fullmatch(written.strip().lower())
    if match is None:  # Spark has refused it before, unless it knows more units than this
        raise InvalidArgumentError(f"{ARROW_BATCH_SETTING} is '{written}'; write a number of bytes, or such as 128k")
    return int(match[1]) * _UNITS[match[2]]
