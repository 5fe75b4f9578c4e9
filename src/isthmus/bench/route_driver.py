"""The Spark side of a measurement: one query of the data source `isthmus` after the other, in a process of its own.

What it is: Spark, started once, and a query for each line of standard input, which is a JSON list of routes
(`isthmus.bridge.route_spec`); the query before it is stopped first. An empty line only stops it. It prints a line when that is done,
and ends when its standard input closes. Run as `python -m isthmus.bench.route_driver FOLDER`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from isthmus.replication.spark_session import create_spark_session

__all__ = ["run"]


def run(folder: Path) -> None:
    """Move messages until standard input closes."""
    spark = create_spark_session("isthmus bench", routes=1, work_directory=folder)
    query: Any = None
    for number, line in enumerate(sys.stdin):
        if query is not None:
            query.stop()
            query = None
        if routes := line.strip():
            stream = spark.readStream.format("isthmus").option("routes", routes).load().writeStream.format("isthmus")
            query = stream.option("checkpointLocation", str(folder / "checkpoint" / str(number))).start()
        print("done", flush=True)
    if query is not None:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
