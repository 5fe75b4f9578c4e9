"""The comparison of existing logs with the wanted ones.

What it is: the pure comparison for namespaces whose kind is a log, e.g. Kafka: topics with partitions, and the consumer groups that
store the position of a route. What it is not: that of Service Bus (`isthmus.topology.planning.planner`, which calls this one).

Invariants:
    I1. After all changes of a plan have been carried out, the next plan has no changes.
    I2. A log or a group that exists is never changed: more partitions would distribute keys differently, another offset would lose messages.
    I3. A group is created after its log.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from isthmus.errors import Fault
from isthmus.topology.divert import wanted_by
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.planning.change import Change
from isthmus.topology.state import GroupState, LogState, NamespaceState

__all__ = ["LogChanges", "log_changes", "wanted_logs"]


@dataclass(slots=True)
class LogChanges:
    """The part of a plan that concerns logs."""

    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def wanted_logs(federation: Federation) -> dict[str, tuple[LogState, ...]]:
    """The logs that must exist at each namespace that is a log and that a task uses."""
    logs: dict[str, dict[str, LogState]] = {}
    for task in federation.tasks.values():
        for alias, log in wanted_by(task):
            if isinstance(log, LogState):
                at = logs.setdefault(alias, {})
                existing = at.get(log.name)
                at[log.name] = _merged(existing, log) if existing else log
    return {alias: tuple(at.values()) for alias, at in logs.items()}


def log_changes(federation: Federation, observed: Mapping[str, NamespaceState]) -> LogChanges:
    """Compare the logs that a federation wants with those that exist.

    Args:
        federation: from `isthmus.topology.read`.
        observed: by alias, every namespace that a task uses.
    """
    found = LogChanges()
    for alias, logs in wanted_logs(federation).items():
        for log in logs:
            _compare(alias, replace(log, initial_partitions=_partitions(log, observed)), observed, found)
    for task in federation.tasks.values():
        diverts = [Endpoint(each.alias, each.entity) for each in task.diverts]
        for target in dict.fromkeys((*(route.target for route in PATTERNS[task.pattern].routes(task)), *diverts)):
            if not target.is_table and federation.namespaces[target.alias].is_log:
                found.notes.append(
                    f"task {task.name}: a message that is sent again after a crash appears twice in {target}: a log drops none"
                )
    return found


def _partitions(log: LogState, observed: Mapping[str, NamespaceState]) -> int | None:
    """The number of partitions with which a log is created."""
    if log.initial_partitions is not None or log.like is None:
        return log.initial_partitions
    alias, name = log.like
    copied = observed[alias].log(name)
    return copied.partitions if copied is not None else None


def _compare(alias: str, log: LogState, observed: Mapping[str, NamespaceState], found: LogChanges) -> None:
    existing = observed[alias].log(log.name)
    if existing is None:
        created = replace(log, groups=(), initial_partitions=log.initial_partitions or 1, like=None)
        found.changes.append(Change(alias=alias, action="create", kind="log", topic=log.name, after=created))
    elif log.initial_partitions is not None and existing.partitions != log.initial_partitions:
        found.notes.append(
            f"topic {log.name} at {alias} has {existing.partitions} partitions, not {log.initial_partitions}, and is not "
            "changed: another number distributes the keys differently, which breaks their order"
        )
    for group in log.groups:
        if existing is None or not existing.has_group(group.name):
            if existing is not None:
                found.notes.append(
                    f"topic {log.name} at {alias} exists and group {group.name} has no offsets there: {_begins(group)}"
                )
            found.changes.append(
                Change(alias=alias, action="create", kind="group", topic=log.name, subscription=group.name, after=group)
            )


def _begins(group: GroupState) -> str:
    """The first records of a new group of an existing log."""
    if group.start == "existing":
        return (
            "all existing records are moved (start: existing), also those that the task has moved before under another name, "
            "to another alias, or with other "
            "checkpoints"
        )
    return (
        "records published before `apply` are not moved (start: now). If the task has moved messages before, the cluster has "
        "forgotten the group, "
        "or a name or the location of checkpoints was changed: write start: existing, or the records since then are skipped"
    )


def _merged(first: LogState, second: LogState) -> LogState:
    return replace(
        first,
        initial_partitions=first.initial_partitions or second.initial_partitions,
        initial_replication=first.initial_replication or second.initial_replication,
        like=first.like or second.like,
        groups=first.groups + tuple(group for group in second.groups if not first.has_group(group.name)),
    )
