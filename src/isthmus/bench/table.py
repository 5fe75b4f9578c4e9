"""The rate from a queue into a table of Parquet files, through the data source without options.

What it is: one namespace, a streaming query into Parquet that a data engineer would write, and a plain receiver of the same
messages in the same run to compare with. Run as `python -m isthmus.bench.table FOLDER [OPTION=VALUE …]` it is the query's
process: it prints `started`, and when its standard input closes Spark's progress of its batches.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from isthmus.bench.bridge import child_process, queue_config, raise_if_ended
from isthmus.bench.counter import Counter
from isthmus.bench.load import drain, fill
from isthmus.bench.process import Account
from isthmus.bench.steady import measure_steady
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import namespace

__all__ = ["measure_table", "run"]

QUEUE = "bench"


def measure_table(folder: Path, messages: int, options: Sequence[str] = ()) -> dict[str, Any]:
    """Drain messages from a queue into Parquet, each settled when Spark has committed its batch.

    Args:
        folder: where the namespace, Spark and the table keep their files.
        messages: how many.
        options: `name=value` for the source (or `spark.…=value` for the session).

    Raises:
        IsthmusError: the table does not hold each message once.
    """
    with namespace(folder / "namespace", config=queue_config(QUEUE)) as served:
        fill(served.connection_string, QUEUE, messages)
        received = messages / drain(served.connection_string, QUEUE, messages)
        fill(served.connection_string, QUEUE, messages)
        counter = Counter(served.admin_connection_string, served.ports["http"], QUEUE)
        command = [sys.executable, "-m", "isthmus.bench.table", str(folder), *options]
        with child_process(command, served, served, folder / "table.log") as driver:
            assert driver.stdin is not None
            assert driver.stdout is not None
            if not driver.stdout.readline():
                driver.wait()
            raise_if_ended(driver, folder)
            account = Account({"namespace": served.pid}, spark=driver.pid)
            steady = measure_steady(
                lambda: messages - counter.read(), messages, account, check=lambda: raise_if_ended(driver, folder)
            )
            driver.stdin.close()
            result = json.loads(driver.stdout.readline())
        counter.close()
    if (result["rows"], result["distinct"]) != (messages, messages):
        raise IsthmusError(
            f"the table holds {result['rows']} rows of {result['distinct']} messages, not {messages} of {messages}"
        )
    return steady.to_dict() | {
        "batches": result["batches"],
        "batch_rows_median": result["batch_rows_median"],
        "batch_interval_seconds_median": result["batch_interval_seconds_median"],
        "receive_messages_per_second": round(received, 1),
        "ratio_to_receive": round(steady.messages_per_second / received, 3),
    }


def run(folder: Path, options: Sequence[str]) -> None:
    """Write messages into a table until standard input closes."""
    from isthmus.replication.spark_session import create_spark_session

    settings = dict(option.partition("=")[::2] for option in options)
    spark_settings = {name: value for name, value in settings.items() if name.startswith("spark.")}
    source_settings = {name: value for name, value in settings.items() if not name.startswith("spark.")}
    spark = create_spark_session("isthmus bench", routes=1, work_directory=folder, options=spark_settings)
    query = (
        spark.readStream.format("servicebus")
        .options(connection="env:BENCH_SOURCE", entity=QUEUE, **source_settings)
        .load()
        .writeStream.format("parquet")
        .option("path", str(folder / "table"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    print("started", flush=True)
    sys.stdin.read()
    full = [progress for progress in query.recentProgress if progress["numInputRows"]]
    query.stop()
    numbers = spark.read.parquet(str(folder / "table")).select("sequence_number")
    print(json.dumps({"rows": numbers.count(), "distinct": numbers.distinct().count(), **_batches(full)}), flush=True)
    spark.stop()


def _batches(progress: Sequence[Any]) -> dict[str, Any]:
    begins = [datetime.fromisoformat(each["timestamp"]).timestamp() for each in progress]
    intervals = [after - before for before, after in pairwise(begins)]
    return {
        "batches": len(progress),
        "batch_rows_median": int(statistics.median(each["numInputRows"] for each in progress)) if progress else 0,
        "batch_interval_seconds_median": round(statistics.median(intervals), 2) if intervals else 0.0,
    }


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
