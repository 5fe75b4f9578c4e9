"""The comparison of existing plain queues and topics with the wanted ones.

What it is: the pure comparison for namespaces that are neither Service Bus nor a log, e.g. RabbitMQ: queues, topics (exchanges,
addresses) and the subscriptions that keep a topic's messages for a route. What it is not: that of Service Bus
(`isthmus.topology.planning.planner`, which calls this one) or of logs (`isthmus.topology.planning.log_planner`).

Invariants:
    I1. After all changes of a plan have been carried out, the next plan has no changes.
    I2. An entity that exists is never changed.
    I3. A subscription is created after its topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from isthmus.errors import Fault
from isthmus.topology.divert import wanted_by
from isthmus.topology.model import Federation
from isthmus.topology.planning.change import Change
from isthmus.topology.state import NamespaceState, PlainState

__all__ = ["PlainChanges", "plain_changes", "wanted_plain"]


@dataclass(slots=True)
class PlainChanges:
    """The part of a plan that concerns plain queues and topics."""

    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


def wanted_plain(federation: Federation) -> dict[str, tuple[PlainState, ...]]:
    """The entities that must exist at each namespace of such a kind that a task uses."""
    found: dict[str, dict[tuple[str, bool], PlainState]] = {}
    for task in federation.tasks.values():
        for alias, entity in wanted_by(task):
            if isinstance(entity, PlainState):
                at, key = found.setdefault(alias, {}), (entity.name, entity.is_topic)
                existing = at.get(key, entity)
                both = tuple(dict.fromkeys((*existing.subscriptions, *entity.subscriptions)))
                audited = entity if entity.audit else existing
                at[key] = replace(
                    entity,
                    subscriptions=both,
                    is_read=existing.is_read or entity.is_read,
                    audit=audited.audit,
                    audit_ms=audited.audit_ms,
                )
    return {alias: tuple(at.values()) for alias, at in found.items()}


def plain_changes(federation: Federation, observed: Mapping[str, NamespaceState]) -> PlainChanges:
    """Compare the entities that a federation wants at namespaces of such kinds with the existing ones.

    Args:
        federation: from `isthmus.topology.read`.
        observed: by alias, every namespace that a task uses.
    """
    found = PlainChanges()
    for alias, entities in wanted_plain(federation).items():
        for entity in entities:
            _compare(alias, entity, observed[alias], found)
    return found


def _compare(alias: str, entity: PlainState, namespace: NamespaceState, found: PlainChanges) -> None:
    existing = namespace.plain_entity(entity.name, is_topic=entity.is_topic)
    if existing is None:
        found.changes.append(
            Change(
                alias=alias,
                action="create",
                kind="topic" if entity.is_topic else "queue",
                topic=entity.name,
                after=replace(entity, subscriptions=(), audit="", audit_ms=None),
            )
        )
    else:
        found.notes += [f"{remark} ({alias})" for remark in existing.remarks]
    for name in entity.subscriptions:
        if existing is not None and name in existing.subscriptions:
            continue
        if existing is not None:
            what = "verified" if name == entity.audit else "moved"
            found.notes.append(
                f"topic {entity.name} at {alias} exists: messages published before `apply` creates {name} are not {what}"
            )
        found.changes.append(
            Change(
                alias=alias,
                action="create",
                kind="subscription",
                topic=entity.name,
                subscription=name,
                after=PlainState(name=name, audit_ms=entity.audit_ms if name == entity.audit else None),
            )
        )
