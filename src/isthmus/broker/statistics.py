"""The statistics of a namespace.

What it is: one row for each queue, topic, subscription and event hub, and one for the namespace as a whole; both are read from
counters that exist already. What it is not: a format (`exposition` has Prometheus's, `operator_api` JSON), nor a store of
past values: rates are differences between two readings.

Invariants:
    I1. A reading changes nothing, reads no message, and asks the store only for its size.
    I2. Rows are made one at a time, so that the caller may let other tasks run in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any

from isthmus.broker.namespace import Namespace
from isthmus.broker.zone import ZoneRow
from isthmus.entities.hub import EventHub
from isthmus.entities.port import Entity

__all__ = ["EntityRow", "NamespaceRow", "as_dict", "entity_rows", "namespace_row"]

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class EntityRow:
    """One entity. Names that end in `_total` count since the start of the process; the others are as of now.

    Attributes:
        entity: its path, as created.
        kind: `queue`, `topic`, `subscription` or `event hub`.
        active: messages that a receiver can get or has locked; events that are there.
        dead_letter: in the dead-letter queue.
        transfer: in the transfer queue and the transfer dead-letter queue.
        locked: part of `active`.
        sessions: that have messages, a state or a receiver.
        held_sessions: that a receiver has locked.
        size_bytes: of all messages, dead-lettered ones included.
        in_total: messages taken from senders.
        out_total: messages handed to receivers, also again.
        settled_total: completed, or deleted at delivery.
        dead_lettered_total: since the entity was made.
        refused_total: deliveries that were not taken.
    """

    entity: str
    kind: str
    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    deferred: int = 0
    transfer: int = 0
    locked: int = 0
    sessions: int = 0
    held_sessions: int = 0
    size_bytes: int = 0
    in_total: int = 0
    out_total: int = 0
    settled_total: int = 0
    expired_total: int = 0
    dead_lettered_total: int = 0
    refused_total: int = 0

    def values(self) -> Iterator[tuple[str, int]]:
        """Names and numbers."""
        return ((name, getattr(self, name)) for name in _NUMBERS)


_NUMBERS = tuple(field.name for field in fields(EntityRow) if field.name not in {"entity", "kind"})


@dataclass(frozen=True, slots=True)
class NamespaceRow:
    """The namespace as a whole.

    Attributes:
        entities: queues, topics, subscriptions, event hubs and hybrid connections.
        commit_classes: groups by the time from write to acknowledgement (`commit.COMMIT_SECONDS`, and one for longer).
        commit_operations: operations acknowledged by groups, so that operations / groups is the mean size of a group.
        waiting_bytes: taken from clients and not on disk yet.
        healthy: whether the disk took the last group.
        partition_stores: stores of partitioned entities; 0 where there are none.
        partition_stores_down: how many of them refuse changes now.
        unauthenticated_connections: over all protocols, whose client has shown no token.
        evicted_connections: closed since the start because there were too many of those.
        zones: the copies of the store; none where there is one only.
    """

    name: str
    uptime_seconds: float
    entities: int
    connections: int
    links: int
    waiting_bytes: int
    commits: int
    commit_failures: int
    commit_seconds: float
    commit_operations: int
    commit_classes: tuple[int, ...]
    resident_bytes: int
    cpu_seconds: float
    store_bytes: int
    healthy: bool
    partition_stores: int = 0
    partition_stores_down: int = 0
    unauthenticated_connections: int = 0
    evicted_connections: int = 0
    zones: tuple[ZoneRow, ...] = ()


def entity_rows(namespace: Namespace) -> Iterator[EntityRow]:
    """A row for each entity that existed at the call."""
    return chain(
        (entity_row(kind, member) for kind, member in namespace.engine.members() if not member.is_deleted),
        (event_hub_row(hub) for hub in namespace.engine.hubs.members() if not hub.is_deleted),
    )


def entity_row(kind: str, member: Entity) -> EntityRow:
    """The row of one entity."""
    source = member.source
    sessions = source.sessions if source is not None else None
    dead = source.dead_letters if source is not None else None
    waiting = source.transfer_count if source is not None else 0
    lost = member.transfer_dead_letters
    return EntityRow(
        entity=member.path,
        kind=kind,
        active=member.active_count - waiting + (member.leaving_count if waiting else 0),
        transfer=waiting + (lost.active_count if lost is not None else 0),
        dead_letter=dead.active_count if dead is not None else 0,
        scheduled=member.scheduled_count,
        deferred=member.deferred_count,
        locked=source.locked_count if source is not None else 0,
        sessions=sessions.session_count if sessions is not None else 0,
        held_sessions=sessions.session_lock_count if sessions is not None else 0,
        size_bytes=member.record_bytes + sum(each.record_bytes for each in (dead, lost) if each is not None),
        in_total=member.taken_total,
        out_total=member.delivered_total,
        settled_total=member.settled_total,
        expired_total=member.expired_total,
        # Its sequence numbers count what a dead-letter queue was ever given.
        dead_lettered_total=dead.last if dead is not None else 0,
        refused_total=member.refused_total,
    )


def event_hub_row(hub: EventHub) -> EntityRow:
    """The row of one event hub."""
    counts = hub.statistics()
    return EntityRow(
        entity=hub.name,
        kind="event hub",
        active=counts["event_count"],
        size_bytes=counts["size_bytes"],
        in_total=hub.taken_total,
        out_total=hub.delivered_total,
        expired_total=sum(partition.expired_total for partition in hub.partitions),
        refused_total=hub.refused_total,
    )


def namespace_row(namespace: Namespace) -> NamespaceRow:
    """The namespace now."""
    commits = namespace.commits
    classes, seconds, operations = commits.timing()
    stores = list(namespace.engine.stores or ())
    journals = [namespace.store, *(store.journal for store in stores if store.journal is not None)]
    peers = [peer.statistics() for peer in namespace.peers]
    counted = commits.statistics()
    return NamespaceRow(
        name=namespace.name,
        uptime_seconds=time.monotonic() - namespace.started_at,
        entities=len(namespace.engine.members())
        + len(namespace.engine.hubs)
        + len(namespace.engine.hybrid_connections),
        connections=len(peers),
        unauthenticated_connections=namespace.admission.strangers,
        evicted_connections=namespace.admission.evicted_total,
        links=sum(peer["links"] for peer in peers),
        waiting_bytes=sum(peer["waiting_bytes"] for peer in peers),
        commits=counted["commits"],
        commit_failures=counted["commit_failures"],
        commit_seconds=seconds,
        commit_operations=operations,
        commit_classes=tuple(classes),
        resident_bytes=_resident_bytes(),
        cpu_seconds=time.process_time(),
        store_bytes=sum(journal.statistics()["size_bytes"] for journal in journals) + namespace.engine.blobs.disk_bytes,
        healthy=commits.is_healthy,
        partition_stores=len(stores),
        partition_stores_down=sum(not store.is_up for store in stores),
        zones=tuple(namespace.zones()),
    )


def as_dict(row: EntityRow | NamespaceRow) -> dict[str, Any]:
    """The row as plain values."""
    values = {field.name: getattr(row, field.name) for field in fields(row)}
    if isinstance(row, NamespaceRow):
        values["zones"] = [zone._asdict() for zone in row.zones]
    return values


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0
