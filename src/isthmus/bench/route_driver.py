"""The Spark side of a measurement: one query of the data source `isthmus` after the other, in a process of its own.

What it is: Spark, started once, and a query for each line of standard input, which is a JSON list of routes
(`isthmus.bridge.route_spec`) with the same steps; the query before it is stopped first. An empty line only stops it. It prints a line when that is done,
and ends when its standard input closes. Run as `python -m isthmus.bench.route_driver FOLDER`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from isthmus.replication.spark_session import create_spark_session
from isthmus.replication.step.chain.chain import Chain

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
            chain = Chain(json.loads(routes)[0].get("steps", ()))
            read = spark.readStream.format("isthmus").options(routes=routes, **chain.read_options())
            rows = chain.apply(read.load())
            stream = rows.writeStream.format("isthmus").options(**chain.write_options(rows))
            query = stream.option("checkpointLocation", str(folder / "checkpoint" / str(number))).start()
        print("done", flush=True)
    if query is not None:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
