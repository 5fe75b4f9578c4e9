"""What an operator has to know of a queue that a route reads, as the management plugin shows it.

What it is: a pure look at the queue's type, arguments and policy. What it is not: a call. Specification: RabbitMQ documentation, "Quorum
Queues" (delivery limit), "Dead Letter Exchanges", "Streams".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["DELIVERY_LIMIT", "has_default_limit", "remarks_of"]

DELIVERY_LIMIT = "x-delivery-limit"
_DEFAULT_LIMIT = 20


def has_default_limit(version: str) -> bool:
    """Whether a broker of this version gives a limit of deliveries to quorum queues that have none of their own."""
    major = version.partition(".")[0]
    return major.isdigit() and int(major) >= 4


def remarks_of(queue: Mapping[str, Any], version: str, *, is_rejected_to: bool) -> Iterator[str]:
    """What to tell of a queue.

    Args:
        queue: as `GET /api/queues/VHOST/NAME` shows it.
        version: of the broker.
        is_rejected_to: whether messages that are set aside are rejected.
    """
    kind = queue.get("type")
    if kind == "stream":
        yield "is a stream, which a route cannot empty; read a queue"
        return
    limit = _limit(queue, version) if kind == "quorum" else None
    has_exchange = _told(queue, "dead-letter-exchange") is not None
    if limit is not None:
        what, hint = "goes to its dead-letter exchange", "set delivery-limit to -1 if it is not to"
        if not has_exchange:
            what, hint = "is dropped", "set delivery-limit to -1, or give the queue a dead-letter exchange"
        yield f"has a delivery limit of {limit}: a message that comes back more often, e.g. while the target is full, {what}; {hint}"
    if is_rejected_to and not has_exchange:
        yield "has no dead-letter exchange, against dead_letter_exchange: true: a message that is set aside is dropped"


def _limit(queue: Mapping[str, Any], version: str) -> int | None:
    found = _told(queue, "delivery-limit")
    limit = found if isinstance(found, int) else _DEFAULT_LIMIT if has_default_limit(version) else -1
    return limit if limit >= 0 else None


def _told(queue: Mapping[str, Any], name: str) -> Any:
    """An argument of the queue, else what its policy says."""
    for where, key in (("arguments", f"x-{name}"), ("effective_policy_definition", name)):
        told = queue.get(where)
        if isinstance(told, Mapping) and told.get(key) is not None:
            return told[key]
    return None
