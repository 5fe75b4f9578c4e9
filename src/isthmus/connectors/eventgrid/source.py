"""A subscription of an Event Grid namespace as a source: the requests of `isthmus.connectors.pull`.

What it is: receiving, acknowledging, releasing, renewing and rejecting. What it is not: when (`pull.lock_account`), or push delivery
(`isthmus.connectors.listen`). Specification: Microsoft Learn, "Azure Event Grid data plane REST API" (2024-06-01): Receive Cloud Events,
Acknowledge, Release, Reject, Renew Cloud Event Locks.

Invariants:
    I1. An event is rejected only if the options state that the subscription keeps rejected events.
    I2. A lock token that the service does not accept is reported as lost, never as an error.
    I3. An unreadable event is reported as unreadable; the others of the same receive are delivered.
    I4. No message expires sooner than its TimeToLive after it was received: Event Grid does not report when an event was published.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.eventgrid.mapping import message_of, name_of, time_ms_of
from isthmus.connectors.eventgrid.option import PullOptions
from isthmus.connectors.eventgrid.service import EventGrid
from isthmus.connectors.http.client import Answer
from isthmus.connectors.pull.puller import Lease, Pulled, PullError
from isthmus.connectors.secret import scrub
from isthmus.connectors.wrap.arrival import annotated, message_id_of
from isthmus.errors import IsthmusError
from isthmus.message.json_number import read_json, write_json
from isthmus.message.lifetime import TTL_LIMIT_MS

__all__ = ["EventGridPuller"]

BATCH = 100
# How long the service waits for an event: at least 10 s, by its contract.
WAIT_SECONDS = 10
_FATAL = frozenset({400, 401, 403, 404, 405, 410})
_HINTS = {
    401: "check key, or give the identity the role EventGrid Data Receiver",
    403: "give the identity the role EventGrid Data Receiver",
    404: "check topic and subscription; the subscription has to have pull delivery",
}


class EventGridPuller:
    """Requests of one subscription.

    Args:
        options: of the source.
        wall: wall clock, in seconds.
    """

    batch = BATCH
    settle_batch = BATCH
    max_deliveries = 0

    def __init__(self, options: PullOptions, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self.entity = f"{options.entity}/{options.subscription}"
        self._options = options
        self._service: EventGrid | None = None
        self._receiving: EventGrid | None = None  # separate, so that a waiting receive can be ended alone

    @property
    def clock_offset_ms(self) -> int | None:
        """Always None: the service reports no time."""
        return None

    def open(self) -> str:
        """Connects.

        Raises:
            PullError: it cannot connect.
        """
        self.close()
        try:
            self._service = EventGrid(self._options.service)
            self._receiving = EventGrid(self._options.service, WAIT_SECONDS)
            self._service.connect()
        except IsthmusError as error:
            raise PullError(str(error), not error.retryable) from None
        except OSError as error:
            raise self._failed("connect", error) from None
        return self._service.identity

    def receive(self, count: int) -> Sequence[Pulled]:
        """The next events; they are locked."""
        answer = self._ask("receive", None, f"&maxEvents={min(count, BATCH)}&maxWaitTime={WAIT_SECONDS}")
        return [self._pulled(each) for each in _object(answer).get("value", ())]

    def _pulled(self, found: Any) -> Pulled:
        event, broker = found["event"], found["brokerProperties"]
        name = name_of(event)
        lease = Lease(name, str(broker["lockToken"]), self._options.lock_seconds)
        deliveries = int(broker.get("deliveryCount") or 1)
        message_id = message_id_of(name.encode("ascii", "backslashreplace").decode())
        try:
            made = self._message(event, name, message_id)
        except Exception as error:  # noqa: BLE001 - an invalid event must not block all others permanently
            raw = section.encode_message(
                write_json(event, encode=json.dumps).encode(), properties={"message_id": message_id}
            )
            return Pulled(lease, raw, deliveries, 0, str(error))
        return Pulled(lease, made, deliveries)

    def _message(self, event: dict[str, Any], name: str, message_id: str) -> bytes:
        message, enqueued_ms = message_of(event), time_ms_of(event)
        ttl_ms = section.decode_header(message, section.locate(message).header).ttl_ms or 0
        if ttl_ms and enqueued_ms:
            ttl_ms = min(ttl_ms + max(0, round(self._wall() * 1000) - enqueued_ms), TTL_LIMIT_MS)
        event_name = f"{self._options.service.endpoint}/{self._options.entity}/{name}"
        return annotated(message, name=event_name, enqueued_ms=enqueued_ms, message_id=message_id, ttl_ms=ttl_ms)

    def waiting(self) -> int | None:
        """Always None: the data plane does not report it."""
        return None

    def complete(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Acknowledges events."""
        return self._settled("acknowledge", leases)

    def release(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Releases events."""
        return self._settled("release", leases) if leases else ()

    def renew(self, leases: Sequence[Lease]) -> Sequence[Lease | None]:
        """Renews locks; the tokens are unchanged."""
        seconds = self._options.lock_seconds
        taken = self._settled("renewLock", leases)
        return [
            each._replace(seconds=seconds) if is_taken else None for each, is_taken in zip(leases, taken, strict=True)
        ]

    def set_aside(self, lease: Lease, message: bytes, disposition: Disposition) -> bool:
        """Rejects an event, which the service moves to the subscription's dead letters.

        Raises:
            PullError: the options do not state that there are any.
        """
        if not self._options.rejects:
            reason = f"{disposition.reason}: {disposition.description}".strip(": ")
            raise PullError(
                f"subscription '{self.entity}': an event would have to be set aside ({reason}); give the subscription a dead-letter "
                "destination and write rejects: true, or let refusals block",
                True,
            )
        return self._settled("reject", [lease])[0]

    def interrupt(self) -> None:
        """Ends a receive that waits."""
        if self._receiving is not None:
            self._receiving.close()

    def close(self) -> None:
        """Closes it."""
        self.interrupt()
        if self._service is not None:
            self._service.close()

    def _settled(self, operation: str, leases: Sequence[Lease]) -> Sequence[bool]:
        value = _object(self._ask(operation, {"lockTokens": [each.receipt for each in leases]}, ""))
        taken = set(value.get("succeededLockTokens", ()))
        return [each.receipt in taken for each in leases]

    def _ask(self, operation: str, body: Any, query: str) -> Answer:
        service = self._receiving if operation == "receive" else self._service
        assert service is not None
        options = self._options
        try:
            answer = service.ask(options.entity, options.subscription, operation, body, query)
        except OSError as error:
            raise self._failed(operation, error) from None
        if not 200 <= answer.status < 300:
            hint = _HINTS.get(answer.status, "")
            words = f"subscription '{self.entity}': {operation}: {answer.status} {answer.reason}: {answer.text(service.secret)}"
            raise PullError(scrub(words + (f"; {hint}" if hint else "")), answer.status in _FATAL)
        if not answer.is_whole:
            raise self._failed(operation, OSError("the answer ended before its end"))
        return answer

    def _failed(self, operation: str, error: OSError) -> PullError:
        return PullError(scrub(f"subscription '{self.entity}': {operation}: {str(error) or type(error).__name__}"))


def _object(answer: Answer) -> dict[str, Any]:
    try:
        value = read_json(answer.body or b"{}")
    except (ValueError, RecursionError) as error:
        raise PullError(f"the answer is not JSON: {error}") from None
    return value if isinstance(value, dict) else {}
