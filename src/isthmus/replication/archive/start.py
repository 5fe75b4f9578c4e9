"""The start of routes into archives.

What it is: the settings of a route's archive, their check before a run begins, and the start of route and query together. What it is not:
either of them (`route`, `query`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.errors import ConfigError, Fault
from isthmus.replication.archive.folder import ArchiveError
from isthmus.replication.archive.query import ArchiveQuery, ArchiveSettings, check_archive
from isthmus.replication.archive.route import ArchiveRoute
from isthmus.replication.query.route_progress import Seldom
from isthmus.replication.query.shared_route import SharedRoute
from isthmus.replication.shuffle.route import SpooledRoute
from isthmus.topology.model import Route

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ArchiveStarter", "archive_settings", "check_archives"]


def archive_settings(route: Route, checkpoints: str = "", *, available_now: bool = False) -> ArchiveSettings:
    """The archive settings of a route into a table.

    Args:
        route: the route.
        checkpoints: folder of the queries' checkpoint folders; a path, or a URI.
        available_now: whether the run ends when all messages are moved.
    """
    table = route.options.table
    assert table is not None
    return ArchiveSettings(
        table=Path(route.target.entity),
        spool=Path(table.spool),
        checkpoint=f"{checkpoints.rstrip('/')}/{route.name}",
        batch_seconds=min(1.0, table.batch_seconds) if available_now else table.batch_seconds,
    )


def check_archives(routes: Iterable[Route]) -> None:
    """Check whether the archives of routes can be written, without changing anything.

    Raises:
        ConfigError: contains every such fault.
    """
    faults = []
    for route in routes:
        if route.target.is_table:
            try:
                check_archive(archive_settings(route))
            except ArchiveError as error:
                faults.append(Fault(f"task {route.task}: {error}"))
    if faults:
        raise ConfigError(faults)


class ArchiveStarter:
    """Starts routes; a route into a table with the query that writes it.

    Args:
        spark: the session.
        checkpoints: folder of the queries' checkpoint folders; a path, or a URI.
        available_now: whether the run ends when all messages are moved.
    """

    def __init__(self, spark: SparkSession, checkpoints: str, *, available_now: bool = False) -> None:
        self._spark = spark
        self._checkpoints = checkpoints
        self._available_now = available_now

    def start(
        self, route: Route, start: Callable[[], SharedRoute | SpooledRoute]
    ) -> SharedRoute | SpooledRoute | ArchiveRoute:
        """Start a route.

        Args:
            route: the route.
            start: starts it up to its target, which is a spool if it ends in a table.

        Raises:
            ArchiveError: the archive cannot be written.
            SparkGoneError: Spark has ended.
        """
        if not route.target.is_table:
            return start()
        settings = archive_settings(route, self._checkpoints, available_now=self._available_now)
        query = ArchiveQuery(self._spark, settings).start()
        try:
            return ArchiveRoute(start(), query, Seldom(query.view))
        except BaseException:
            query.stop()
            raise
