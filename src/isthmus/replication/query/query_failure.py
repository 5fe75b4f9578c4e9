"""The cause in a failed query's report.

What it is: the line of Spark's long text that states the cause for an operator. What it is not: the decision whether to start
again.
"""

from __future__ import annotations

from collections.abc import Sequence

import isthmus
from isthmus.replication.spark.executor_fault import executor_fault

__all__ = ["WORKER_GONE", "cause_of"]

WORKER_GONE = (
    "a Python worker of the route was killed, or crashed (out of memory?); messages that it had not settled are delivered again once their "
    "locks have expired"
)
# Spark's texts if the process at the other end of a worker's socket has ended.
_WORKER_GONE = (
    "Python worker exited unexpectedly",
    "java.io.EOFException",
    "java.io.IOException: Connection reset by peer",
    "java.io.IOException: Broken pipe",
    "java.net.SocketException",
)


def cause_of(text: str) -> str:
    """The line of Spark's long report with the cause: that of the innermost Python error."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("isthmus.") and ": " in line]
    if named:
        return named[-1].partition(": ")[2]
    if fault := executor_fault(text, isthmus.__version__):
        return fault
    if any(word in text for word in _WORKER_GONE):
        return WORKER_GONE
    errors = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (errors[-1] if errors else lines[0] if lines else "the query failed without an error text")[:500]
