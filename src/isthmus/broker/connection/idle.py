"""Idle time-outs of a connection's links.

What it is: each link's last activity and its time, for links to queues, topics and subscriptions and for links to event
hubs, whose service waits longer. What it is not: the detach (`link_table`). Links of `$cbs`, `$management` and coordinators
have no idle time-out: neither page below mentions one.
Spec: docs/explanation/protocol.md, Tokens; service-bus-amqp-troubleshoot.md (10 minutes), event-hubs-amqp-troubleshoot.md (30 minutes).

Invariants:
    I1. A link is reported as idle only after a whole time-out without activity: no message, no part of one, no credit, no
        settlement.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.amqp import Link
from isthmus.broker.config.limit import ConnectionLimits
from isthmus.broker.link.handler import LinkHandler
from isthmus.errors import IdleLinkError

__all__ = ["IdleWatch"]

# Idle links are searched this many times per time-out, and at most every five seconds.
_CHECKS = 20
_CHECK_SECONDS = 5.0


class IdleWatch:
    """The idle times of one connection's links.

    Args:
        limits: of the namespace.
        now: monotonic seconds.
    """

    def __init__(self, limits: ConnectionLimits, now: float) -> None:
        self._seconds = limits.link_idle_timeout_ms / 1000
        self._hub_seconds = limits.event_hub_link_idle_timeout_ms / 1000
        shortest = min(filter(None, (self._seconds, self._hub_seconds)), default=0.0)
        self._pause_seconds = min(_CHECK_SECONDS, shortest / _CHECKS)
        self._next_check = now if shortest else float("inf")
        self._activity: dict[Link, tuple[object, float]] = {}

    def is_due(self, now: float) -> bool:
        """Whether the next search is due."""
        return now >= self._next_check

    def overdue(self, handlers: Mapping[Link, LinkHandler], now: float) -> list[tuple[Link, IdleLinkError]]:
        """The links that have been idle for too long, and the error for their client.

        Args:
            handlers: the handler of each link.
            now: monotonic seconds.
        """
        self._next_check = now + self._pause_seconds
        found: list[tuple[Link, IdleLinkError]] = []
        for link, handler in handlers.items():
            use = handler.use
            if use is None:
                continue
            seconds = self._hub_seconds if use.service == "EventHub" else self._seconds
            mark = handler.activity
            known = self._activity.get(link)
            if known is None or known[0] != mark:
                self._activity[link] = (mark, now)
            elif seconds and now - known[1] >= seconds:
                found.append((link, IdleLinkError(link.name, use.client, use.service, seconds)))
        return found

    def forget(self, link: Link) -> None:
        """A link is gone."""
        self._activity.pop(link, None)
