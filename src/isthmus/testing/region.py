"""A region for an application's tests: a real namespace that can be cut off, slowed, frozen, crashed and lost.

What it is: a namespace in a process of its own (`isthmus.testing.namespace`) behind a proxy (`isthmus.testing.proxy`), with a method for each
kind of failure of a region. What it is not: a fake; messages are durable, and the official SDKs connect to it. It needs neither Spark nor Java.
How to use it: docs/how-to/test-your-application-against-an-outage.md.

    with regions("queues: {orders: {}}") as (primary, secondary):
        receiver = ReplicatedReceiver(primary.connection_string, secondary.connection_string, "orders")
        with primary.outage():
            ...

Invariants:
    I1. After the `with` block of a failure the region is as before it, also where the block raises.
    I2. Messages acknowledged before `outage`, `slow`, `stalled`, `frozen` and `crash` exist after it; after `lose` none does.
"""

from __future__ import annotations

import math
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import psutil

from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess
from isthmus.testing.proxy import Proxy, Weather

__all__ = ["Region", "RegionLostError", "region", "regions"]


class RegionLostError(IsthmusError):
    """The region was lost permanently; create another one."""

    code = "region-lost"


class Region:
    """A running region; made by `region`.

    Args:
        namespace: its namespace, running.
        proxy: before its port.

    Attributes:
        connection_string: for the application: the namespace through the proxy.
        direct_connection_string: without the proxy, for the test's own connections while the application is cut off.
        namespace: its process.
        is_lost: whether `lose` was called.
    """

    def __init__(self, namespace: NamespaceProcess, proxy: Proxy) -> None:
        self.namespace = namespace
        self._proxy = proxy
        self.is_lost = False
        self.direct_connection_string = namespace.connection_string
        self.connection_string = namespace.connection_string.replace(f":{namespace.ports['amqp']}", f":{proxy.port}", 1)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """The region is unreachable: connections are reset, new ones are refused. The namespace keeps running."""
        self._check()
        self._proxy.refuse()
        self._proxy.cut()
        try:
            yield
        finally:
            self._proxy.refuse(False)

    @contextmanager
    def slow(self, round_trip: timedelta, bytes_per_second: float = math.inf) -> Iterator[None]:
        """The region is distant.

        Args:
            round_trip: the round-trip time.
            bytes_per_second: bandwidth in each direction.
        """
        self._check()
        self._proxy.set_round_trip(round_trip.total_seconds(), bytes_per_second=bytes_per_second)
        try:
            yield
        finally:
            self._proxy.set_weather(Weather())

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Connections stay open and new ones are made, but no bytes pass; those sent meanwhile arrive afterwards."""
        self._check()
        self._proxy.set_weather(Weather(is_stalled=True))
        try:
            yield
        finally:
            self._proxy.set_weather(Weather())

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The namespace's process hangs (SIGSTOP), and continues."""
        self._check()
        process = psutil.Process(self.namespace.pid)
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextmanager
    def crash(self) -> Iterator[None]:
        """The namespace is killed as by a power cut (SIGKILL), stays down, and starts again on its data."""
        self._check()
        self.namespace.kill()
        try:
            yield
        finally:
            self.namespace.start()

    def lose(self) -> None:
        """The region is lost permanently, with its messages."""
        self._check()
        self.is_lost = True
        self._proxy.refuse()
        self.namespace.kill()
        self._proxy.cut()
        shutil.rmtree(self.namespace.data, ignore_errors=True)

    def _check(self) -> None:
        if self.is_lost:
            raise RegionLostError("the region was lost, and does not come back; make another one")


@contextmanager
def region(config: Path | str | None = None, *, data: Path | None = None) -> Iterator[Region]:
    """A region for the length of the `with` block.

    Args:
        config: a file of entities, or its text (docs/reference/namespace-file.md).
        data: folder for its data, which is kept; None for one that is removed at the end.

    Yields:
        The running region.
    """
    folder = data if data is not None else Path(tempfile.mkdtemp(prefix="isthmus-region-"))
    if isinstance(config, str):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text, config = config, folder / "config.yaml"
        config.write_text(text, encoding="utf-8")
    running = NamespaceProcess(folder, config=config)
    try:
        running.start()
        proxy = Proxy(running.ports["amqp"])
        try:
            yield Region(running, proxy)
        finally:
            proxy.close()
    finally:
        running.stop()
        if data is None:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def regions(config: Path | str | None = None, count: int = 2) -> Iterator[tuple[Region, ...]]:
    """Several regions with the same entities.

    Args:
        config: of each, as for `region`.
        count: how many.

    Yields:
        The running regions.
    """
    with ExitStack() as stack:
        yield tuple(stack.enter_context(region(config)) for _ in range(count))
