"""The Spark side of a measurement: routes from queue to queue, in a process of its own.

What it is: one query that carries all routes, as a run has it. Run as
`python -m isthmus.bench.driver FOLDER ROUTES [OPTION=VALUE …]` with the connection strings in BENCH_SOURCE and BENCH_TARGET;
route n goes from the queue `bench-n` of the one to that of the other. Options are those of the read of format `isthmus`, or settings
of Spark. It prints `started` and ends when its standard input closes. What it is not: a run; nothing is supervised.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.replication.spark_session import create_spark_session

__all__ = ["queue_name", "route_between", "run"]

FORMAT = "isthmus"
# Beside the readers: for the driver's small jobs.
SPARE_SLOTS = 2


def queue_name(route: int) -> str:
    """The queue of a route, at both ends."""
    return f"bench-{route}"


def route_between(queue: str) -> RouteSpec:
    """The route from a queue to that of the same name."""
    source = {"connection": "env:BENCH_SOURCE", "entity": queue}
    target = {"connection": "env:BENCH_TARGET", "entity": queue, "origin": f"a/{queue}", "target": "b"}
    return RouteSpec(name=queue, source=End("servicebus", "a", source), target=End("servicebus", "b", target))


def run(folder: Path, routes: int, options: Sequence[str]) -> None:
    """Move messages until standard input closes."""
    settings = dict(option.partition("=")[::2] for option in options)
    spark_settings = {name: value for name, value in settings.items() if name.startswith("spark.")}
    source_settings = {name: value for name, value in settings.items() if not name.startswith("spark.")}
    slots = int(source_settings.get("slots", "1")) + SPARE_SLOTS
    spark = create_spark_session(
        "isthmus bench", routes=routes, slots=slots, work_directory=folder, options=spark_settings
    )
    specs = [route_between(queue).to_json() for queue in map(queue_name, range(routes))]
    query = (
        spark.readStream.format(FORMAT)
        .options(routes=json.dumps(specs), **source_settings)
        .load()
        .writeStream.format(FORMAT)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    print("started", flush=True)
    sys.stdin.read()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
