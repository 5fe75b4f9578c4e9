"""Event hubs and their consumer groups in the administration API.

What it is: get, list, create, update and delete over the engine's event hubs, and their documents. What it is not: queues
and topics (`operation`), which share names and errors with these.
Spec: docs/explanation/protocol.md, Event Hubs; learn.microsoft.com/rest/api/eventhub (create-event-hub, create-consumer-group).

Invariants:
    I1. An update replaces the settings of the service's description; settings that only this namespace has (size retention,
        the size of a transfer) and the consumer groups stay.
    I2. A request that is refused has changed nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from isthmus.broker.admin import atom, setting
from isthmus.broker.admin.address import Resource
from isthmus.broker.admin.description import INSTANCE, read_rules, write_rules
from isthmus.broker.admin.document import Node, element, text_element
from isthmus.broker.admin.filter import Listed, parse_filter
from isthmus.broker.admin.request import Answer, Request, check_etag, page, status_of
from isthmus.broker.admin.setting import Setting
from isthmus.clock import Clock
from isthmus.entities.hub import DEFAULT_CONSUMER_GROUP, EventHub, EventHubDescription, EventHubs, HubRow
from isthmus.errors import EntityExistsError, EntityNotFoundError, InvalidArgumentError, NotAllowedError

__all__ = ["EventHubOperations"]

_DAY_MS = 86_400_000
_ARRAYS = "http://schemas.microsoft.com/2003/10/Serialization/Arrays"

_RETENTION = Setting("MessageRetentionInDays", "message_retention_ms", setting.number)
_STATUS = Setting("Status", "status", setting.status)
_METADATA = Setting("UserMetadata", "user_metadata", setting.text)
_PARTITIONS = Setting("PartitionCount", "partition_count", setting.number)


class EventHubOperations:
    """The operations on the event hubs of one engine; `None` or `False` where a request is about something else.

    Args:
        hubs: the event hubs.
        clock: for feeds' times.
        namespace: the namespace's name.
    """

    def __init__(self, hubs: EventHubs, clock: Clock, namespace: str) -> None:
        self._hubs = hubs
        self._clock = clock
        self._namespace = namespace

    def get(self, request: Request) -> Answer | None:
        """An event hub, a consumer group, or a page of them."""
        at, now_ms = request.address, self._clock.wall_ms()
        match at.resource:
            case Resource.EVENT_HUBS:
                rows = _chosen(request, [self._hubs.row(name) for name in self._hubs.names()])
                return page(request, now_ms, "Event Hubs", rows, lambda row: self._hub(request, row))
            case Resource.ENTITY if at.entity in self._hubs:
                return self._hub(request, self._hubs.row(at.entity))
            case Resource.CONSUMER_GROUPS:
                if request.filter:
                    raise InvalidArgumentError("Consumer groups are listed without a $filter.")
                row = self._hubs.row(at.entity)
                groups = sorted([DEFAULT_CONSUMER_GROUP, *row.description.consumer_groups], key=str.lower)
                return page(request, now_ms, "ConsumerGroups", groups, lambda name: self._group(request, row, name))
            case Resource.CONSUMER_GROUP if (hub := self._hubs.find(at.entity)) is not None and _has(hub, at.group):
                return self._group(request, self._hubs.row(at.entity), hub.group(at.group))
        return None

    def put(self, request: Request, node: Node) -> Answer:
        """Create an event hub or a consumer group, or with If-Match replace an event hub's description.

        Raises:
            IsthmusError: the request is refused.
        """
        if request.address.resource is Resource.CONSUMER_GROUP:
            return self._put_group(request, node)
        name = request.address.entity
        current = self._hubs.row(name) if request.if_match is not None else None
        if current is not None and request.if_match is not None:
            check_etag(request.if_match, current.updated_at_ms)
        wanted = _read(node, current.description if current is not None else None, self._clock.wall_ms())
        change = self._hubs.create if current is None else self._hubs.update
        change(name, wanted)
        return self._hub(request, self._hubs.row(name), changed=True)

    def delete(self, request: Request) -> bool:
        """Remove an event hub with its events, or a consumer group; whether the request was about one.

        Raises:
            EntityNotFoundError: there is no such consumer group.
            NotAllowedError: it is the default one.
        """
        at = request.address
        match at.resource:
            case Resource.ENTITY if at.entity in self._hubs:
                if request.if_match is not None:
                    check_etag(request.if_match, self._hubs.row(at.entity).updated_at_ms)
                self._hubs.delete(at.entity)
            case Resource.CONSUMER_GROUP:
                row = self._hubs.row(at.entity)
                left = [group for group in row.description.consumer_groups if group.lower() != at.group.lower()]
                if at.group.lower() == DEFAULT_CONSUMER_GROUP.lower():
                    raise NotAllowedError(f"The consumer group '{DEFAULT_CONSUMER_GROUP}' cannot be removed.")
                if len(left) == len(row.description.consumer_groups):
                    raise EntityNotFoundError(at.path)
                self._hubs.update(at.entity, replace(row.description, consumer_groups=left))
            case _:
                return False
        return True

    def _put_group(self, request: Request, node: Node) -> Answer:
        at = request.address
        row, hub = self._hubs.row(at.entity), self._hubs.find(at.entity)
        exists = hub is not None and _has(hub, at.group)
        groups = row.description.consumer_groups
        if request.if_match is None:
            if exists:
                raise EntityExistsError(at.path)
            groups = [*groups, at.group]
        elif not exists:
            raise EntityNotFoundError(at.path)
        metadata = dict(row.description.consumer_group_metadata)
        metadata.pop(at.group.lower(), None)
        if (text := node.find_text(_METADATA.name)) is not None:
            metadata[at.group.lower()] = _METADATA.parse(text)
        self._hubs.update(at.entity, replace(row.description, consumer_groups=groups, consumer_group_metadata=metadata))
        return self._group(request, self._hubs.row(at.entity), at.group, changed=True)

    def _hub(self, request: Request, row: HubRow, *, changed: bool = False) -> Answer:
        body = atom.entry(
            request.origin,
            row.name,
            row.name,
            _write(row),
            published_ms=row.created_at_ms,
            updated_ms=row.updated_at_ms,
            author=self._namespace,
        )
        return Answer(status_of(request, changed), body, updated_at_ms=row.updated_at_ms)

    def _group(self, request: Request, row: HubRow, name: str, *, changed: bool = False) -> Answer:
        parts = text_element("CreatedAt", atom.format_time(row.created_at_ms))
        parts += text_element("UpdatedAt", atom.format_time(row.updated_at_ms))
        metadata = row.description.consumer_group_metadata.get(name.lower())
        if metadata is not None:
            parts += text_element(_METADATA.name, metadata)
        body = atom.entry(
            request.origin,
            f"{row.name}/ConsumerGroups/{name}",
            name,
            _described("ConsumerGroupDescription", parts),
            published_ms=row.created_at_ms,
            updated_ms=row.updated_at_ms,
        )
        return Answer(status_of(request, changed), body)


def _read(node: Node, current: EventHubDescription | None, now_ms: int) -> EventHubDescription:
    """The description in an element; omitted settings take their defaults, but the number of partitions never decreases."""
    wanted = EventHubDescription()
    if current is not None:
        wanted = replace(
            current, message_retention_ms=wanted.message_retention_ms, status=wanted.status, user_metadata=None,
            authorization_rules=[],
        )  # fmt: skip
    for row in (_RETENTION, _STATUS, _METADATA, _PARTITIONS):
        text = node.find_text(row.name)
        if text is None:
            continue
        value: Any = row.parse(text)
        if row is _RETENTION:
            same = current is not None and value == _days(current.message_retention_ms)
            value = current.message_retention_ms if current is not None and same else value * _DAY_MS
        setattr(wanted, row.field, value)
    if (rules := node.find("AuthorizationRules")) is not None:
        wanted.authorization_rules = read_rules(rules, current.authorization_rules if current else [], now_ms)
    return wanted


def _write(row: HubRow) -> str:
    found = row.description
    ids = "".join(text_element("d2p1:string", str(index)) for index in range(len(row.numbers)))
    parts = [
        text_element("MessageRetentionInDays", str(_days(found.message_retention_ms))),
        write_rules(found.authorization_rules),
        text_element("Status", str(found.status)),
        text_element("CreatedAt", atom.format_time(row.created_at_ms)),
        text_element("UpdatedAt", atom.format_time(row.updated_at_ms)),
        text_element("PartitionCount", str(len(row.numbers))),
        element("PartitionIds", ids, {"xmlns:d2p1": _ARRAYS}),
        text_element("EntityAvailabilityStatus", "Available"),
    ]
    if found.user_metadata is not None:
        parts.insert(3, text_element("UserMetadata", found.user_metadata))
    return _described("EventHubDescription", "".join(parts))


def _described(name: str, inside: str) -> str:
    return element(name, inside, {"xmlns": atom.SERVICE_BUS, "xmlns:i": INSTANCE})


def _days(retention_ms: int) -> int:
    """In whole days, as the service shows it; a retention with a fraction of a day, which only the file can set, is rounded up."""
    return -(-retention_ms // _DAY_MS)


def _has(hub: EventHub, group: str) -> bool:
    try:
        hub.group(group)
    except EntityNotFoundError:
        return False
    return True


def _chosen(request: Request, rows: list[HubRow]) -> list[HubRow]:
    """The event hubs that the request's filter selects."""
    if not request.filter:
        return rows
    selects: Callable[[Listed], bool] = parse_filter(request.filter)
    return [row for row in rows if selects(Listed(row.name, 0, row.created_at_ms, row.updated_at_ms, 0))]
