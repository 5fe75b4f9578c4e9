"""The least rights that a federation needs at each namespace.

What it is: the entities that `run` reads and writes, those that `plan` and `apply` administer, and the permissions for them, per kind. What
it is not: testing the rights (`isthmus doctor`).

Invariants:
    I1. A namespace that no task uses needs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from isthmus.topology.canary import canary_subscription
from isthmus.topology.claim import CLAIM_TOPIC, claim_endpoint
from isthmus.topology.divert import wanted_by
from isthmus.topology.kind import KINDS
from isthmus.topology.model import Federation
from isthmus.topology.planning.wanted import wanted_of
from isthmus.topology.route import routes

__all__ = ["Rights", "rights"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The rights that isthmus needs at one namespace.

    Attributes:
        alias: alias of the namespace.
        kind: kind of the namespace.
        listen: entities that `run` receives from; for Service Bus also that of its claims.
        send: entities that `run` sends to.
        manage: entities that `plan` and `apply` observe and create; none for `run`.
        granted_by: right → the permission that grants it.
    """

    alias: str
    kind: str
    listen: tuple[str, ...] = ()
    send: tuple[str, ...] = ()
    manage: tuple[str, ...] = ()
    granted_by: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """The rights as plain values for `--json`."""
        return asdict(self)


def rights(federation: Federation) -> list[Rights]:
    """The least rights at each namespace that a task uses, in the file's order."""
    found = []
    for alias, namespace in federation.namespaces.items():
        moved = routes(federation)
        claims = [each for each in moved if each.is_claimed and each.claim_alias == alias]
        listen = [route.source.entity for route in moved if route.source.alias == alias]
        # Setting the state of a session needs the session's lock.
        listen += [
            route.target.entity
            for route in moved
            if route.options.session_state == "copy" and route.target.alias == alias
        ]
        canaries = [route for route in moved if route.options.canary_ms]
        listen += [
            f"{route.target.entity}/Subscriptions/{canary_subscription(route.task)}"
            for route in canaries
            if route.target.alias == alias
        ]
        listen += [claim_endpoint(route.task, alias).entity for route in claims]
        send = [target.entity for route in moved for target in route.sent_to if target.alias == alias]
        send += [route.entered for route in canaries if route.source.alias == alias]
        send += [CLAIM_TOPIC] if claims else []
        wanted = [entity.name for task in federation.tasks.values() for at, entity in wanted_by(task) if at == alias]
        # Mailboxes belong to no pattern.
        wanted += [entity.name for task in federation.tasks.values() for at, entity in wanted_of(task) if at == alias]
        wanted = [name for name in wanted if name != CLAIM_TOPIC]
        manage = [*wanted, *([CLAIM_TOPIC] if claims else [])]
        if not (listen or send or manage):
            continue
        found.append(
            Rights(
                alias=alias,
                kind=namespace.kind,
                listen=tuple(dict.fromkeys(listen)),
                send=tuple(dict.fromkeys(send)),
                manage=tuple(dict.fromkeys(manage)),
                granted_by=KINDS[namespace.kind].granted_by,
            )
        )
    return found
