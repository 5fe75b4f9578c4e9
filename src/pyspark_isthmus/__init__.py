"""Spark finds the data source `isthmus` here by itself: packages named `pyspark_*` that hold a `DefaultSource`.

Nothing needs to be registered: `spark.readStream.format("isthmus")` works where isthmus is installed.
"""

from isthmus.bridge.spark.source import IsthmusDataSource as DefaultSource

__all__ = ["DefaultSource"]
