"""The process that Spark forks its Python workers from.

What it is: PySpark's own daemon, started by Spark as `spark.python.daemon.module`, after importing the modules of isthmus's readers and
sinks, and of Spark's own worker. A route uses two workers, and each would spend most of a second of CPU on the same imports, and keep
separate copies of the same pages. What it is not: a change of the daemon.

A worker collects garbage after every task. The imported objects are excluded from that before the fork: traversing them took
30 ms at each lease change, and copied the pages that the workers share.

Spark has a separate daemon for each kind of worker: also for those that query a data source for its schema, its reader and its writer, one
after the other at the start of a query. They move no messages, and import only the modules of the data source.

Invariants:
    I1. Imports here start no Python thread and open nothing: the daemon forks. OpenBLAS and Arrow start their own threads again in each
        forked process.
    I2. Neither this module nor the code that moves messages loads pandas: it takes as long as all other imports.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from pyspark.daemon import manager

# By name: a linter would report an unused import.
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
