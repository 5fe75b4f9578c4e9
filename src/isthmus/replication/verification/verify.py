"""The verification of a task: which entities are read for it, and the audit.

What it is: which flows of a task's pattern can be compared, what of an origin's messages the task replicates, and the audit of each task.
What it is not: any pattern, the conversion of flows for the audit (`isthmus.replication.verification.ground`), the reading
(`isthmus.replication.verification.audit.audit`) or the comparison (`isthmus.replication.verification.reconciliation.reconcile`).

Invariants:
    I1. Flows whose origin is retained are audited together where they select the same messages; each other filter is an audit of its own.
    I2. What cannot be compared is reported: its flows are never called clean.
    I3. A copy of a message that entered an entity which is not compared does not count anywhere as a message that entered.
    I4. What a log's retention has removed is no longer compared; nor, with `start: now`, what was in it before the task began. If something
        was removed before a route had moved it, or if no record of a log is known to have been moved, that is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from isthmus.connectors.spool.reader import SpoolReader
from isthmus.errors import InvalidArgumentError, IsthmusError
from isthmus.message import Provenance
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.shuffle.contents import SpoolContents
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.audit.log_audit import LogAudit
from isthmus.replication.verification.audit.passage import Passage
from isthmus.replication.verification.audit.selection import selection
from isthmus.replication.verification.ground import SUBSCRIPTIONS, Ground, ground_of
from isthmus.replication.verification.identity import Members
from isthmus.replication.verification.joining import joined_of
from isthmus.replication.verification.reconciliation.reconcile import Reconciliation
from isthmus.topology.kind import KINDS
from isthmus.topology.model import Endpoint, Federation, Flow, Route, RouteOptions
from isthmus.topology.route import flows as declared_flows
from isthmus.topology.route import routes

__all__ = ["FolderUnreadableError", "flows_of", "verify"]

AUDIT = "audit"
# A namespace that restarts meanwhile is back within this time; so is one that throttles.
PATIENCE_SECONDS = 30.0


class FolderUnreadableError(IsthmusError):
    """A folder of this machine with messages of a task cannot be read, e.g. because it belongs to another user."""

    code = "folder-unreadable"


def verify(
    federation: Federation,
    *,
    task: str = "",
    subscription: str = "",
    former_marks: Sequence[str] = (),
    state_folder: Path | None = None,
    by_hour: bool = False,
) -> Iterator[Reconciliation]:
    """Reconcile a federation's tasks by independent reading; blocks.

    Args:
        federation: with absolute paths.
        task: this one only; empty for all.
        subscription: the subscription to read at every topic; empty to choose.
        former_marks: properties with which copies were marked before the mark in the file was changed.
        state_folder: the state folder of the file's runs, where routes have their spools; None: there are none.
        by_hour: whether to count also by the hour in which messages were enqueued at their origin (`Reconciliation.hours`,
            `Comparison.hours`).

    Raises:
        InvalidArgumentError: there is no such task, or nothing to read.
        FolderUnreadableError: a spool, a table or a ledger cannot be read.
        IsthmusError: a namespace cannot be read.
    """
    if task and task not in federation.tasks:
        raise InvalidArgumentError(f"no task {task} in {federation.file}: {', '.join(federation.tasks)}")
    with NamespaceClients(federation, "isthmus-verify", patience_seconds=PATIENCE_SECONDS) as clients:
        for each in federation.tasks.values():
            if task and each.name != task:
                continue
            chosen = {route.name: route for route in routes(federation, each.name)}
            flows = flows_of(federation, each.name, subscription)
            reasons = {flow: why for flow in flows if (why := _unread(flow, flows, federation, chosen))}
            read = [flow for flow in flows if flow not in reasons]
            spools = SpoolContents(chosen, state_folder or Path("/nonexistent"))
            outside = _outside((flow.origin for flow in reasons), clients) if read else {}
            try:
                results = [
                    _audit(
                        federation, each.name, group, chosen, clients, former_marks, spools, outside, by_hour=by_hour
                    )
                    for group in _groups(read)
                ]
            except OSError as error:
                what = error.filename or f"what is needed to verify task {each.name}"
                raise FolderUnreadableError(f"{what} cannot be read: {error.strerror or error}") from error
            nothing = () if flows else (f"no messages that task {each.name} moves can be compared",)
            absent: tuple[str, ...] = ()
            if any(result.total("lost") for result in results):
                absent = (*_absent_tables(chosen), *(_absent(spools) if state_folder is not None else ()))
            yield _merged(each.name, results, (*dict.fromkeys(reasons.values()), *nothing, *absent), by_hour=by_hour)


def _absent(spools: SpoolContents) -> Iterator[str]:
    """Spools that are not found, so that messages in them count as lost."""
    for route, folder in spools.absent():
        yield (
            f"the spools of route {route} are not at {folder}, and messages in them count as lost: if its run has another state folder, name it by "
            "--state"
        )


def _absent_tables(chosen: Mapping[str, Route]) -> Iterator[str]:
    """Spools before tables that are not found, so that messages in them count as lost."""
    for name, route in chosen.items():
        table = route.options.table
        if table is not None and not SpoolReader(Path(table.spool)).identity:
            yield (
                f"the spool {table.spool} of route {name} is not found, and messages in it count as lost: run verify where it is, with the file that "
                "the run uses"
            )


def flows_of(federation: Federation, task: str, subscription: str = "") -> list[Flow]:
    """The flows of a task, with the subscription that the caller wants read.

    Args:
        federation: which declares the task.
        task: its name.
        subscription: the one to read at every topic; empty: the audit subscription where the task has one, else the first that
            retains all messages.

    Raises:
        InvalidArgumentError: the task declares none.
    """
    flows = declared_flows(federation.tasks[task])
    if subscription:
        return [_read_by(flow, subscription) for flow in flows]
    if any(not flow.target.entity for flow in flows):
        raise InvalidArgumentError(
            f"task {task} declares no subscription that retains every message: write audit: 1d in the task and apply "
            "it, or name one with --subscription"
        )
    return flows


def _read_by(flow: Flow, subscription: str) -> Flow:
    """The flow with another subscription read at its topics."""
    is_shared = subscription.lower() == flow.consumers.lower()
    route_topics = flow.origin, Endpoint(flow.target.alias, flow.origin.entity)
    ends = []
    for end, topic, is_consumed in zip(
        (flow.witness, flow.target), route_topics, (flow.origin_is_consumed, flow.target_is_consumed), strict=True
    ):
        name = (
            end.entity.partition(SUBSCRIPTIONS)[0]
            if SUBSCRIPTIONS in end.entity
            else ""
            if end.entity
            else topic.entity
        )
        # An entity other than a topic is read as declared, whoever consumes it.
        ends.append(
            (Endpoint(end.alias, f"{name}{SUBSCRIPTIONS}{subscription}"), is_shared) if name else (end, is_consumed)
        )
    (witness, origin_is_consumed), (target, target_is_consumed) = ends
    return replace(
        flow,
        witness=witness,
        target=target,
        origin_is_consumed=origin_is_consumed,
        target_is_consumed=target_is_consumed,
        audit_ms=flow.audit_ms if subscription.lower() == AUDIT else 0,
    )


def _unread(flow: Flow, flows: Sequence[Flow], federation: Federation, chosen: Mapping[str, Route]) -> str:
    """Why a flow cannot be read; empty where it can."""
    origin, target = (federation.namespaces.get(each.alias) for each in (flow.origin, flow.target))
    if flow.origin_is_recorded and flow.changes:
        return (
            f"messages from {flow.origin} to {flow.target} are not compared: {KINDS[origin.kind].title if origin else flow.origin} numbers no "
            "messages, and steps change their content"
        )
    if origin is not None and origin.is_plain and not flow.origin_is_recorded:
        return (
            f"messages from {flow.origin} to {flow.target} are not compared: {KINDS[origin.kind].title} numbers no messages, so that "
            "those that have left the queue are not known"
        )
    if flow.target_is_recorded:
        return ""
    if target is not None and target.is_plain and not KINDS[target.kind].browses:
        return (
            f"messages from {flow.origin} to {flow.target} are not compared: {KINDS[target.kind].title} cannot be read without consuming "
            "its messages"
        )
    if flow.routes and flow.routes[-1] in chosen and chosen[flow.routes[-1]].options.plain.writes_topic:
        return f"messages from {flow.origin} to {flow.target} are not compared: a topic retains no messages that could be read"
    others = [each for each in flows if each.target == flow.target and each.origin != flow.origin]
    if not flow.routes and others:
        return f"messages to {flow.target} are not compared: messages that several entities forward have equal numbers"
    return ""


def _groups(flows: Iterable[Flow]) -> list[list[Flow]]:
    """Flows that are audited together (I1)."""
    found: dict[str | None, list[Flow]] = {}
    for flow in flows:
        found.setdefault(flow.filter if flow.witness.entity else None, []).append(flow)
    return list(found.values())


def _audit(
    federation: Federation,
    task: str,
    flows: Sequence[Flow],
    chosen: Mapping[str, Route],
    clients: NamespaceClients,
    former_marks: Sequence[str],
    spools: SpoolContents,
    outside: Mapping[tuple[str, str], str],
    *,
    by_hour: bool,
) -> Reconciliation:
    ground = ground_of(flows, chosen)
    by_namespace = clients.identities(dict.fromkeys(each.alias for each in ground.origins))
    labels = {
        (namespace, entity.entity.lower()): label
        for namespace, alias in by_namespace.items()
        for entity, label in ground.origins.items()
        if entity.alias == alias
    }
    passed = [route for each in ground.passages for route in each.routes]
    options = passed[0].options if passed else RouteOptions()
    logs = LogAudit(clients, passed)
    records = {flow.witness for flow in flows if flow.origin_is_recorded}
    records |= {flow.target for flow in flows if flow.target_is_recorded}
    return audit(
        task,
        passed,
        ground.entities,
        logs.open,
        passages=ground.passages,
        detection_ms=ground.detection_ms,
        selects=selection(flows[0].filter, options, _came_back(ground, clients)) if flows[0].witness.entity else None,
        members=Members({**outside, **labels}),
        ordered=all(route.options.ordering != "none" for route in passed),
        by_session=any(route.options.ordering == "session" for route in passed),
        mark=options.mark,
        former_marks=former_marks,
        shared=ground.shared,
        ttl_ms=ground.ttl_ms,
        logs={
            label: any(
                (route.source == end or (end in records and route.source.alias == end.alias))
                and route.options.start == "now"
                for route in passed
            )
            for label, end in ground.entities.items()
            if not end.is_table and (end in records or federation.namespaces[end.alias].is_log)
        },
        log_reader=logs,
        spools=spools,
        delivered=lambda passage: _delivered(passage, ground, passage.routes[-1:], "moved"),
        diverted=lambda passage: _delivered(passage, ground, passage.routes, "divert"),
        unsettled=lambda route: clients.unsettled(route.source, route.options.plain.subscription),
        by_hour=by_hour,
        enqueued=lambda passage: _enqueued(passage, ground),
        joined=joined_of(federation, chosen.values(), [end for end in ground.entities.values() if _is_audit(end)]),
    )


def _is_audit(end: Endpoint) -> bool:
    """Whether an entity is the audit subscription of a task."""
    return not end.is_table and end.entity.partition(SUBSCRIPTIONS)[2] == AUDIT


def _outside(origins: Iterable[Endpoint], clients: NamespaceClients) -> dict[tuple[str, str], str]:
    """Labels for origins whose messages are not compared: their copies did not enter at any of the others."""
    found: dict[tuple[str, str], str] = {}
    for origin in dict.fromkeys(origins):
        names = {origin.alias}
        with suppress(IsthmusError):  # it is not read otherwise; where it has no identity, its copies carry the alias
            names |= clients.identities((origin.alias,)).keys()
        found |= {(name, origin.entity.lower()): str(origin) for name in names}
    return found


def _came_back(ground: Ground, clients: NamespaceClients) -> Callable[[Provenance], bool]:
    """Whether a message has been in an entity that now receives only copies of the task."""

    @cache  # only evaluated when the first message needs it
    def ends() -> frozenset[tuple[str, str]]:
        by_namespace = clients.identities(
            dict.fromkeys(each.alias for each in ground.entities.values() if not each.is_table)
        )
        return frozenset(
            (namespace, end.entity.partition(SUBSCRIPTIONS)[0].lower())
            for namespace, alias in by_namespace.items()
            for end in ground.entities.values()
            if end.alias == alias
        )

    return lambda provenance: any((hop.namespace, hop.entity.lower()) in ends() for hop in provenance.hops)


def _delivered(passage: Passage, ground: Ground, passed: Sequence[Route], outcome: str) -> dict[int, int]:
    """What the ledger of a passage's routes records; nothing where the task keeps none."""
    if (path := _ledger(passage)) is None:
        return {}
    from isthmus.replication.ledger.moved import moved

    found: dict[int, int] = {}
    for route in passed:
        for number, at_ms in moved(path, route.name, _entities(passage, ground), outcome).items():
            found[number] = max(at_ms, found.get(number, 0))
    return found


def _enqueued(passage: Passage, ground: Ground) -> dict[int, int]:
    """When those messages were enqueued at their origin, as far as the ledger records it."""
    if (path := _ledger(passage)) is None:
        return {}
    from isthmus.replication.ledger.moved import enqueued

    return enqueued(path, passage.routes[-1].name, _entities(passage, ground))


def _ledger(passage: Passage) -> Path | None:
    """The folder of the ledger of a passage's last route, where there is one."""
    ledger = passage.routes[-1].options.ledger if passage.routes else None
    return None if ledger is None or not Path(ledger.path).exists() else Path(ledger.path)


def _entities(passage: Passage, ground: Ground) -> list[str]:
    """The names of a passage's origin in provenance."""
    return [str(end) for end, label in ground.origins.items() if label == passage.origin]


def _merged(
    task: str, results: Sequence[Reconciliation], unread: tuple[str, ...], *, by_hour: bool = False
) -> Reconciliation:
    if len(results) == 1 and not unread:
        return results[0]
    return Reconciliation(
        task,
        tuple(comparison for result in results for comparison in result.comparisons),
        all(result.ordered for result in results),
        tuple(reading for result in results for reading in result.readings),
        tuple(dict.fromkeys((*(text for result in results for text in result.unread), *unread))),
        by_hour,
    )
