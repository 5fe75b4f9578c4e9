"""The features and limits of the service's pricing tiers.

What it is: the three tiers as data: limits that differ from this product's defaults, settings that a tier refuses, and
whether it has topics, forwarding and transactions. A namespace without a tier has everything. What it is not: prices, or
throughput.
Spec: Microsoft Learn, "Service Bus quotas", "Resource Manager exceptions" (what Basic refuses), "Service Bus premium
messaging", "Message expiration" (14 days in Basic); the service's pricing page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["TIERS", "Tier"]

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier.

    Attributes:
        name: as a namespace's file writes it.
        limits: by the names of the fields of `Limits` and of the broker's `ConnectionLimits`.
        lacks: settings of queues, topics and subscriptions that may not be set.
        has_topics: whether there are topics.
        has_transactions: whether there are transactions and sends via another entity.
        max_time_to_live_ms: the greatest DefaultMessageTimeToLive, and its default; None for no limit.
    """

    name: str
    limits: Mapping[str, int] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    has_topics: bool = True
    has_transactions: bool = True
    max_time_to_live_ms: int | None = None

    @property
    def title(self) -> str:
        """The name as the service writes it."""
        return self.name.capitalize()


_SMALL = {
    "max_message_size_bytes": 262_144,
    "max_entity_size_megabytes": 5_120,
    "max_messages_per_batch": 4_500,
    "min_duplicate_window_ms": 20_000,
}
TIERS = {
    tier.name: tier
    for tier in (
        Tier(
            "basic",
            {**_SMALL, "max_connections": 100},
            ("requires_duplicate_detection", "requires_session", "auto_delete_on_idle", "forward_to",
             "forward_dead_lettered_messages_to", "enable_express", "max_message_size_in_kilobytes"),
            has_topics=False,
            has_transactions=False,
            max_time_to_live_ms=14 * _DAY_MS,
        ),
        Tier("standard", _SMALL, ("max_message_size_in_kilobytes",)),
        Tier("premium", {"max_entities": 1_000, "min_duplicate_window_ms": 20_000}, ("enable_express",)),
    )
}  # fmt: skip
