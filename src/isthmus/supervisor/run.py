"""One run of a federation's routes, from the claims to a clean end.

What it is: the order of steps. First the preflight, and the claims are taken, since a run that is not
configured, or that is the second, must be refused before it starts anything; then Spark, whose virtual machine may have been launched meanwhile; then the routes. At the end the routes drain, Spark stops, and the claims are released last: the next run finds no work in
progress. What it is not: the command line, or the watching of routes (`isthmus.supervisor.supervisor`).

Invariants:
    I1. A task that another run moves is refused, with the holder and since when; no query has been started by then.
    I2. A claim whose holder ran on this machine and has ended, or that has no name, is waited for, not refused immediately: its
        lock expires.
    I3. Claims are released only after every route has stopped.
    I5. Two runs never share a state folder (`isthmus.supervisor.claim.folder_lock`).
    I4. A fault that only the operator can fix ends the run before a query is started, with all such faults together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import ConfigError, InvalidArgumentError
from isthmus.replication.archive.start import ArchiveStarter, check_archives
from isthmus.replication.ledger.ledger import LedgerWatch, check_ledgers, noted, noted_diverts
from isthmus.replication.namespace_clients import NamespaceClients, name_places
from isthmus.replication.query.shared_spark import SharedSettings, open_shared_run, query_slots, task_slots
from isthmus.replication.route_spec import claim_key, route_spec
from isthmus.replication.shuffle.place import SpoolMaker, note_places
from isthmus.replication.shuffle.start import SpoolStarter, check_spools, places_of, route_specs, spool_folder
from isthmus.replication.spark.checkpoint_check import check_checkpoints
from isthmus.replication.spark.early_java import EarlyJava
from isthmus.replication.spark.gone import SparkGoneError, calling_spark
from isthmus.replication.spark.launch import LOG_FILE
from isthmus.replication.spark_session import create_spark_session
from isthmus.replication.step.chain.chain import check as check_steps
from isthmus.supervisor.claim.claim import ClaimKeeper, TaskClaimedError
from isthmus.supervisor.claim.folder_lock import locked_folder, usable_folder
from isthmus.supervisor.condition import Condition
from isthmus.supervisor.examination.preflight import preflight
from isthmus.supervisor.left import warn_of_left
from isthmus.supervisor.pause import PauseFile
from isthmus.supervisor.running_route import RunningRoute
from isthmus.supervisor.status import Footprint, StatusFile, describe
from isthmus.supervisor.subscription_topic import check_topics, note_topics
from isthmus.supervisor.supervisor import Settings, Supervisor
from isthmus.supervisor.watch.canary_watch import CanaryWatch
from isthmus.supervisor.watch.drop_watch import DropWatch
from isthmus.supervisor.watch.fill import Fill, FillWatch
from isthmus.supervisor.watch.watch import BacklogWatch
from isthmus.topology.claim import CLAIM_LOCK_MS
from isthmus.topology.model import Federation, Route
from isthmus.topology.route import routes
from isthmus.topology.spark import SparkSettings, control_warning, slots_warning
from isthmus.topology.step.order import legs

__all__ = ["RunOptions", "TaskClaimedError", "checkpoint_folder", "route_checkpoints", "run_federation"]

log = logging.getLogger(__name__)

# In the state folder. Earlier releases had a folder for each route beside those of the queries; they are not used.
CHECKPOINTS = "checkpoints"
DECIDE_SECONDS = 20.0
STATUS_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run.

    Attributes:
        folder: the state folder: checkpoints, Spark's temporary files, status.
        task: run this task only; empty for all.
        settings: of the supervisor.
        lease_seconds: see `SharedSettings`.
        master: of Spark; empty for the federation file's.
        spark_options: further settings of Spark.
        new_spools: make spools and tables again that are missing.
    """

    folder: Path
    task: str = ""
    settings: Settings = field(default_factory=Settings)
    lease_seconds: float = 0.0
    master: str = ""
    spark_options: dict[str, str] = field(default_factory=dict)
    new_spools: bool = False


def run_federation(
    federation: Federation,
    options: RunOptions,
    stop: threading.Event,
    *,
    on_status: Callable[[dict[str, Any]], None] | None = None,
    on_started: Callable[[], None] | None = None,
    early: EarlyJava | None = None,
) -> bool:
    """Run a federation's routes until `stop` is set, or until all are done; blocks.

    Args:
        federation: with absolute paths.
        options: of the run.
        stop: set to end the run.
        on_status: called with every status document.
        on_started: called once Spark runs, which takes over signal handlers on its start.
        early: Spark's virtual machine, started ahead.

    Returns:
        Whether every route ended without a failure.

    Raises:
        TaskClaimedError: another run moves a task.
        FolderInUseError: another run uses the state folder.
        SparkGoneError: Spark's Java process has ended.
        InvalidArgumentError: there is no such task, a step cannot work, or the state folder is not writable.
        PauseFileError: the file of paused tasks cannot be read.
        ConfigError: a secret, a right or an entity is missing; contains all such faults.
    """
    if options.task and options.task not in federation.tasks:
        raise InvalidArgumentError(f"no task {options.task} in {federation.file}: {', '.join(federation.tasks)}")
    chosen = routes(federation, options.task or None)
    if not chosen:
        raise InvalidArgumentError(
            f"nothing to run in {federation.file}: the namespaces forward the messages of its tasks themselves"
        )
    paused = PauseFile(options.folder)
    for task in paused.tasks().keys() - federation.tasks.keys():  # an unreadable file is refused before anything starts
        log.warning(
            "task %s is paused and not in %s; a new one of its name would start paused: isthmus resume",
            task,
            federation.file,
        )
    usable_folder(options.folder).close()
    fill = FillWatch(federation, chosen)
    clients = NamespaceClients(federation, "isthmus-claim")
    carriers = {route.name: _carriers(route, federation, options) for route in chosen}
    specs = {spec.name: spec for each in carriers.values() for spec in each}
    ledgers = LedgerWatch(
        (Path(each.path), each.bodies) for each in (route.options.ledger for route in chosen) if each is not None
    )
    where = federation.spark.at(options.master)
    readers = query_slots(specs, where)
    slots = task_slots(specs, readers)
    _warn_of_spark(where, slots)
    claimed = [route for route in chosen if route.is_claimed]
    claims = ClaimKeeper([(route.task, route.claim_alias) for route in claimed], clients.open).start()
    watch = BacklogWatch(chosen, lambda: NamespaceClients(federation, "isthmus-look"))
    drops = DropWatch(
        chosen,
        fill.fills,
        lambda: NamespaceClients(federation, "isthmus-drop"),
        lambda route: claims.remaining_seconds(route.task, route.claim_alias) > 0,
    )
    run = _Run(options, on_status, fill, drops)
    holds, starting = ExitStack(), ExitStack()
    canaries = CanaryWatch(
        () if options.settings.available_now else chosen,
        lambda: NamespaceClients(federation, "isthmus-canary"),
        lambda route: (
            claims.remaining_seconds(route.task, route.claim_alias) > 0 and route.task not in paused.last_known()
        ),
    )
    try:
        _check(federation, chosen, options.folder)
        _decide(claims, stop)
        holds.enter_context(locked_folder(options.folder))
        starting.enter_context(run.starting(chosen, paused.last_known()))
        note_places(places_of(chosen, options.folder, federation.namespaces), options.folder)
        note_topics(chosen, federation.namespaces, options.folder)
        watch.start()
        fill.start()
        drops.start()
        canaries.start()
        ledgers.start()
        log.info("starting Spark; its own log is %s", options.folder / LOG_FILE)
        spark = create_spark_session(
            "isthmus",
            routes=len(chosen),
            slots=slots,
            work_directory=options.folder,
            options={"spark.task.maxFailures": "1", **where.options(), **options.spark_options},
            early=early,
        )
        try:
            if on_started is not None:
                on_started()
            checkpoints = checkpoint_folder(where.checkpoints, options)
            if where.checkpoints:
                check_checkpoints(spark, checkpoints, stop)
            of_routes = route_checkpoints(where.checkpoints, options)
            spools = SpoolStarter(spark, of_routes, options.folder)
            maker = SpoolMaker(options.folder, makes_again=options.new_spools)
            archives = ArchiveStarter(spark, of_routes, available_now=options.settings.available_now)
            keys = {claim_key(route.task, route.claim_alias): (route.task, route.claim_alias) for route in claimed}
            carried = open_shared_run(
                spark,
                SharedSettings(
                    checkpoints=checkpoints,
                    lease_seconds=options.lease_seconds,
                    control=where.control,
                    query_slots=readers,
                    trial=slots if where.is_remote else 0,
                ),
                lambda key: claims.remaining_seconds(*keys[key]),
                stop,
            )
            try:

                def start(route: Route) -> RunningRoute:
                    maker.make(places_of([route], options.folder, federation.namespaces))
                    specs, shown = carriers[route.name], _teller(federation, route)
                    return archives.start(
                        route, lambda: spools.start(route, specs, lambda spec: carried.start(spec, shown))
                    )

                supervisor = Supervisor(
                    chosen,
                    start,
                    claims=claims,
                    backlog=watch.backlog,
                    # A route that joins a running query costs little.
                    paused=paused.last_known,
                    canary=canaries.figures,
                    settings=replace(options.settings, starts_at_once=max(1, len(chosen))),
                )
                starting.close()
                ended_well = supervisor.run(
                    stop, lambda: run.write_status(supervisor, "draining" if stop.is_set() else "running")
                )
            finally:
                carried.close()
            run.write_status(supervisor, "ended", at_once=True)
            return ended_well
        finally:
            with suppress(SparkGoneError), calling_spark():
                spark.stop()
    finally:
        starting.close()
        drops.close()
        canaries.close()
        ledgers.close()
        fill.close()
        watch.close()
        holds.close()  # before the claims: a run that waits for them must find the folder free
        claims.close()


def _carriers(route: Route, federation: Federation, options: RunOptions) -> tuple[RouteSpec, ...]:
    """The specifications of a route. A ledger records the messages at the route's target, not those in a spool before it."""
    spec = route_spec(route, federation, only_present=options.settings.available_now, state_folder=options.folder)
    *into, last = route_specs(route, spec, spool_folder(route, options.folder))
    return (*(noted_diverts(route, each) for each in into), noted(route, last))


def checkpoint_folder(uri: str, options: RunOptions) -> str:
    """The folder for the checkpoints of queries that the routes of a run share.

    Two runs of one file may move different tasks at the same time. Each has a state folder of its own, but the URI in the file is one: a run of one
    task has a folder of its own there.

    Args:
        uri: from the federation file; empty for the state folder.
        options: of the run.
    """
    if not uri:
        return str(options.folder / CHECKPOINTS)
    return f"{uri.rstrip('/')}/task-{options.task}" if options.task else uri


def route_checkpoints(uri: str, options: RunOptions) -> str:
    """The folder for the checkpoints of queries of single routes, each in a folder of the route's name: those of windows and of tables. A run of
    one task continues those of a run of all tasks, and vice versa: they contain the state of windows.

    Args:
        uri: from the federation file; empty for the state folder.
        options: of the run.
    """
    return checkpoint_folder(uri, replace(options, task=""))


class _Run:
    """Writes a run's status, once a second."""

    def __init__(
        self,
        options: RunOptions,
        on_status: Callable[[dict[str, Any]], None] | None,
        fill: FillWatch,
        drops: DropWatch,
    ) -> None:
        self._drops = drops
        self._file = StatusFile(options.folder)
        self._fill = fill
        self._warned: set[tuple[str, str]] = set()
        self._on_status = on_status
        self._footprint = Footprint()
        self._written_at = float("-inf")

    def starting(self, chosen: Sequence[Route], paused: Mapping[str, str]) -> AbstractContextManager[None]:
        """Within, the status says that the run is about to start its routes."""
        now = time.monotonic()
        described = []
        for route in chosen:
            condition = Condition()
            if since := paused.get(route.task):
                condition.paused(since)
            else:
                condition.pending("Spark is starting")
            described.append(describe(route, condition, now) | {"dropped": self._drops.dropped(route.name)})
        return self._file.repeated("starting", described)

    def write_status(self, supervisor: Supervisor, state: str, *, at_once: bool = False) -> None:
        """Write the status, unless it was written moments ago."""
        now = time.monotonic()
        if now - self._written_at < STATUS_SECONDS and not at_once:
            return
        self._written_at = now
        self._footprint.measure()
        described = [
            describe(route, condition, now, self._footprint) | {"dropped": self._drops.dropped(route.name)}
            for route, condition in supervisor.conditions()
        ]
        fills = self._fill.fills()
        self._warn(fills)
        document = self._file.write(state, described, self._footprint, [each.to_dict() for each in fills])
        if self._on_status is not None:
            self._on_status(document)

    def _warn(self, fills: Sequence[Fill]) -> None:
        """Log once that a topic is nearly full, and again after it was not."""
        for each in fills:
            key = each.namespace, each.topic
            if each.warns and key not in self._warned:
                log.warning("%s; publishers are refused when it is full", each.text())
            (self._warned.add if each.warns else self._warned.discard)(key)


def _warn_of_spark(spark: SparkSettings, needed: int) -> None:
    for warned in (slots_warning(spark, needed), control_warning(spark)):
        if warned is not None:
            log.warning("%s; %s", *warned)


def _teller(federation: Federation, route: Route) -> Callable[[str], str]:
    """A function that replaces addresses in texts about a route's connections by aliases. Each text is reported twice a second while a target is unreachable, and the
    namespace's address may be in a vault.
    """
    ends = (route.source.alias, *(target.alias for target in route.sent_to if not target.is_table))
    return lru_cache(16)(lambda text: name_places(text, federation, ends))


def _check(federation: Federation, chosen: Sequence[Route], state_folder: Path) -> None:
    """Refuse what cannot run until the configuration is changed."""
    for route in chosen:
        parts = legs(route.options.steps)
        check_steps(parts.before)
        check_steps(parts.behind)
    check_archives(chosen)
    check_spools(chosen, state_folder)
    check_ledgers(chosen)
    check_topics(chosen, federation.namespaces, state_folder)
    warn_of_left(federation, state_folder)
    found = preflight(federation, chosen, lambda: NamespaceClients(federation, "isthmus-check"))
    if found.faults:
        raise ConfigError(found.faults)
    for alias, why in found.away:
        log.warning(
            "namespace %s cannot be used now: %s; its routes are retried", alias, name_places(why, federation, [alias])
        )


def _decide(claims: ClaimKeeper, stop: threading.Event) -> None:
    """Wait until it is known that no other run moves a task."""
    undecided_limit = time.monotonic() + DECIDE_SECONDS
    lapse_limit = time.monotonic() + CLAIM_LOCK_MS / 1000 + DECIDE_SECONDS
    waited_for = ""
    while not stop.is_set():
        held = claims.held_by_others()
        living = {key: holder for key, holder in held.items() if holder is not None and not holder.has_ended()}
        if living or (held and time.monotonic() > lapse_limit):
            (task, alias), holder = next(iter((living or held).items()))
            raise TaskClaimedError(task, alias, str(holder or ""))
        if not held and (claims.decided() or time.monotonic() > undecided_limit):
            return
        awaited = next(iter(held.values()), None)
        ended = f"the claim of {awaited}, which has ended," if awaited else "a claim without a name"
        if held and ended != waited_for:
            waited_for = ended
            log.warning("waiting for %s to expire", ended)
        stop.wait(0.1)
