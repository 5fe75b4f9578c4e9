"""The namespace's `$management` node: properties of event hubs and partitions.

What it is: the one operation READ for two types. What it is not: the `$management` nodes of queues and subscriptions
(`isthmus.broker.management`), whose replies use other property names.
Spec: docs/explanation/protocol.md, Event Hubs.

Invariants:
    I1. Every request gets exactly one reply with `status-code` and `status-description`.
    I2. A hub's properties are sent only with a right on it: of the connection, or of the token in the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.amqp.types import Array, Int, Timestamp
from isthmus.broker.link.condition import refusal
from isthmus.broker.link.request import Reply, Request, Respond
from isthmus.entities.hub import EventHub, EventHubs
from isthmus.errors import ArgumentOutOfRangeError, EntityNotFoundError, InvalidArgumentError, IsthmusError

__all__ = ["HubManagement"]

_HUB = "com.microsoft:eventhub"
_PARTITION = "com.microsoft:partition"
_STRINGS = 0xB1
# 0001-01-01T00:00:00Z, the service's value for a partition that never had an event.
_NEVER_MS = -62_135_596_800_000


class HubManagement:
    """The node, for one connection.

    Args:
        hubs: the namespace's event hubs.
        require: raises UnauthorizedError if neither the connection nor a token has any right on a path.
    """

    def __init__(self, hubs: EventHubs, require: Callable[[str, str | None], None]) -> None:
        self._hubs = hubs
        self._require = require

    def answer(self, request: Request, respond: Respond) -> None:
        """Answer a request; `respond` is called once."""
        try:
            body = self._read(request)
        except IsthmusError as error:
            status, condition, text = refusal(error)
            respond(Reply(status, text, None, condition))
        else:
            respond(Reply(200, "OK", body))

    def _read(self, request: Request) -> dict[str, Any]:
        kind = request.properties.get("type")
        if request.operation.upper() != "READ" or kind not in (_HUB, _PARTITION):
            raise InvalidArgumentError(
                f"The operation '{request.operation[:64]}' of type '{str(kind)[:64]}' is not known here; there is READ "
                f"of {_HUB} and {_PARTITION}."
            )
        name = _text(request.properties.get("name"))
        token = request.properties.get("security_token")
        self._require(name, _text(token) if token is not None else None)
        hub = self._hubs.find(name)
        if hub is None:
            raise EntityNotFoundError(name)
        if kind == _HUB:
            return self._hub(hub)
        return self._partition(hub, _text(request.properties.get("partition")))

    def _hub(self, hub: EventHub) -> dict[str, Any]:
        count = len(hub.partitions)
        return {
            "name": hub.name,
            "type": _HUB,
            "created_at": Timestamp(self._hubs.row(hub.name).created_at_ms),
            "partition_count": Int(count),
            "partition_ids": Array(_STRINGS, [str(index) for index in range(count)]),
            "georeplication_factor": Int(1),
        }

    @staticmethod
    def _partition(hub: EventHub, partition_id: str) -> dict[str, Any]:
        try:
            state = hub.partition(partition_id).committed
        except ArgumentOutOfRangeError as error:
            raise EntityNotFoundError(f"{hub.name}/Partitions/{partition_id}") from error
        return {
            "name": hub.name,
            "type": _PARTITION,
            "partition": partition_id,
            "begin_sequence_number": state.begin,
            "last_enqueued_sequence_number": state.next - 1,
            "last_enqueued_offset": str(state.last_offset) if state.next else "-1",
            "last_enqueued_time_utc": Timestamp(state.last_enqueued_ms if state.next else _NEVER_MS),
            "is_partition_empty": state.is_empty,
        }


def _text(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""
