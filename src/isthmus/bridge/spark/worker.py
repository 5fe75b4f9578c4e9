"""The Spark worker in which reader and sink run.

What it is: everything that depends on how Spark runs Python: the task's identity, the session's settings as a task sees them,
the file through which a worker's batches go, and the thread switching of a worker with two busy threads. What it is not: the
data source (`source`, `sink`).

Invariants:
    I1. Nothing here fails with another release of Spark: missing parts are reported as absent.
    I2. A session with speculation is refused: a second copy of a running task would settle messages of the first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from isthmus.bridge.host.channel import channel_path
from isthmus.bridge.spark.arrow_batch import padding_bytes
from isthmus.errors import InvalidArgumentError

__all__ = ["flush_row_bytes", "output_file", "refuse_speculation", "setting", "share_interpreter", "task_channel"]

# Python's default of 5 ms would delay the thread of the sockets by as long, for each message.
SWITCH_INTERVAL_SECONDS = 0.001
_SPECULATION = "spark.speculation"
_QUERY_ID = "sql.streaming.queryId"


def task_channel() -> Path | None:
    """The channel of reader and sink of the running task; None outside a task."""
    context = TaskContext.get()
    if context is None:
        return None
    return channel_path(
        context.getLocalProperty(_QUERY_ID), context.stageId(), context.partitionId(), context.taskAttemptId()
    )


def setting(name: str) -> str | None:
    """A setting of the session that this task runs in: Spark passes all of them to its jobs as local properties."""
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def flush_row_bytes() -> int:
    """The size of a flush row in this session.

    Raises:
        InvalidArgumentError: Spark collects more bytes than a flush row should have.
    """
    return padding_bytes(setting, os.environ.get("SPARK_BUFFER_SIZE"))


def refuse_speculation() -> None:
    """Checks the session.

    Raises:
        InvalidArgumentError: it has speculation on.
    """
    if (setting(_SPECULATION) or "").strip().lower() == "true":
        raise InvalidArgumentError(
            f"{_SPECULATION} is true: a second copy of a running task would settle messages of the first; set it to false"
        )


def share_interpreter() -> None:
    """Shortens the switch interval, so that the thread of the sockets gets the GIL soon while Spark's thread is busy."""
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)


def output_file() -> Any:
    """The file through which the batches of the running reader go, with `flush()`; None where this release has none.

    Spark writes batches through a Python file with a buffer of 64 KiB, whose tail stays until more is written. It is found in
    the stack frames that called the reader.
    """
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "dump_stream":
            found = frame.f_locals.get("stream")
            if hasattr(found, "flush"):
                return found
        frame = frame.f_back
    return None
