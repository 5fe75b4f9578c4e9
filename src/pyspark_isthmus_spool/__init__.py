"""Spark finds the data source `isthmus_spool` here by itself: packages named `pyspark_*` that hold a `DefaultSource`.

Nothing needs to be registered: `spark.readStream.format("isthmus_spool")` works where isthmus is installed.
"""

from isthmus.connectors.spool.source import SpoolDataSource as DefaultSource

__all__ = ["DefaultSource"]
