"""The process that Spark forks its Python workers from.

What it is: PySpark's own daemon, started by Spark as `spark.python.daemon.module`, after everything that isthmus's readers
and sinks import has been imported once. A route takes two workers, and looking its data source up takes two more; each
would spend half a second of CPU on the same imports, and hold the same pages once more. What it is not: a change of the
daemon.

Invariants:
    I1. What is imported here starts no thread and opens nothing: the daemon forks.
"""

from __future__ import annotations

from pyspark.daemon import manager

import isthmus.connectors.servicebus.sink
import isthmus.connectors.servicebus.source  # noqa: F401 - for those who are forked

if __name__ == "__main__":
    manager()
