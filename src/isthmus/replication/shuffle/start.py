"""The start of routes that read through spools.

What it is: the folders of a route's spools, the routes that carry it, their check before a run begins, and the start of all of them
together. What it is not: any of them (`route`, `query`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.connectors.listen.backlog import listener_backlog
from isthmus.connectors.listen.option import spool_of
from isthmus.connectors.spool.backlog import source_of_waiting, spool_backlog
from isthmus.connectors.spool.folder import SpoolFolder
from isthmus.connectors.spool.option import numbering_of
from isthmus.errors import ConfigError, Fault, IsthmusError
from isthmus.replication.archive.folder import ArchiveFolder
from isthmus.replication.query.route_progress import Seldom, SpoolView
from isthmus.replication.query.shared_route import SharedRoute
from isthmus.replication.shuffle.note import last_note
from isthmus.replication.shuffle.place import LISTENER, SpoolPlace, known_places
from isthmus.replication.shuffle.query import ShuffleQuery, ShuffleSettings, check_folder
from isthmus.replication.shuffle.route import SpooledRoute
from isthmus.replication.shuffle.state import in_windows, leave
from isthmus.topology.model import NamespaceRef, Route
from isthmus.topology.planning.finding import OWN
from isthmus.topology.step import StepDeclaration
from isthmus.topology.step.divert import diverts_of
from isthmus.topology.step.order import legs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SpoolStarter",
    "check_spools",
    "is_spooled",
    "places_of",
    "route_specs",
    "spool_folder",
    "spool_view",
    "view_at_rest",
    "stranded",
]

log = logging.getLogger(__name__)

SPOOLS = "spools"
"""Folder in the state folder."""

# Suffix of the name of the route out of a spool.
_OUT = ".out"


def is_spooled(route: Route) -> bool:
    """Whether a route reads through spools."""
    return bool(legs(route.options.steps).shuffle) or route.options.when_full == "spool"


def spool_folder(route: Route, state_folder: Path) -> Path:
    """The folder of a route's spools."""
    shuffle = legs(route.options.steps).shuffle
    written = str(StepDeclaration.from_text(shuffle).settings.get("spool") or "") if shuffle else ""
    return (Path(written) if written else state_folder.absolute() / SPOOLS) / route.name


def route_specs(route: Route, spec: RouteSpec, folder: Path) -> tuple[RouteSpec, ...]:
    """The specifications that carry a route: itself, or the route into the spools and the route out of them.

    Args:
        route: the route.
        spec: specification without a spool.
        folder: folder of its spools.
    """
    if not is_spooled(route):
        return (spec,)
    parts = legs(route.options.steps)
    is_aggregate = _is_aggregate(parts.shuffle)
    source = f"{route.source.alias}/{route.source.entity}"
    filled = {"path": str(folder / "in"), "source": source, "made": "true"}
    filled |= numbering_of(spec.source.kind)
    filling = replace(
        spec,
        target=End("spool", route.target.alias, filled),
        steps=parts.before,
        diverts=_diverts(spec, parts.before),
        ordered=True,  # one process writes a spool
        competing=False,
    )
    target = spec.target
    # Steps before the spool may have changed messages that leave it, and their provenance is valid nevertheless.
    diverts = {
        name: _with_option(end, "trusts_provenance", "true") for name, end in _diverts(spec, parts.behind).items()
    }
    if is_aggregate:
        target = _with_option(target, "origin", _origin(route))
        diverts = {name: _with_option(end, "origin", _origin(route)) for name, end in diverts.items()}
    last = folder / ("out" if parts.shuffle else "in")
    follows = {"follows": str(folder / "in")} if parts.shuffle and not is_aggregate else {}
    sending = replace(
        spec,
        name=f"{spec.name}{_OUT}",
        source=End("spool", route.source.alias, {"path": str(last)} | follows),
        target=target,
        steps=parts.behind,
        diverts=diverts,
        ordered=True,
        competing=False,
        only_present=False,
    )
    return filling, sending


def _is_aggregate(shuffle: str) -> bool:
    """Whether there is a step between the spools and it is `aggregate`."""
    return bool(shuffle) and StepDeclaration.from_text(shuffle).kind == "aggregate"


def _with_option(end: End, name: str, value: str) -> End:
    """The end with another value of an option that it has."""
    return replace(end, options={**end.options, name: value}) if name in end.options else end


def _diverts(spec: RouteSpec, steps: Iterable[str]) -> dict[str, End]:
    """The entities to which some steps divert: no connection to the others is opened."""
    used = diverts_of(map(StepDeclaration.from_text, steps))
    return {each.name: spec.diverts[each.name] for each in used}


def _origin(route: Route) -> str:
    """The origin of results: they are not copies of messages of the source, and have their own numbers."""
    return f"{route.source.alias}/{route.entered}/{route.task}"


def check_spools(routes: Iterable[Route], state_folder: Path) -> None:
    """Check whether spools can be written and sent, without changing anything.

    Raises:
        ConfigError: a folder cannot be written, or contains messages of an entity that the task no longer reads.
    """
    for route in routes:
        if not is_spooled(route):
            continue
        folder = spool_folder(route, state_folder)
        check_folder(folder, route.task)
        shuffle = legs(route.options.steps).shuffle
        for spool in ("in", "out") if shuffle and not _is_aggregate(shuffle) else ("in",):
            _check_source(folder / spool, route)


def _check_source(spool: Path, route: Route) -> None:
    """Check that waiting messages are of the route's source: copies name it as their origin, and `verify` and the prevention of cycles rely on it.

    Raises:
        ConfigError: waiting messages in the spool are of another entity, or it cannot be read.
    """
    try:
        source = source_of_waiting(spool)
    except OSError as error:
        why = f"task {route.task}: spool {spool} cannot be read: {error.strerror or error}"
        raise ConfigError([Fault(why, "let the user of the run read and write it")]) from error
    alias, _, entity = source.partition("/")
    entered = entity.partition("/Subscriptions/")[0]
    if not source or entered.lower().startswith(OWN):  # a mailbox, which does not name its topic
        return
    if (alias, entered.lower()) != (route.source.alias, route.entered.lower()):
        raise ConfigError(
            [
                Fault(
                    f"task {route.task}: spool {spool} contains messages of {source}, and the task reads {route.source} now: their copies would "
                    "name that as their origin",
                    "let the former file's run send them first, with publishers stopped; or remove the spool with its messages",
                )
            ]
        )


def places_of(
    routes: Iterable[Route], state_folder: Path, namespaces: Mapping[str, NamespaceRef]
) -> Iterator[SpoolPlace]:
    """The spools of routes outside the state folder.

    Args:
        routes: routes of a file.
        state_folder: state folder of the run.
        namespaces: namespaces of the file, by alias.
    """
    for route in routes:
        if route.options.table is not None:
            yield SpoolPlace(route.options.table.spool, route.target.entity)
        if is_spooled(route) and state_folder.absolute() not in (folder := spool_folder(route, state_folder)).parents:
            yield SpoolPlace(str(folder / "in"))
            if legs(route.options.steps).shuffle:
                yield SpoolPlace(str(folder / "out"))
        source = namespaces[route.source.alias]
        listener_spool = spool_of(source.kind, source.options(), route.source.entity)
        if listener_spool is not None:
            yield SpoolPlace(str(listener_spool), reader=LISTENER)


def stranded(
    routes: Iterable[Route], state_folder: Path, namespaces: Mapping[str, NamespaceRef]
) -> Iterator[tuple[Path, int]]:
    """Spools of this and of earlier runs with messages that no route sends, and their number.

    Args:
        routes: all routes of the file.
        state_folder: state folder of the run.
        namespaces: namespaces of the file, by alias.

    Raises:
        InvalidArgumentError: the list of earlier runs' spools cannot be read.
    """
    every = list(routes)
    sent: set[Path] = set()
    for route in every:
        if is_spooled(route):
            folder = spool_folder(route, state_folder)
            sent |= {folder / "in", folder / "out"} if legs(route.options.steps).shuffle else {folder / "in"}
    for path in sorted((state_folder.absolute() / SPOOLS).glob("*/*")):
        if path not in sent and (messages := _known_left(SpoolPlace(str(path)))):
            yield path, messages
    sent |= {Path(each.spool) for each in places_of(every, state_folder, namespaces)}
    known = known_places(state_folder)
    for path in dict.fromkeys(Path(each.spool) for each in known):
        # Messages that one table lacks may be in another table that the spool was written to.
        if path not in sent and (messages := min(_known_left(each) for each in known if Path(each.spool) == path)):
            yield path, messages


def _known_left(place: SpoolPlace) -> int:
    """As `_left_in`; 0 where that cannot be read, which is logged: no route of the file needs it."""
    try:
        return _left_in(place)
    except (IsthmusError, OSError) as error:
        log.warning(
            "spool %s, which no route of the file sends on, cannot be read, and it is not known whether it has messages: %s",
            place.spool,
            error,
        )
        return 0


def _left_in(place: SpoolPlace) -> int:
    """The number of messages in a spool that were not taken; those of windows count with the spool for their results."""
    path = Path(place.spool)
    if place.reader == LISTENER:
        return listener_backlog(path)
    if place.table:
        return spool_backlog(
            path, ArchiveFolder(Path(place.table), {}).watermark(SpoolFolder(path).identity())
        ).messages
    return spool_backlog(path).messages + in_windows(path.parent / "in", path)


def spool_view(folder: Path) -> SpoolView:
    """The content of a route's spools."""
    came, goes = spool_backlog(folder / "in"), spool_backlog(folder / "out")
    note = last_note(folder / "out")
    return SpoolView(
        waiting=came.messages + goes.messages,
        size_bytes=came.size_bytes + goes.size_bytes,
        oldest_ms=min((each for each in (came.oldest_ms, goes.oldest_ms) if each), default=0),
        suppressed=note.suppressed,
        refused=came.refused + goes.refused,
        in_windows=in_windows(folder / "in", folder / "out", note),
    )


def view_at_rest(route: Route, state_folder: Path) -> SpoolView | None:
    """The content of a route's spools while no run carries it; None if it has none.

    Raises:
        SpoolError, ArchiveError, OSError: a folder cannot be read.
    """
    if route.options.table is not None:
        path = Path(route.options.table.spool)
        taken = ArchiveFolder(Path(route.target.entity), {}).watermark(SpoolFolder(path).identity())
        found = spool_backlog(path, taken)
        return SpoolView(waiting=found.messages, size_bytes=found.size_bytes, oldest_ms=found.oldest_ms)
    return spool_view(spool_folder(route, state_folder)) if is_spooled(route) else None


class SpoolStarter:
    """Starts routes; those that read through spools with their query.

    Args:
        spark: the session.
        checkpoints: folder of the queries' checkpoint folders; a path, or a URI.
        state_folder: state folder of the run.
    """

    def __init__(self, spark: SparkSession, checkpoints: str, state_folder: Path) -> None:
        self._spark = spark
        self._checkpoints = checkpoints
        self._state_folder = state_folder

    def start(
        self, route: Route, specs: tuple[RouteSpec, ...], start: Callable[[RouteSpec], SharedRoute]
    ) -> SharedRoute | SpooledRoute:
        """Start a route.

        Args:
            route: the route.
            specs: from `route_specs`.
            start: starts a route by its specification.

        Raises:
            SpoolError: a spool cannot be written.
            SparkGoneError: Spark has ended.
        """
        if len(specs) == 1:
            return start(specs[0])
        filling, sending = specs
        folder = spool_folder(route, self._state_folder)
        SpoolFolder(folder / "in").make()  # its reader may start before its writer
        query = self._query(route, folder)
        last = folder / ("in" if query is None else "out")
        view = Seldom(lambda: spool_view(folder))
        started: list[SharedRoute] = []
        try:
            started.append(start(filling))
            started.append(start(sending))
            return SpooledRoute(started[0], started[1], query, lambda: spool_backlog(last).messages == 0, view)
        except BaseException:
            for each in started:
                each.stop()
            if query is not None:
                query.stop()
            raise

    def _query(self, route: Route, folder: Path) -> ShuffleQuery | None:
        """The query between a route's spools, started; None if it has none."""
        step = legs(route.options.steps).shuffle
        if not step:
            leave(folder / "in", folder / "out")
            return None
        settings = ShuffleSettings(
            task=route.task,
            step=step,
            incoming=folder / "in",
            outgoing=folder / "out",
            source=_origin(route),
            checkpoint=f"{self._checkpoints.rstrip('/')}/{route.name}",
        )
        return ShuffleQuery(self._spark, settings).start()
