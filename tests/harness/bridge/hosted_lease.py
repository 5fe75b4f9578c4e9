"""A lease without Spark: reader and sink of the bridge in one process, joined by the batches that Spark would carry."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from isthmus.bridge.host.reader.item import LeaseName
from isthmus.bridge.host.reader.reader import ReaderHost
from isthmus.bridge.host.sender.sender import SenderHost
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.bridge.spark.inflow import Inflow
from isthmus.bridge.spark.outflow import Outflow

__all__ = ["carried", "carry", "queue_route"]

LEASE_SECONDS = 60.0
PADDING_BYTES = 2048


def queue_route(source: dict[str, str], target: dict[str, str], **settings: Any) -> RouteSpec:
    """A route between two entities of Service Bus, by the options of its ends."""
    return RouteSpec(
        name="a/b", source=End("servicebus", "a", source), target=End("servicebus", "b", target), **settings
    )


def carry(folder: Path, route: RouteSpec, messages: int = 0) -> None:
    """Runs one lease.

    Args:
        folder: where reader and sink meet.
        route: what is carried.
        messages: end the lease when so many have been read; 0: when the route ends, which moves only what is present.

    Raises:
        IsthmusError: the lease failed.
    """
    channel = folder / "task"
    reader = ReaderHost(
        channel=channel, lease=LeaseName("q", 1, 0), control=None, routes=(route,), lease_seconds=LEASE_SECONDS
    )
    sender = SenderHost(channel=channel).start()
    inflow = Inflow(sender)
    reader.start()
    try:
        rows = 0
        for batch in Outflow(reader, flush_ms=3.0, padding_bytes=PADDING_BYTES).batches():
            inflow.take(batch)
            rows += sum(1 for handle in batch.column("route").to_pylist() if handle > 0)
            if messages and rows >= messages:
                reader.stop("everything was read")
        sender.finish()
    except BaseException as error:
        sender.abort(error)
        raise
    finally:
        reader.stop("the test is over")
        reader.join(20.0)


@contextmanager
def carried(folder: Path, routes: Sequence[RouteSpec]) -> Iterator[None]:
    """Carries routes, without claims, for as long as the block lasts."""
    channel = folder / "task"
    free = tuple(replace(route, claim="") for route in routes)
    reader = ReaderHost(channel=channel, lease=LeaseName("q", 1, 0), control=None, routes=free, lease_seconds=3600.0)
    sender = SenderHost(channel=channel).start()
    inflow = Inflow(sender)
    reader.start()
    faults: list[BaseException] = []

    def pump() -> None:
        try:
            for batch in Outflow(reader, flush_ms=3.0, padding_bytes=PADDING_BYTES).batches():
                inflow.take(batch)
            sender.finish()
        except BaseException as error:  # noqa: BLE001 - reported below
            faults.append(error)
            sender.abort(error)

    thread = threading.Thread(target=pump, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        reader.stop("the test is over")
        thread.join(60.0)
        reader.join(20.0)
    assert not faults, faults
