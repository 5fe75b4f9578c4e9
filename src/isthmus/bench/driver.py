"""The Spark side of a measurement: routes from queue to queue, in a process of its own.

What it is: one query of the data source `isthmus` that carries all routes, as `isthmus run` starts it, but without a driver's
control port: the routes are in its options. Run as `python -m isthmus.bench.driver FOLDER ROUTES [OPTION=VALUE …]` with the
connection strings in BENCH_SOURCE and BENCH_TARGET; route n goes from the queue `bench-n` of the one to that of the other. It
prints `started` and ends when its standard input closes, or with code 1 when the query fails.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.replication.spark_session import create_spark_session
from isthmus.replication.step.chain.chain import Chain

__all__ = ["queue_name", "route_of", "run", "split"]

CHECKPOINT = "checkpoint"
# How often it checks that the query runs: each check is a call into Java.
_LOOK_SECONDS = 1.0


def queue_name(route: int) -> str:
    """The queue of a route, at both ends."""
    return f"bench-{route}"


def split(options: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Options for the session, whose names begin with `spark.`, and those for the source, of `NAME=VALUE` each."""
    settings = dict(option.partition("=")[::2] for option in options)
    spark = {name: value for name, value in settings.items() if name.startswith("spark.")}
    return spark, {name: value for name, value in settings.items() if name not in spark}


def route_of(queue: str) -> RouteSpec:
    """The route of a queue, with the default settings of a route of a federation."""
    target: Mapping[str, str] = {
        "connection": "env:BENCH_TARGET",
        "entity": queue,
        "origin": f"a/{queue}",
        "target": "b",
    }
    return RouteSpec(
        name=f"bench/{queue}",
        source=End("servicebus", "a", {"connection": "env:BENCH_SOURCE", "entity": queue}),
        target=End("servicebus", "b", target),
    )


def run(folder: Path, routes: int, options: Sequence[str]) -> int:
    """Move messages until standard input closes; the exit code says whether the query failed."""
    spark_settings, source_settings = split(options)
    spark = create_spark_session("isthmus bench", routes=1, work_directory=folder, options=spark_settings)
    carried = [route_of(queue_name(number)).to_json() for number in range(routes)]
    query = (
        spark.readStream.format("isthmus")
        .options(routes=json.dumps(carried), **{**Chain(()).read_options(), **source_settings})
        .load()
        .writeStream.format("isthmus")
        .option("checkpointLocation", str(folder / CHECKPOINT))
        .start()
    )
    print("started", flush=True)
    closed = threading.Event()
    threading.Thread(target=_wait_closed, args=(closed,), daemon=True).start()
    while query.isActive and not closed.wait(_LOOK_SECONDS):
        pass
    error = query.exception()
    if error is not None:
        print(error, file=sys.stderr)
    query.stop()
    spark.stop()
    return 0 if error is None else 1


def _wait_closed(closed: threading.Event) -> None:
    sys.stdin.read()
    closed.set()


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
