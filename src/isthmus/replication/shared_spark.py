"""The Spark queries of a run and its control port, opened.

What it is: how a group's query is made of its source, its steps and the sink, and how many task slots all of them take.
What it is not: which route is carried by which query (`isthmus.replication.shared_run`).

Invariants:
    I1. The key of the control port is made for the run. Spark holds it as an option whose name it redacts wherever it shows options.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.bridge.crash_search import Plan
from isthmus.bridge.host.control_server import ControlServer
from isthmus.bridge.report import RouteReport
from isthmus.bridge.route_spec import RouteSpec
from isthmus.replication.shared_run import Group, SharedRun
from isthmus.replication.step.chain import Chain
from isthmus.topology.spark import SLOTS_PER_QUERY, ControlAddress, slots_needed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["SharedSettings", "open_shared_run", "task_slots"]

FORMAT = "isthmus"


@dataclass(frozen=True, slots=True)
class SharedSettings:
    """How the queries of a run are executed.

    Attributes:
        checkpoints: folder that holds each group's checkpoint folder.
        lease_seconds: a lease ends after so long; 0 leaves the source's default.
        control: where the control port listens.
    """

    checkpoints: Path
    lease_seconds: float = 0.0
    control: ControlAddress = field(default=ControlAddress())


def task_slots(specs: Mapping[str, RouteSpec]) -> int:
    """How many task slots the routes need: those of each group's query, and one for each route that may be in quarantine."""
    return slots_needed(len(specs), len({spec.steps for spec in specs.values()}))


def open_shared_run(spark: SparkSession, settings: SharedSettings, claim_seconds: Callable[[str], float]) -> SharedRun:
    """Open the control port of a run whose routes share queries; nothing is carried yet.

    Args:
        spark: the session.
        settings: how.
        claim_seconds: for how long a claim, by its key, is still held. Called on another thread.
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
        options = {"query": name, "control": opened[0].address, "control_token": token, "slots": str(SLOTS_PER_QUERY)}
        if settings.lease_seconds:
            options["lease_seconds"] = str(settings.lease_seconds)
        chain = Chain(group.steps)
        rows = chain.apply(spark.readStream.format(FORMAT).options(**options, **chain.read_options()).load())
        return (
            rows.writeStream.format(FORMAT)
            .options(**chain.write_options(rows))
            .option("checkpointLocation", str(settings.checkpoints / group.name))
            .outputMode("append")
            .start()
        )

    return SharedRun(listen, start)
