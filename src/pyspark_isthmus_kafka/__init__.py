"""Spark finds the data source `isthmus_kafka` here by itself: packages named `pyspark_*` that hold a `DefaultSource`.

Nothing needs to be registered: `spark.readStream.format("isthmus_kafka")` works where isthmus is installed.
"""

from isthmus.connectors.kafka.spark.source import KafkaDataSource as DefaultSource

__all__ = ["DefaultSource"]
