"""A route of a federation as the processes that carry it are told of it.

What it is: a pure mapping from the topology's route to the bridge's description of a route. What it is not: the query that
carries it (`isthmus.replication.shared_run`), nor the options' meaning, which the connectors declare.

Invariants:
    I1. Options hold references to secrets, never secrets.
    I2. A route's claim is that of its task at its source's namespace; no two such pairs have the same key.
"""

from __future__ import annotations

from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.replication.reach import namespace_options
from isthmus.topology.model import Federation, Route

__all__ = ["claim_key", "route_spec"]


def claim_key(task: str, alias: str) -> str:
    """The key of a task's claim at a namespace; an alias holds no `/`."""
    return f"{alias}/{task}"


def route_spec(route: Route, federation: Federation, *, only_present: bool = False) -> RouteSpec:
    """Describe a route.

    Args:
        route: the route.
        federation: its federation, with absolute paths.
        only_present: end when what stands at the source at the beginning is moved.
    """
    source, target = (federation.namespaces[each.alias] for each in (route.source, route.target))
    options = route.options
    return RouteSpec(
        name=route.name,
        source=End(
            source.kind,
            source.alias,
            namespace_options(source)
            | {"entity": route.source.entity, "lock_seconds": str(options.lock_duration_ms / 1000)},
        ),
        target=End(
            target.kind,
            target.alias,
            namespace_options(target)
            | {
                "entity": route.target.entity,
                "origin": f"{route.source.alias}/{route.source.entity.partition('/Subscriptions/')[0]}",
                "target": route.target.alias,
                "mark": options.mark,
                "mark_value": "number" if options.mark_is_number else "message-id",
                "duplicates": options.duplicates,
                "trusts_provenance": "true" if options.steps else "false",
            }
            | ({"policy": policy} if (policy := options.policy.to_text()) else {}),
        ),
        claim=claim_key(route.task, route.source.alias),
        ordered=options.ordering == "ordered",
        only_present=only_present,
        block_refused=options.refused == "block",
        steps=options.steps,
    )
