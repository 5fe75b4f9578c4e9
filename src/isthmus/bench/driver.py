"""The Spark side of a measurement: routes from queue to queue, in a process of its own.

What it is: what a user of the data source would write, and nothing else: raw messages from `servicebus` to `servicebus`.
Run as `python -m isthmus.bench.driver FOLDER ROUTES [OPTION=VALUE …]` with the connection strings in BENCH_SOURCE and
BENCH_TARGET; route n goes from the queue `bench-n` of the one to that of the other. It prints `started` and ends when its
standard input closes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from isthmus.replication.spark_session import create_spark_session
from isthmus.replication.turns import start_turns

__all__ = ["queue_name", "run"]


def queue_name(route: int) -> str:
    """The queue of a route, at both ends."""
    return f"bench-{route}"


def run(folder: Path, routes: int, options: Sequence[str]) -> None:
    """Move messages until standard input closes."""
    settings = dict(option.partition("=")[::2] for option in options)
    spark_settings = {name: value for name, value in settings.items() if name.startswith("spark.")}
    source_settings = {name: value for name, value in settings.items() if not name.startswith("spark.")}
    spark = create_spark_session("isthmus bench", routes=routes, work_directory=folder, options=spark_settings)
    queries: list[Any] = []
    for queue in map(queue_name, range(routes)):

        def start(turn: Mapping[str, str], checkpoint: Path, queue: str = queue) -> Any:
            stream = spark.readStream.format("servicebus").options(connection="env:BENCH_SOURCE", entity=queue)
            return (
                stream.options(**source_settings, **turn)
                .load()
                .writeStream.format("servicebus")
                .options(connection="env:BENCH_TARGET", entity=queue, origin=f"a/{queue}", target="b")
                .option("checkpointLocation", str(checkpoint))
                .start()
            )

        queries += start_turns(folder / "checkpoint" / queue, start)
    print("started", flush=True)
    sys.stdin.read()
    for query in queries:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
