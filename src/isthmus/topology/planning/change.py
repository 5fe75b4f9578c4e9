"""The contents of a plan.

What it is: one change of one entity, and a plan of changes with its routes, notes and faults, each as values for `--json` and
as text for people. What it is not: the comparison that produces them (`isthmus.topology.planning.planner`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias

from isthmus.errors import Fault
from isthmus.topology.file.duration import format_ms
from isthmus.topology.model import Route
from isthmus.topology.state import (
    GroupState,
    LogState,
    PlainState,
    QueueState,
    RuleState,
    SubscriptionState,
    TopicState,
)

__all__ = ["Action", "Change", "Entity", "Plan", "differences", "label", "moved_on", "same_value", "shown"]

Entity: TypeAlias = TopicState | QueueState | SubscriptionState | RuleState | LogState | GroupState | PlainState
Action: TypeAlias = Literal["create", "update", "delete"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change at one namespace.

    Attributes:
        alias: alias of the namespace.
        action: create, update or delete.
        kind: topic, queue, subscription or rule; of a log, log or group.
        topic: name of the topic, log or queue.
        subscription: name of the subscription or group; empty for a topic or queue.
        after: the entity after the change; a created subscription has its rules, a created topic has no subscriptions;
            None after a deletion. None in its fields: the service's default, or the existing value.
        before: the existing entity; None before a creation.
        why: the reason, for people.
    """

    alias: str
    action: Action
    kind: Literal["topic", "queue", "subscription", "rule", "log", "group"]
    topic: str
    subscription: str = ""
    after: Entity | None = None
    before: Entity | None = None
    why: str = ""

    @property
    def path(self) -> str:
        """The entity's path, e.g. `flights/Subscriptions/boards/Rules/filter`."""
        path = self.topic
        if self.kind == "group":
            return f"{path}/Groups/{self.subscription}"
        if self.subscription:
            path += f"/Subscriptions/{self.subscription}"
        if self.kind == "rule":
            entity = self.after or self.before
            path += f"/Rules/{entity.name if entity else ''}"
        return path

    @property
    def details(self) -> tuple[str, ...]:
        """Each changed field, for people: `LockDuration 1m → 30s`."""
        return tuple(_details(self.before, self.after))

    def to_dict(self) -> dict[str, Any]:
        """The change as plain values for `--json`."""
        return {
            "namespace": self.alias,
            "action": self.action,
            "kind": self.kind,
            "path": self.path,
            "details": list(self.details),
            "why": self.why,
            "after": asdict(self.after) if self.after else None,
            "before": asdict(self.before) if self.before else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The actions of `apply`.

    Attributes:
        changes: in the order in which they are carried out.
        routes: all routes of the federation, which `run` would carry.
        notes: information for the operator, e.g. where duplicate detection is turned on.
        faults: conflicts that no change can resolve; with any, nothing is applied.
    """

    changes: tuple[Change, ...] = ()
    routes: tuple[Route, ...] = ()
    notes: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values for `--json`."""
        return {
            "changes": [change.to_dict() for change in self.changes],
            "routes": [asdict(route) for route in self.routes],
            "notes": list(self.notes),
            "faults": [asdict(fault) for fault in self.faults],
        }


def differences(before: Entity | None, after: Entity) -> Iterator[tuple[str, Any, Any]]:
    """Field, existing value, wanted value, for every wanted field that differs; rules excluded."""
    for each in fields(after):
        value = getattr(after, each.name)
        if each.name in _NOT_SET or value is None:
            continue
        if before is not None and each.name.startswith("initial_"):
            continue
        old = getattr(before, each.name) if before else None
        # The Python SDK rounds the largest TimeSpan, so that durations beyond a century count as equal.
        if not same_value(each.name, old, value):
            yield each.name, old, value


def moved_on(change: Change, existing: Entity) -> tuple[str, ...]:
    """Fields that an update would set and that another client has set since the observation, for people; fields with the wanted value are omitted."""
    before, after = change.before, change.after
    if isinstance(existing, RuleState):
        known = [each for each in (before, after) if isinstance(each, RuleState)]
        is_known = not isinstance(before, RuleState) or any(existing.selects_as(each) for each in known)
        return () if is_known else (f"filter {existing.filter}" + (f"; {existing.action}" if existing.action else ""),)
    if before is None or after is None:
        return ()
    return tuple(
        f"{label(name)} {shown(name, getattr(before, name))} → {shown(name, now)}"
        for name, now, _ in differences(existing, after)
        if not same_value(name, getattr(before, name), now)
    )


def same_value(name: str, old: Any, value: Any) -> bool:
    """Whether two values of a field are equal: durations in their notation, forwarding targets without case."""
    if old is None or value is None:
        return old is value
    if name.endswith("_ms"):
        return format_ms(old) == format_ms(value)
    if name.startswith("forward_"):
        return str(old).lower() == str(value).lower()
    return bool(old == value)


def _details(before: Entity | None, after: Entity | None) -> Iterator[str]:
    if after is None:
        return
    for name, old, value in differences(before, after):
        new = shown(name, value)
        if before is None and new in {"", "no"}:
            continue
        yield f"{label(name)} {shown(name, old)} → {new}" if before is not None else f"{label(name)} {new}"
    if isinstance(after, SubscriptionState) and before is None:
        for rule in after.rules or ():
            yield f"rule {rule.name}: {rule.filter}" + (f"; {rule.action}" if rule.action else "")


# Fields of a state that are not settings of the entity.
_NOT_SET = frozenset({"name", "rules", "subscriptions", "groups", "is_topic", "is_read", "remarks", "audit"})
_LABELS = {
    "lock_duration_ms": "LockDuration",
    "max_delivery_count": "MaxDeliveryCount",
    "auto_delete_on_idle_ms": "AutoDeleteOnIdle",
    "requires_session": "RequiresSession",
    "forward_to": "ForwardTo",
    "duplicate_detection_ms": "DuplicateDetection",
    "partitioned": "EnablePartitioning",
    "default_ttl_ms": "DefaultMessageTimeToLive",
    "initial_ttl_ms": "DefaultMessageTimeToLive",
    "initial_size_megabytes": "MaxSizeInMegabytes",
    "dead_letters_expired": "DeadLetteringOnMessageExpiration",
    "status": "Status",
    "forward_dead_letters_to": "ForwardDeadLetteredMessagesTo",
    "initial_partitions": "partitions",
    "initial_replication": "replication factor",
    "start": "starts at",
    "audit_ms": "keeps messages",
}


def label(name: str) -> str:
    """The service's name of a field."""
    return _LABELS.get(name, name)


def shown(name: str, value: Any) -> str:
    """A field's value for people."""
    if value is None:
        return "?"
    if value == "" and name.startswith("forward_"):
        return ""
    if name == "audit_ms" and not value:
        return "for ever"
    if name == "duplicate_detection_ms" and not value:
        return "off"
    if name.endswith("_ms"):
        return format_ms(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
