"""Spark finds the data source `servicebus` here by itself: packages named `pyspark_*` that hold a `DefaultSource`.

Nothing needs to be registered: `spark.readStream.format("servicebus")` works where isthmus is installed.
"""

from isthmus.connectors.servicebus.spark.source import ServiceBusDataSource as DefaultSource

__all__ = ["DefaultSource"]
