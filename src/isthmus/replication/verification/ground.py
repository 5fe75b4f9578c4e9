"""Flows that are audited together, converted to the parameters of an audit.

What it is: which entities are read, their labels, and the passages between them. Pure. What it is not: the choice of flows
(`isthmus.replication.verification.verify`), or the reading (`isthmus.replication.verification.audit.audit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from isthmus.replication.verification.audit.passage import Passage
from isthmus.topology.model import Endpoint, Flow, Route

__all__ = ["SUBSCRIPTIONS", "Ground", "ground_of"]

SUBSCRIPTIONS = "/Subscriptions/"


class Ground(NamedTuple):
    """Flows that are audited together, as the parameters of an audit.

    Attributes:
        entities: by label, the entities that are read to their end.
        passages: the flows as passages.
        origins: by the entity that messages enter, or that they are first copied from, the origin's label.
        detection_ms: by label, the history window of duplicate detection.
        shared: labels of the entities that applications consume.
        ttl_ms: by label, the time to live that an entity gives its messages.
    """

    entities: Mapping[str, Endpoint]
    passages: Sequence[Passage]
    origins: Mapping[Endpoint, str]
    detection_ms: Mapping[str, int]
    shared: frozenset[str]
    ttl_ms: Mapping[str, int]


def ground_of(flows: Sequence[Flow], chosen: Mapping[str, Route]) -> Ground:
    """Converts flows to the parameters of an audit.

    Args:
        flows: those that are audited together.
        chosen: the task's routes by name.
    """
    label = _labels(
        [end for flow in flows for end in (flow.witness if flow.witness.entity else flow.origin, flow.target)]
    )
    entities: dict[str, Endpoint] = {}
    passages = []
    origins: dict[Endpoint, str] = {}
    detection_ms: dict[str, int] = {}
    ttl_ms: dict[str, int] = {}
    shared = set()
    for flow in flows:
        origin = label(flow.witness if flow.witness.entity else flow.origin)
        member = label(flow.target)
        if flow.witness.entity:
            entities[origin] = flow.witness
            ttl_ms[origin] = flow.audit_ms
            shared |= {origin} if flow.origin_is_consumed else set()
        shared |= {member} if flow.target_is_consumed else set()
        passed = tuple(chosen[name] for name in flow.routes if name in chosen)
        passages.append(
            Passage(
                origin=origin,
                member=member,
                routes=passed,
                is_witnessed=bool(flow.witness.entity),
                is_consumed=flow.origin_is_consumed or flow.target_is_consumed,
                is_filtered=bool(flow.filter),
                filter="" if flow.goes_alone else flow.filter,
                expires_ms=flow.expires_ms,
                changes=flow.changes,
                drops=flow.drops,
                by_content=flow.origin_is_recorded,
                keeps_numbers=flow.target.is_table,
                forwards=flow.origin if passed and flow.origin.entity != passed[0].entered else None,
                diverts=flow.diverts,
                divert_detection_ms=flow.divert_detection_ms,
            )
        )
        for source in (flow.origin, *(route.source for route in passed[:1])):
            origins.setdefault(Endpoint(source.alias, source.entity.partition(SUBSCRIPTIONS)[0]), origin)
    for flow in flows:
        member = label(flow.target)
        entities.setdefault(member, flow.target)
        detection_ms[member] = flow.detection_ms
        ttls_ms = [each for each in (flow.audit_ms, flow.expires_ms) if each]
        ttl_ms.setdefault(member, min(ttls_ms, default=0))
    return Ground(entities, passages, origins, detection_ms, frozenset(shared), ttl_ms)


def _labels(ends: Iterable[Endpoint]) -> Callable[[Endpoint], str]:
    """Labels of entities: the alias where only one entity is meant there, else with queue or topic, else with the whole path."""
    by_alias: dict[str, dict[str, set[str]]] = {}
    for end in ends:
        by_alias.setdefault(end.alias, {}).setdefault(end.entity.partition(SUBSCRIPTIONS)[0], set()).add(end.entity)

    def label(end: Endpoint) -> str:
        entities = by_alias[end.alias]
        base = end.entity.partition(SUBSCRIPTIONS)[0]
        if len(entities[base]) > 1:
            return str(end)
        return f"{end.alias}/{base}" if len(entities) > 1 else end.alias

    return label
