"""Prometheus's text format for the namespace's numbers.

What it is: names, help texts and lines (text exposition format 0.0.4). What it is not: the numbers (`statistics`).

Invariants:
    I1. Every name begins with `isthmus_namespace_` or `isthmus_entity_`, ends with its unit, and a counter with `_total`.
    I2. The lines of one name are together, below one HELP and one TYPE line.
    I3. An entity that is empty and had no traffic since the start has no line: ten thousand idle ones add nothing to a
        scrape. `isthmus_namespace_entities` counts them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from isthmus.broker.commit import COMMIT_SECONDS
from isthmus.broker.statistics import EntityRow, NamespaceRow
from isthmus.broker.zone import ZoneRow

__all__ = ["CONTENT_TYPE", "entity_text", "is_quiet", "namespace_text"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Field of the row, name, type, help.
_NAMESPACE = (
    ("uptime_seconds", "uptime_seconds", "gauge", "Seconds since the start."),
    ("healthy", "healthy", "gauge", "1 if the disk took the last group of changes."),
    ("partition_stores", "partition_stores", "gauge", "Stores of partitioned entities."),
    (
        "partition_stores_down",
        "partition_stores_down",
        "gauge",
        "Stores of partitioned entities that take nothing now.",
    ),
    ("entities", "entities", "gauge", "Queues, topics, subscriptions, event hubs and hybrid connections."),
    ("connections", "connections", "gauge", "Open AMQP connections."),
    (
        "unauthenticated_connections",
        "unauthenticated_connections",
        "gauge",
        "Open connections of all protocols whose client has shown no token.",
    ),
    (
        "evicted_connections",
        "evicted_connections_total",
        "counter",
        "Connections closed since the start because there were too many without a token.",
    ),
    ("links", "links", "gauge", "Attached links."),
    ("waiting_bytes", "waiting_bytes", "gauge", "Bytes taken from clients and not on disk yet."),
    ("resident_bytes", "resident_memory_bytes", "gauge", "Resident memory of the process."),
    ("cpu_seconds", "cpu_seconds_total", "counter", "Processor time of the process."),
    ("store_bytes", "store_size_bytes", "gauge", "What the store takes on its disk."),
    ("commit_failures", "commit_failures_total", "counter", "Groups of changes that the disk refused."),
    ("commit_operations", "commit_operations_total", "counter", "Operations acknowledged by group commits."),
)
_ENTITY = (
    ("active", "active_messages", "gauge", "Messages that a receiver can get or has locked."),
    ("dead_letter", "dead_letter_messages", "gauge", "Messages in the dead-letter queue."),
    ("scheduled", "scheduled_messages", "gauge", "Messages that are not due yet."),
    ("deferred", "deferred_messages", "gauge", "Messages that were deferred."),
    ("transfer", "transfer_messages", "gauge", "Messages in the transfer and transfer dead-letter queues."),
    ("locked", "locked_messages", "gauge", "Active messages that a receiver has locked."),
    ("sessions", "sessions", "gauge", "Sessions that have messages, a state or a receiver."),
    ("held_sessions", "held_sessions", "gauge", "Sessions that a receiver has."),
    ("size_bytes", "size_bytes", "gauge", "Stored bytes, dead-lettered messages included."),
    ("in_total", "received_messages_total", "counter", "Messages taken from senders since the start."),
    ("out_total", "delivered_messages_total", "counter", "Messages handed to receivers since the start."),
    ("settled_total", "settled_messages_total", "counter", "Messages completed, or deleted at delivery, since the start."),
    ("expired_total", "expired_messages_total", "counter", "Messages whose time to live was over, since the start."),
    ("dead_lettered_total", "dead_lettered_messages_total", "counter", "Messages dead-lettered since the entity was made."),
    ("refused_total", "refused_deliveries_total", "counter", "Deliveries refused since the start."),
)  # fmt: skip


def namespace_text(row: NamespaceRow) -> str:
    """The lines of the namespace as a whole."""
    lines: list[str] = []
    for field, name, kind, text in _NAMESPACE:
        full = f"isthmus_namespace_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}", f"{full} {float(getattr(row, field)):.15g}"]
    full = "isthmus_namespace_commit_seconds"
    lines += [f"# HELP {full} From the write of a group of changes to its acknowledgement.", f"# TYPE {full} histogram"]
    count = 0
    for bound, number in zip((*map(str, COMMIT_SECONDS), "+Inf"), row.commit_classes, strict=True):
        count += number
        lines.append(f'{full}_bucket{{le="{bound}"}} {count}')
    lines += [f"{full}_sum {row.commit_seconds:.6f}", f"{full}_count {count}"]
    lines += _zone_lines(row.zones)
    return "\n".join(lines) + "\n"


_ZONE: tuple[tuple[str, str, str, Callable[[ZoneRow], float]], ...] = (
    ("in_service", "gauge", "1 if the zone's copy of the store counts.", lambda row: row.state == "serving"),
    ("lag_seconds", "gauge", "For how long the zone's disk has been at work on one sync.", lambda row: row.lag_seconds),
    ("drops_total", "counter", "How often the zone was taken out of service.", lambda row: row.drops_total),
    ("resilvers_total", "counter", "How often the zone was brought up to date.", lambda row: row.resilvers_total),
)


def _zone_lines(rows: Sequence[ZoneRow]) -> Iterator[str]:
    if not rows:
        return
    for name, kind, text, value in _ZONE:
        full = f"isthmus_namespace_zone_{name}"
        yield from (f"# HELP {full} {text}", f"# TYPE {full} {kind}")
        yield from (f'{full}{{zone="{row.zone}"}} {float(value(row)):.15g}' for row in rows)


def is_quiet(row: EntityRow) -> bool:
    """Whether all numbers of an entity are 0."""
    return not any(number for _, number in row.values())


def entity_text(rows: Sequence[EntityRow]) -> Iterator[str]:
    """The lines of entities, in parts of some hundred lines."""
    labels = [f'{{entity="{_escaped(row.entity)}",kind="{row.kind}"}}' for row in rows]
    for field, name, kind, text in _ENTITY:
        full = f"isthmus_entity_{name}"
        yield f"# HELP {full} {text}\n# TYPE {full} {kind}\n"
        for start in range(0, len(rows), _PART):
            part = zip(rows[start : start + _PART], labels[start : start + _PART], strict=True)
            yield "".join([f"{full}{label} {getattr(row, field)}\n" for row, label in part])


_PART = 500


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
