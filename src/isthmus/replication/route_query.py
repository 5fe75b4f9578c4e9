"""A route as a Spark Structured Streaming query.

What it is: the options of source and sink for a route (a pure mapping), the query that joins them through the route's
steps, and the handle by which a supervisor watches, drains and stops it. What it is not: the moving, which happens in
the workers (`isthmus.connectors.servicebus`), nor the decision to start again.

Invariants:
    I1. Options hold references to secrets, never secrets.
    I2. Each route has a checkpoint folder of its own, which stays over restarts.
    I3. Moved are messages that the target has acknowledged and that are settled at the source, as the lease tells over the
        control channel; the count never falls.
    I4. Where one of two queries ends, the lease of the other is asked to end, and counts as running until it has: to stop
        it in the midst of its messages would leave their locks to expire, and who comes next would wait for that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.bridge.crash_search import CrashSearch
from isthmus.replication.reach import name_places, namespace_options
from isthmus.replication.route_control import RouteControl
from isthmus.replication.sighting import Sighting
from isthmus.replication.spark_gone import SparkGoneError, calling_spark
from isthmus.replication.transform import apply_steps, find_step
from isthmus.replication.turns import start_turns
from isthmus.topology.model import Federation, Route

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["WORKER_GONE", "RouteQuery", "RouteSettings", "sink_options", "source_options", "start_route"]

FORMAT = "servicebus"
# What a query's status says from the begin of a micro-batch to the commit of the sink (MicroBatchExecution).
_PROCESSING = "Processing new data"
# How long a lease may take to end after the route's other query has ended.
FAREWELL_SECONDS = 10.0
WORKER_GONE = (
    "a Python worker of the route was killed, or crashed (out of memory?); messages that it had not settled come again once their "
    "locks have expired"
)
# What Spark says where the process at the other end of a socket to a worker has ended.
_WORKER_GONE = (
    "Python worker exited unexpectedly",
    "java.io.EOFException",
    "java.io.IOException: Connection reset by peer",
    "java.io.IOException: Broken pipe",
    "java.net.SocketException",
)


@dataclass(frozen=True, slots=True)
class RouteSettings:
    """How the routes of a run are executed.

    Attributes:
        checkpoints: folder that holds each route's checkpoint folder.
        available_now: end when what waited at the start is moved.
        lease_seconds: a lease ends after so long; 0 leaves the source's default.
        steps: names of python steps, `package.module:function`, applied in order.
        source: further options of the source, for tests and tuning.
        sink: further options of the sink.
    """

    checkpoints: Path
    available_now: bool = False
    lease_seconds: float = 0.0
    steps: tuple[str, ...] = ()
    source: tuple[tuple[str, str], ...] = ()
    sink: tuple[tuple[str, str], ...] = ()


def source_options(route: Route, federation: Federation, settings: RouteSettings, control: str) -> dict[str, str]:
    """The options of the route's source."""
    options = namespace_options(federation.namespaces[route.source.alias]) | {
        "entity": route.source.entity,
        "mode": "raw",
        "settle": "sink",
        "ordered": "true" if route.options.ordering == "ordered" else "false",
        "lock_seconds": str(route.options.lock_duration_ms / 1000),
        "control": control,
    }
    if settings.lease_seconds:
        options["lease_seconds"] = str(settings.lease_seconds)
    if settings.steps:
        options["steps"] = ", ".join(settings.steps)
    return options | dict(settings.source)


def sink_options(route: Route, federation: Federation, settings: RouteSettings) -> dict[str, str]:
    """The options of the route's sink; the copies say where they come from, by the topic that they entered."""
    entity = route.source.entity.partition("/Subscriptions/")[0]
    return (
        namespace_options(federation.namespaces[route.target.alias])
        | {
            "entity": route.target.entity,
            "origin": f"{route.source.alias}/{entity}",
            "target": route.target.alias,
            "mark": route.options.mark,
            "mark_value": "number" if route.options.mark_is_number else "message-id",
            "duplicates": route.options.duplicates,
            "refused": route.options.refused,
            "trusts_provenance": "true" if settings.steps else "false",
        }
        | {
            f"origin_{name}": value
            for name, value in namespace_options(federation.namespaces[route.source.alias]).items()
        }
        | dict(settings.sink)
    )


def start_route(
    spark: SparkSession,
    route: Route,
    federation: Federation,
    settings: RouteSettings,
    claim_seconds: Callable[[], float] | None = None,
    crashes: CrashSearch | None = None,
) -> RouteQuery:
    """Start a route's query.

    Args:
        spark: the session.
        route: what to start.
        federation: the federation of the route.
        settings: how.
        claim_seconds: for how long the task's claim is still held; None: nobody competes. Called on another thread.
        crashes: which of the route's messages kills its workers; kept over starts.

    Raises:
        SparkGoneError: Spark has ended.
        InvalidArgumentError: a step is not found, or an option is of no use.
    """
    steps = [find_step(name) for name in settings.steps]
    checkpoint = settings.checkpoints / route.name
    control = RouteControl(checkpoint, claim_seconds, crashes).open()
    source = source_options(route, federation, settings, control.path)
    if claim_seconds is not None:
        source["claimed"] = "true"

    def start(turn: Mapping[str, str], place: Path) -> StreamingQuery:
        writer = (
            apply_steps(spark.readStream.format(FORMAT).options(**(source | dict(turn))).load(), steps)
            .writeStream.format(FORMAT)
            .options(**sink_options(route, federation, settings))
            .option("checkpointLocation", str(place))
            .outputMode("append")
        )
        return (writer.trigger(availableNow=True) if settings.available_now else writer).start()

    try:
        one_lease = settings.available_now or source.get("settle") == "commit" or int(source.get("partitions", "1")) > 1
        with calling_spark():
            queries = [start({}, checkpoint)] if one_lease else start_turns(checkpoint, start)
        ends = (route.source.alias, route.target.alias)
        # Told twice a second while a target is away, and the namespace's place may lie in a vault.
        return RouteQuery(route, queries, control, lru_cache(16)(lambda text: name_places(text, federation, ends)))
    except BaseException:
        control.close()
        raise


class RouteQuery:
    """A started route.

    Args:
        route: what it moves.
        queries: its streaming query, or the two that take turns.
        control: what its leases tell and are told.
        told: makes what they tell fit for an operator.
    """

    def __init__(
        self,
        route: Route,
        queries: Sequence[StreamingQuery],
        control: RouteControl,
        told: Callable[[str], str] = str,
    ) -> None:
        self.route = route
        self._queries = queries
        self._control = control
        self._told = told
        self._farewell_until = 0.0

    def is_active(self) -> bool:
        """Whether it runs. Where one of two queries has ended the route has, once the other has given back what it held.

        Raises:
            SparkGoneError: Spark has ended.
        """
        with calling_spark():
            active = [query for query in self._queries if query.isActive]
            if len(active) == len(self._queries):
                return True
            if active and not self._farewell_until:
                self._farewell_until = time.monotonic() + FAREWELL_SECONDS
                self._control.stop("the other query of the route has ended")
            return time.monotonic() < self._farewell_until and self._under_way(active)

    def failure(self) -> str:
        """Why the route failed; empty where it did not."""
        errors = [error for query in self._queries if (error := query.exception()) is not None]
        return self._told(cause_of(str(errors[0]))) if errors else ""

    def sighting(self) -> Sighting:
        """What the leases told last."""
        seen = self._control.sighting()
        return replace(seen, held=self._told(seen.held)) if seen.held else seen

    def drain(self) -> None:
        """Asks the lease to end, and no other to start."""
        self._control.stop("the run ends")

    def drained(self) -> bool:
        """Whether no lease is under way, and Spark has noted the end of the last."""
        try:
            with calling_spark():
                return not (self.is_active() and self._under_way(self._queries))
        except SparkGoneError:
            return True

    def _under_way(self, queries: Sequence[StreamingQuery]) -> bool:
        states = [query.status for query in queries if query.isActive]
        return self._control.busy() or any(
            status["isDataAvailable"] or status["message"] == _PROCESSING for status in states
        )

    def stop(self) -> None:
        """Stops its queries."""
        try:
            self._control.stop("the route ends")  # what dies from now on was not killed by a message
            # What has ended with Java need not be stopped.
            with suppress(SparkGoneError), calling_spark(), ExitStack() as stack:
                for query in self._queries:
                    stack.callback(query.stop)
        finally:
            self._control.close()


def cause_of(text: str) -> str:
    """The line of Spark's long report that says what happened: the innermost Python error's."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("isthmus.") and ": " in line]
    if named:
        return named[-1].partition(": ")[2]
    if any(word in text for word in _WORKER_GONE):
        return WORKER_GONE
    errors = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (errors[-1] if errors else lines[0] if lines else "the query failed without a word")[:500]
