"""Remarks for an operator about a queue that a route reads, from the management plugin's data.

What it is: a pure check of the queue's type, arguments and policy. What it is not: a call. Specification: RabbitMQ documentation, "Quorum
Queues" (delivery limit), "Dead Letter Exchanges", "Streams".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from isthmus.topology.file.duration import format_ms

__all__ = ["DELIVERY_LIMIT", "MAX_AGE", "audit_remark", "has_default_limit", "remarks_of"]

DELIVERY_LIMIT = "x-delivery-limit"
MAX_AGE = "x-max-age"
_DEFAULT_LIMIT = 20
_AGE = re.compile(r"(\d+)([YMDhms])")
_UNITS_MS = {"Y": 31_536_000_000, "M": 2_592_000_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}


def has_default_limit(version: str) -> bool:
    """Whether a broker of this version sets a delivery limit for quorum queues without one."""
    major = version.partition(".")[0]
    return major.isdigit() and int(major) >= 4


def remarks_of(queue: Mapping[str, Any], version: str, *, is_rejected_to: bool) -> Iterator[str]:
    """The remarks about a queue.

    Args:
        queue: the answer of `GET /api/queues/VHOST/NAME`.
        version: the broker's version.
        is_rejected_to: whether messages that are set aside are rejected.
    """
    kind = queue.get("type")
    if kind == "stream":
        yield "is a stream, which a route cannot empty; read a queue"
        return
    limit = _limit(queue, version) if kind == "quorum" else None
    has_exchange = _argument(queue, "dead-letter-exchange") is not None
    if limit is not None:
        what, hint = "goes to its dead-letter exchange", "set delivery-limit to -1 to prevent that"
        if not has_exchange:
            what, hint = "is dropped", "set delivery-limit to -1, or give the queue a dead-letter exchange"
        yield f"has a delivery limit of {limit}: a message that is redelivered more often, e.g. while the target is full, {what}; {hint}"
    if is_rejected_to and not has_exchange:
        yield "has no dead-letter exchange, against dead_letter_exchange: true: a message that is set aside is dropped"


def audit_remark(queue: Mapping[str, Any], kept_ms: int) -> str:
    """The remark about a queue that records the messages of an exchange; empty: none.

    Args:
        queue: as of `remarks_of`.
        kept_ms: how long the file requires a message to be kept; 0: for ever.
    """
    if queue.get("type") != "stream":
        return "is not a stream: verify cannot read it; delete it and apply"
    value = _argument(queue, MAX_AGE.removeprefix("x-"))
    found = _AGE.fullmatch(str(value)) if value is not None else None
    existing_ms = int(found[1]) * _UNITS_MS[found[2]] if found is not None else 0
    if (value is None or found is not None) and existing_ms != -(-kept_ms // 1000) * 1000:
        is_kept, wanted = (format_ms(each) if each else "for ever" for each in (existing_ms, kept_ms))
        return f"keeps messages {is_kept}, and not {wanted} as audit requires: it is not changed; delete it, with its records, and apply"
    return ""


def _limit(queue: Mapping[str, Any], version: str) -> int | None:
    found = _argument(queue, "delivery-limit")
    limit = found if isinstance(found, int) else _DEFAULT_LIMIT if has_default_limit(version) else -1
    return limit if limit >= 0 else None


def _argument(queue: Mapping[str, Any], name: str) -> Any:
    """An argument of the queue, otherwise of its policy."""
    for where, key in (("arguments", f"x-{name}"), ("effective_policy_definition", name)):
        value = queue.get(where)
        if isinstance(value, Mapping) and value.get(key) is not None:
            return value[key]
    return None
