"""Entities in memory that an audit reads: two members of a task, and the sources of its routes."""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.amqp import section
from isthmus.amqp.section import Header
from isthmus.amqp.types import Long, Symbol, Timestamp
from isthmus.errors import EntityNotFoundError
from isthmus.message import digest
from isthmus.message.name import DIGEST, HOP_PROPERTIES
from isthmus.replication.verification.identity import identify
from isthmus.topology.model import Endpoint, Route

__all__ = ["AUDIT", "ROUTES", "Entities", "copied"]

AUDIT = {alias: Endpoint(alias, "flights/Subscriptions/audit") for alias in ("ewr", "jfk")}
ROUTES = [
    Route(
        name=f"flights.{source}.{target}",
        task="flights",
        pattern="all-active",
        source=Endpoint(source, f"flights/Subscriptions/isthmus.flights.{target}"),
        targets=(Endpoint(target, "flights"),),
    )
    for source, target in (("ewr", "jfk"), ("jfk", "ewr"))
]


def copied(origin: str, number: int, message_id: str, body: bytes = b"") -> dict[str, object]:
    """The provenance of a copy without a body."""
    hop = (f"{origin}/flights", origin, str(number), str(number), "2026-01-01T00:00:00.000Z")
    return {**dict(zip(HOP_PROPERTIES, hop, strict=True)), DIGEST: digest(message_id.encode(), body)}


class Entities:
    """Entities in memory; `moved` is called after each page of a reading, so that a test can move messages meanwhile."""

    def __init__(self) -> None:
        self.contents: dict[str, list[bytes]] = {str(endpoint): [] for endpoint in AUDIT.values()}
        self.contents |= {str(route.source): [] for route in ROUTES}
        self.next: dict[str, int] = {}
        self.opened: list[str] = []
        self.on_open: dict[str, list[tuple[str, str, int]]] = {}

    def put(
        self,
        path: str,
        number: int,
        *,
        origin: str = "",
        reason: str = "",
        message_id: str = "",
        at_ms: int = 0,
        ttl_ms: int | None = None,
        own: dict[str, object] | None = None,
        body: bytes = b"",
    ) -> None:
        properties: dict[str, object] = dict(own or {})
        if origin:
            properties |= copied(origin, number, message_id, body)
        if reason:
            properties["DeadLetterReason"] = reason
        annotations = {
            Symbol("x-opt-sequence-number"): Long(self.next.setdefault(path, 1)),
            Symbol("x-opt-enqueue-sequence-number"): Long(number),
            Symbol("x-opt-enqueued-time"): Timestamp(at_ms),
        }
        self.next[path] += 1
        self.contents.setdefault(path, []).append(
            section.encode_message(
                body,
                header=Header(ttl_ms=ttl_ms),
                annotations=annotations,
                properties={"message_id": message_id} if message_id else {},
                application_properties=properties,
            )
        )

    def peek(self, endpoint: Endpoint):
        path = str(endpoint)
        if path not in self.contents:
            raise EntityNotFoundError(path)
        self.opened.append(path)

        def read(from_sequence: int, count: int) -> Sequence[bytes]:
            messages = sorted(self.contents[path], key=lambda message: identify(message).sequence)
            return [m for m in messages if identify(m).sequence >= from_sequence][:count]

        return read
