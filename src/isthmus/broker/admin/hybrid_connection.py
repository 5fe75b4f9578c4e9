"""Hybrid connections in the administration API.

What it is: get, list, create, update and delete over the engine's hybrid connections, and their document. What it is not: the
relay itself (`isthmus.broker.relay`), nor other entities (`operation`), which share names and errors with these.
Spec: the document `HybridConnectionDescription` as the service's client for .NET reads it (Azure/azure-relay-dotnet,
`HybridConnectionRuntimeInformation`).

Invariants:
    I1. An update replaces the whole description: omitted settings take their defaults.
    I2. A request that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.broker.admin import atom, setting
from isthmus.broker.admin.address import Resource
from isthmus.broker.admin.description import INSTANCE, read_rules, write_rules
from isthmus.broker.admin.document import Node, element, text_element
from isthmus.broker.admin.filter import Listed, parse_filter
from isthmus.broker.admin.request import Answer, Request, check_etag, page, status_of
from isthmus.broker.admin.setting import Setting
from isthmus.clock import Clock
from isthmus.entities.hybrid_connection import HybridConnectionDescription, HybridConnectionRow, HybridConnections

__all__ = ["HybridConnectionOperations"]

_AUTHORIZATION = Setting("RequiresClientAuthorization", "requires_client_authorization", setting.boolean)
_METADATA = Setting("UserMetadata", "user_metadata", setting.text)
_STATUS = Setting("Status", "status", setting.status)


class HybridConnectionOperations:
    """The operations on the hybrid connections of one engine; `None` or `False` where a request is about something else.

    Args:
        hybrids: the hybrid connections.
        clock: for feeds' times.
        namespace: the namespace's name.
        listeners: how many listeners one has, by its name.
    """

    def __init__(
        self, hybrids: HybridConnections, clock: Clock, namespace: str, listeners: Callable[[str], int]
    ) -> None:
        self._hybrids = hybrids
        self._clock = clock
        self._namespace = namespace
        self._listeners = listeners

    def get(self, request: Request) -> Answer | None:
        """One hybrid connection, or a page of them."""
        at = request.address
        if at.resource is Resource.HYBRID_CONNECTIONS:
            rows = _chosen(request, [self._hybrids.row(name) for name in self._hybrids.names()])
            return page(request, self._clock.wall_ms(), "HybridConnections", rows, lambda row: self._one(request, row))
        if at.resource is Resource.ENTITY and at.entity in self._hybrids:
            return self._one(request, self._hybrids.row(at.entity))
        return None

    def put(self, request: Request, node: Node) -> Answer:
        """Create a hybrid connection, or with If-Match replace its description.

        Raises:
            IsthmusError: the request is refused.
        """
        name = request.address.entity
        current = self._hybrids.row(name) if request.if_match is not None else None
        if current is not None and request.if_match is not None:
            check_etag(request.if_match, current.updated_at_ms)
        wanted = HybridConnectionDescription()
        for row in (_AUTHORIZATION, _METADATA, _STATUS):
            if (text := node.find_text(row.name)) is not None:
                setattr(wanted, row.field, row.parse(text))
        if (rules := node.find("AuthorizationRules")) is not None:
            existing = current.description.authorization_rules if current is not None else []
            wanted.authorization_rules = read_rules(rules, existing, self._clock.wall_ms())
        (self._hybrids.create if current is None else self._hybrids.update)(name, wanted)
        return self._one(request, self._hybrids.row(name), changed=True)

    def delete(self, request: Request) -> bool:
        """Remove a hybrid connection; whether the request was about one."""
        at = request.address
        if at.resource is not Resource.ENTITY or at.entity not in self._hybrids:
            return False
        if request.if_match is not None:
            check_etag(request.if_match, self._hybrids.row(at.entity).updated_at_ms)
        self._hybrids.delete(at.entity)
        return True

    def _one(self, request: Request, row: HybridConnectionRow, *, changed: bool = False) -> Answer:
        found = row.description
        parts = [
            text_element("CreatedAt", atom.format_time(row.created_at_ms)),
            text_element("UpdatedAt", atom.format_time(row.updated_at_ms)),
            text_element(_AUTHORIZATION.name, str(found.requires_client_authorization).lower()),
            write_rules(found.authorization_rules),
            text_element(_METADATA.name, found.user_metadata) if found.user_metadata is not None else "",
            text_element("ListenerCount", str(self._listeners(row.name))),
            text_element(_STATUS.name, str(found.status)),
        ]
        described = element(
            "HybridConnectionDescription", "".join(parts), {"xmlns": atom.SERVICE_BUS, "xmlns:i": INSTANCE}
        )
        body = atom.entry(
            request.origin,
            row.name,
            row.name,
            described,
            published_ms=row.created_at_ms,
            updated_ms=row.updated_at_ms,
            author=self._namespace,
        )
        return Answer(status_of(request, changed), body, updated_at_ms=row.updated_at_ms)


def _chosen(request: Request, rows: list[HybridConnectionRow]) -> list[HybridConnectionRow]:
    """The hybrid connections that the request's filter selects."""
    if not request.filter:
        return rows
    selects: Callable[[Listed], bool] = parse_filter(request.filter)
    return [row for row in rows if selects(Listed(row.name, 0, row.created_at_ms, row.updated_at_ms, 0))]
