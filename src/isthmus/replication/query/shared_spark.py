"""Opening the Spark queries of a run and its control port.

What it is: how a group's query is built from its source, its steps and the sink, the number of their task slots, and the check of
executors on other machines before the start.
What it is not: which route is carried by which query (`isthmus.replication.query.shared_run`).

Invariants:
    I1. The key of the control port is created for the run. Spark stores it as an option whose name it redacts in every output.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from isthmus.bridge.host.control.server import ControlServer
from isthmus.bridge.lease.crash_search import Plan
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec
from isthmus.replication.query.shared_run import Group, SharedRun
from isthmus.replication.spark.executor_check import check_executors
from isthmus.replication.step.chain.chain import Chain
from isthmus.topology.model import TABLE
from isthmus.topology.spark import ControlAddress, SparkSettings, slots_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SharedSettings", "open_shared_run", "query_slots", "task_slots"]

FORMAT = "isthmus"


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """Settings for the queries of a run.

    Attributes:
        checkpoints: parent folder of each group's checkpoint folder; a path, or a URI that Spark can write.
        lease_seconds: length of a lease; 0 leaves the source's default.
        control: address of the control port.
        query_slots: concurrent readers of a query.
        trial: number of tasks that check executors; 0: none, since they run on this machine.
    """

    checkpoints: str
    lease_seconds: float = 0.0
    control: ControlAddress = field(default=ControlAddress())
    query_slots: int = 1
    trial: int = 0


def query_slots(specs: Mapping[str, RouteSpec], spark: SparkSettings) -> int:
    """The number of concurrent readers of a query of these routes."""
    return spark.query_slots(has_unordered=any(spec.is_spread for spec in specs.values()))


def task_slots(specs: Mapping[str, RouteSpec], query_slots: int) -> int:
    """The number of task slots for the routes: those of each group's query, one for each route that may be in quarantine, and one for tables."""
    queries = len({spec.steps for spec in specs.values()})
    return slots_needed(len(specs), queries, query_slots, has_tables=any(map(_ends_in_spool, specs.values())))


def _ends_in_spool(spec: RouteSpec) -> bool:
    return spec.target.kind == "spool" or spec.target.alias == TABLE  # a ledger may be around the spool of a table


def open_shared_run(
    spark: SparkSession,
    settings: SharedSettings,
    claim_seconds: Callable[[str], float],
    stop: threading.Event | None = None,
) -> SharedRun:
    """Open the control port of a run whose routes share queries; no route is carried yet.

    Args:
        spark: the session.
        settings: settings of the queries.
        claim_seconds: for how many seconds a claim, by its key, is still locked. Called on another thread.
        stop: set when the run has to end; ends the check of executors.

    Raises:
        ConfigError: an executor cannot carry a route.
        SparkGoneError: Spark has ended.
    """
    token = secrets.token_urlsafe(32)
    opened: list[ControlServer] = []

    def listen(
        plan_of: Callable[[str], Plan], on_death: Callable[[str, Mapping[str, RouteReport]], None]
    ) -> ControlServer:
        server = ControlServer(
            token,
            host=settings.control.host,
            port=settings.control.port,
            advertised=settings.control.advertised,
            claim_seconds=claim_seconds,
            plan_of=plan_of,
            on_death=on_death,
        ).start()
        opened.append(server)
        return server

    def start(group: Group, name: str) -> StreamingQuery:
        # With several readers the one that died of a message would be unknown: a route alone has one.
        slots = 1 if group.alone else settings.query_slots
        options = {"query": name, "control": opened[0].address, "control_token": token, "slots": str(slots)}
        if settings.lease_seconds:
            options["lease_seconds"] = str(settings.lease_seconds)
        chain = Chain(group.steps)
        rows = chain.apply(spark.readStream.format(FORMAT).options(**options, **chain.read_options()).load())
        return (
            rows.writeStream.format(FORMAT)
            .options(**chain.write_options(rows))
            .option("checkpointLocation", f"{settings.checkpoints.rstrip('/')}/{group.name}")
            .outputMode("append")
            .start()
        )

    run = SharedRun(listen, start)
    if settings.trial:
        try:
            check_executors(spark, opened[0].address, token, settings.trial, stop or threading.Event())
        except BaseException:
            run.close()
            raise
    return run
