"""A connection's interface to event hubs: which addresses are theirs, and the handler of a link to one.

What it is: the decision about links to event hubs, for all connections of a namespace. What it is not: rights and tokens
(the connection's own), or what happens on the links (`receiver link`, `sender link`).
Spec: docs/explanation/protocol.md, Links, Event Hubs.

Invariants:
    I1. A path belongs to event hubs only if its first segment is an event hub's name: names are unique among queues, topics
        and event hubs.
    I2. A link is decided after its right was checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from isthmus.amqp import Link, Role
from isthmus.amqp.performative import Source
from isthmus.amqp.types import Described
from isthmus.broker.hub.address import HubAddress, parse_hub_address
from isthmus.broker.hub.management import HubManagement
from isthmus.broker.hub.metric import RUNTIME_METRIC
from isthmus.broker.hub.ownership import Ownership
from isthmus.broker.hub.receiver_link import HubReceiverLink
from isthmus.broker.hub.sender_link import HubSenderLink
from isthmus.broker.security.grant import Right
from isthmus.clock import Clock
from isthmus.entities.hub import Cursor, EventHub, EventHubs, Selector, parse_selector
from isthmus.errors import EntityNotFoundError, InvalidArgumentError, IsthmusError, NotAllowedError

__all__ = ["HUB_NODE", "HubGate"]

HUB_NODE = "$management"

_SELECTOR = "apache.org:selector-filter:string"
_EPOCH = "com.microsoft:epoch"
_RECEIVER_NAME = "com.microsoft:receiver-name"
_PRESETTLED = 1
# By how much a transfer may exceed the limit and still be read to its end, so that it is rejected by itself.
_OVERSIZE_BYTES = 16 << 20


class _Client(Protocol):
    """The connection of a link."""

    @property
    def name(self) -> str:
        """Address of the client."""
        ...

    @property
    def is_writable(self) -> bool:
        """Whether the wire takes more bytes now."""
        ...

    def flush(self) -> None:
        """Sends queued bytes now."""
        ...

    def touch(self) -> None:
        """Sends queued bytes at the end of the loop's iteration."""
        ...


class HubGate:
    """The event hubs of a namespace, for its connections.

    Args:
        hubs: the event hubs.
        clock: wall time of events.
    """

    def __init__(self, hubs: EventHubs, clock: Clock) -> None:
        self._hubs = hubs
        self._clock = clock
        self._ownership = Ownership()

    def claims(self, path: str) -> bool:
        """Whether a path is an event hub's, or below one."""
        return path.partition("/")[0] in self._hubs

    def attach(
        self,
        link: Link,
        path: str,
        client: _Client,
        *,
        require: Callable[[str, Right], None],
        account: Callable[[int], None],
        lose: Callable[[Any], None],
        drop: Callable[[Link, IsthmusError], None],
    ) -> HubReceiverLink | HubSenderLink:
        """Decides about a link, and answers its attach.

        Args:
            link: the client's.
            path: its address, which `claims` claimed.
            client: the connection.
            require: raises UnauthorizedError if the connection lacks a right on a path.
            account: called with the link's bytes that begin or cease to wait for the disk.
            lose: as for `HubReceiverLink`.
            drop: detaches a link of the connection with an error.

        Raises:
            IsthmusError: refused, and why.
        """
        right = Right.SEND if link.role is Role.RECEIVER else Right.LISTEN
        require(path, right)
        address = parse_hub_address(path)
        hub = self._hubs.find(address.hub) if address is not None else None
        if address is None or hub is None:
            raise EntityNotFoundError(path)
        if right is Right.SEND:
            return self._attach_receiver_link(link, path, hub, address, account, lose)
        return self._attach_sender_link(link, path, hub, address, client, drop)

    def management(self, require: Callable[[str, str | None], None]) -> HubManagement:
        """The `$management` node for one connection; `require` as for `HubManagement`."""
        return HubManagement(self._hubs, require)

    def statistics(self) -> dict[str, int]:
        """How many event hubs and receivers there are."""
        return {"event_hubs": len(self._hubs), **self._ownership.statistics()}

    def _attach_receiver_link(
        self,
        link: Link,
        path: str,
        hub: EventHub,
        address: HubAddress,
        account: Callable[[int], None],
        lose: Callable[[Any], None],
    ) -> HubReceiverLink:
        if address.group is not None:
            raise NotAllowedError(f"'{path}' takes no sends; send to the event hub or to one of its partitions.")
        hub.check_sendable()
        partition = None if address.partition is None else hub.partition(address.partition)
        limit_bytes = hub.max_message_size_bytes
        link.accept(max_message_size=limit_bytes)
        link.max_message_size_bytes = limit_bytes + _OVERSIZE_BYTES
        receiver_link = HubReceiverLink(link, path, hub, partition, account, lose)
        receiver_link.open()
        return receiver_link

    def _attach_sender_link(
        self,
        link: Link,
        path: str,
        hub: EventHub,
        address: HubAddress,
        client: _Client,
        drop: Callable[[Link, IsthmusError], None],
    ) -> HubSenderLink:
        if address.group is None or address.partition is None:
            raise NotAllowedError(
                f"'{path}' gives no events; receive from '{hub.name}/ConsumerGroups/<group>/Partitions/<id>'."
            )
        hub.check_receivable()
        group = hub.group(address.group)
        partition = hub.partition(address.partition)
        properties = {str(key): value for key, value in (link.properties or {}).items()}
        epoch = _epoch(properties.get(_EPOCH))
        name = str(properties.get(_RECEIVER_NAME) or link.name)
        self._ownership.check(partition, group, name, epoch)
        start = partition.locate(_selector(link.source))
        wants_metric = RUNTIME_METRIC in map(str, link.desired_capabilities)
        link.snd_settle_mode = _PRESETTLED
        link.accept(offered_capabilities=[RUNTIME_METRIC] if wants_metric else None)

        def expel(error: IsthmusError) -> None:
            drop(link, error)
            client.touch()

        sender_link = HubSenderLink(
            link,
            path,
            hub,
            Cursor(partition, start),
            client,
            name=name,
            epoch=epoch,
            expel=expel,
            leave=lambda gone: self._ownership.leave(partition, group, gone),
            metric_clock=self._clock if wants_metric else None,
        )
        self._ownership.add(partition, group, sender_link)
        return sender_link


def _epoch(value: Any) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InvalidArgumentError(
            f"The value of {_EPOCH} is {str(value)[:64]!r}; a whole number from 0 on is expected."
        )
    return int(value)


def _selector(source: Any) -> Selector:
    filters = (source.filter or {}) if isinstance(source, Source) else {}
    for key, value in filters.items():
        if str(key) == _SELECTOR:
            expression = value.value if isinstance(value, Described) else value
            if isinstance(expression, bytes):
                expression = expression.decode("utf-8", "replace")
            if not isinstance(expression, str):
                raise InvalidArgumentError(f"The filter {_SELECTOR} holds no text.")
            return parse_selector(expression)
    return Selector()
