"""A namespace's description of an event hub and its partitions.

What it is: non-blocking requests to the namespace's `$management` node, and their answers as values. What it is not: the
decisions based on them (`opening`).
Specification: Microsoft Learn, "Azure Event Hubs AMQP request/response operations".

Invariants:
    I1. A query is done when every answer has arrived, or one is a refusal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from isthmus.connectors.eventhubs.partition.address import MANAGEMENT
from isthmus.errors import EntityNotFoundError, IsthmusError, ProtocolError
from isthmus.transport.request import Reply, RequestLink

if TYPE_CHECKING:
    from isthmus.transport import Client

__all__ = ["HubQuery", "PartitionView"]

_HUB = "com.microsoft:eventhub"
_PARTITION = "com.microsoft:partition"


class PartitionView(NamedTuple):
    """A partition.

    Attributes:
        begin: the lowest existing sequence number, or the former one where there is none now.
        last: the highest sequence number so far; below `begin` where there was none.
        last_offset: offset of the last event.
        is_empty: whether there are no events.
    """

    begin: int
    last: int
    last_offset: str = ""
    is_empty: bool = False


class HubQuery:
    """One query of an event hub.

    Args:
        client: an open connection, authorized for the hub.
        hub: its name.
        mark: called when an answer has arrived.
        wanted: partitions to query; None: all.

    Attributes:
        partitions: their numbers, once they are known.
        views: the descriptions of the queried partitions.
        created_ms: when the event hub was created: a new one of the same name has another time; 0: unknown.
        error: why the query failed.
    """

    def __init__(
        self, client: Client, hub: str, mark: Callable[[], None], wanted: Collection[int] | None = None
    ) -> None:
        self._client, self._hub, self._mark, self._wanted = client, hub, mark, wanted
        self._links = RequestLink(client, MANAGEMENT, hub)
        self.partitions: list[int] = []
        self.views: dict[int, PartitionView] = {}
        self.created_ms = 0
        self.error: IsthmusError | None = None
        self._waiting: dict[int, Reply] = {}
        self._reply: Reply | None = self._ask({"type": _HUB})

    @property
    def is_done(self) -> bool:
        """Whether it waits for no answer."""
        return self.error is not None or (self._reply is None and not self._waiting)

    def advance(self) -> None:
        """Takes answers, and sends further requests."""
        if self._reply is not None and self._reply.done:
            reply, self._reply = self._reply, None
            try:
                self._took_hub(reply)
            except IsthmusError as error:
                self.error = error
        for number, reply in list(self._waiting.items()):
            if reply.done:
                del self._waiting[number]
                try:
                    self.views[number] = _view(_body(reply))
                except IsthmusError as error:
                    self.error = error

    def close(self) -> None:
        """Closes it."""
        self._mark = _nothing
        if self._client.error is None:
            self._links.close()

    def _answered(self) -> None:
        self._mark()

    def _took_hub(self, reply: Reply) -> None:
        body = _body(reply)
        ids = [str(each) for each in body.get("partition_ids") or ()]
        if not ids or not all(each.isdecimal() for each in ids):
            raise ProtocolError(f"event hub '{self._hub}': the namespace returned no partitions")
        self.partitions = sorted(map(int, ids))
        created = body.get("created_at")
        self.created_ms = int(created) if isinstance(created, int) else 0
        wanted = self.partitions if self._wanted is None else sorted(self._wanted)
        missing = [each for each in wanted if each not in self.partitions]
        if missing:
            raise EntityNotFoundError(f"{self._hub}/Partitions/{missing[0]}")
        for number in wanted:
            self._waiting[number] = self._ask({"type": _PARTITION, "partition": str(number)})

    def _ask(self, more: dict[str, Any]) -> Reply:
        properties: dict[str, Any] = {"operation": "READ", "name": self._hub, **more}
        endpoint = self._client.endpoint
        token = endpoint.credential.token(endpoint.audience(self._hub), time.time())
        if token is not None:
            properties["security_token"] = token.text
        reply = self._links.request(properties, None)
        reply.when_done(self._answered)
        return reply


def _body(reply: Reply) -> dict[str, Any]:
    if reply.error is not None:
        raise reply.error
    if not isinstance(reply.body, dict):
        raise ProtocolError(f"event hub '{reply.path}': the namespace's answer is not a map")
    return {
        (name.decode() if isinstance(name, bytes) else str(name)): (
            value.decode() if isinstance(value, bytes) else value
        )
        for name, value in reply.body.items()
    }


def _view(body: dict[str, Any]) -> PartitionView:
    begin, last = body.get("begin_sequence_number"), body.get("last_enqueued_sequence_number")
    if not isinstance(begin, int) or not isinstance(last, int):
        raise ProtocolError(f"partition {body.get('partition')}: the namespace returned no sequence numbers")
    return PartitionView(
        int(begin), int(last), str(body.get("last_enqueued_offset") or ""), bool(body.get("is_partition_empty"))
    )


def _nothing() -> None:
    """The callback of a closed query."""
