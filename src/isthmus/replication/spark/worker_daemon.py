"""The process that Spark forks its Python workers from.

What it is: PySpark's own daemon, started by Spark as `spark.python.daemon.module`, after everything has been imported that
isthmus's readers and sinks, and Spark's own worker, import. A route takes two workers, and each would spend most of a second
of CPU on the same imports, and hold the same pages once more. What it is not: a change of the daemon.

A worker collects garbage after every task. What was imported before the fork is taken out of that: going through it took
30 ms at each lease change, and copied the pages that the workers share.

Spark has a daemon of its own for each kind of worker: also for those in which it asks a data source for its schema, its reader and its writer, one
after the other at the start of a query. They move no message, and import what the data source needs alone.

Invariants:
    I1. What is imported here starts no thread of Python's and opens nothing: the daemon forks. The threads that OpenBLAS and Arrow have of
        their own are made again by them in what is forked.
    I2. Nothing here, and nothing that moves a message, loads pandas: it takes as long as all the rest.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from pyspark.daemon import manager

# By their names: an import that nothing here uses looks to a linter like one too many.
PRELOADED = (
    "isthmus.bridge.host.reader.reader",
    "isthmus.bridge.host.sender.sender",
    "isthmus.bridge.spark.inflow",
    "isthmus.bridge.spark.outflow",
    "isthmus.bridge.spark.source",
    "isthmus.bridge.spark.stage",
    "isthmus.connectors.servicebus.port.connector",
    "pyspark.worker",
    "pyspark.sql.streaming.stateful_processor_util",
    "pyspark.sql.worker.plan_data_source_read",
)

PLANNING = ("isthmus.bridge.spark.source",)
_WORKER = "pyspark.worker"

# The daemon of PySpark reads the kind of its workers in the same way.
_kind = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].startswith("pyspark") else _WORKER
for name in PRELOADED if _kind == _WORKER else PLANNING:
    import_module(name)
gc.collect()
gc.freeze()

if __name__ == "__main__":
    manager()
