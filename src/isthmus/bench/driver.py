"""The Spark side of a measurement: one route from a queue to a queue, in a process of its own.

What it is: what a user of the data source would write, and nothing else: raw messages from `servicebus` to `servicebus`.
Run as `python -m isthmus.bench.driver SOURCE TARGET FOLDER [OPTION=VALUE …]` with the connection strings in BENCH_SOURCE and
BENCH_TARGET; it prints `started` and ends when its standard input closes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.replication.spark_session import create_spark_session

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["run"]


def run(source: str, target: str, folder: Path, options: Sequence[str]) -> None:
    """Move messages until standard input closes."""
    settings = dict(option.partition("=")[::2] for option in options)
    spark_settings = {name: value for name, value in settings.items() if name.startswith("spark.")}
    source_settings = {name: value for name, value in settings.items() if not name.startswith("spark.")}
    spark = create_spark_session("isthmus bench", routes=1, work_directory=folder, options=spark_settings)
    stream = spark.readStream.format("servicebus").options(connection="env:BENCH_SOURCE", entity=source, mode="raw")
    query = (
        stream.options(**source_settings)
        .load()
        .writeStream.format("servicebus")
        .options(connection="env:BENCH_TARGET", entity=target, origin=f"a/{source}", target="b")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    print("started", flush=True)
    sys.stdin.read()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
