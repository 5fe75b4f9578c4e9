"""The limits of one namespace, and their names in a namespace's file.

What it is: the limits of connections and links with the service's values as defaults, and one table of all limits that
a file may set, those of entities included. What it is not: the limits of entities themselves
(`isthmus.entities.catalog.limit`), nor a reader of files (`config`).
Spec: docs/explanation/protocol.md, Connection, Tokens, Settlement, Message, Rules, Entities.

Invariants:
    I1. Every field of `Limits` and of `ConnectionLimits` except the tier has a line in `LIMITS`, and every line a field.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from isthmus.entities import Limits
from isthmus.entities.catalog.tier import Tier
from isthmus.topology.file.setting import Kind, Setting, Spec

__all__ = ["LIMITS", "ConnectionLimits", "limit_spec", "make_limits"]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """The limits of connections and links.

    Attributes:
        max_connections: open at once whose client has shown a token; one more is closed.
        max_unauthenticated_connections: open at once whose client has not, over any protocol; for one more, the oldest of
            the host with the most is closed. After a restart all clients may reconnect at once.
        max_receivers_per_entity: receiving links on one queue or subscription.
        connection_idle_timeout_ms: the idle time-out in the namespace's open frame; a connection is closed after twice as much silence.
        link_idle_timeout_ms: time without a message, credit or settlement after which a link is detached; 0 is never.
        event_hub_link_idle_timeout_ms: the same for links to event hubs.
        token_deadline_ms: time for a new connection to show a valid token.
        max_messages_per_batch: in one envelope to a queue or topic. The service documents no such limit, but refuses more
            than about 4,500 in its standard tier and 15,885 in its premium one (Azure/azure-service-bus issue 397).
        sender_credit: deliveries that a sending client may have in flight on a link, unread by the namespace.
        max_partial_bytes: of messages whose last frame has not arrived, on all connections together.
        max_listeners_per_hybrid_connection: control channels open at once; the service's limit.
        max_relayed: requests and WebSockets that are relayed at once, or wait for a listener, all hybrid connections together.
        relay_accept_timeout_ms: time for a listener to connect to the address that it was sent.
        relay_response_timeout_ms: time for a listener to answer a request, and between two parts of a body.
    """

    max_connections: int = 5_000
    max_unauthenticated_connections: int = 5_000
    max_receivers_per_entity: int = 5_000
    connection_idle_timeout_ms: int = 120_000
    link_idle_timeout_ms: int = 600_000
    event_hub_link_idle_timeout_ms: int = 1_800_000
    token_deadline_ms: int = 20_000
    max_messages_per_batch: int = 15_885
    sender_credit: int = 2_000
    max_partial_bytes: int = 268_435_456
    max_listeners_per_hybrid_connection: int = 25
    max_relayed: int = 5_000
    relay_accept_timeout_ms: int = 30_000
    relay_response_timeout_ms: int = 60_000


_DAY_MS = 86_400_000


def _number(name: str, description: str, minimum: int = 1, maximum: int = 2**31 - 1) -> Setting:
    return Setting(
        name=name, kind=Kind.INTEGER, description=description, minimum=minimum, maximum=maximum, example=str(minimum)
    )


def _duration(name: str, description: str, minimum: int = 1, maximum: int = 365 * _DAY_MS) -> Setting:
    return Setting(
        name=name, kind=Kind.DURATION, description=description, minimum=minimum, maximum=maximum, example="1m"
    )


# Names are those of the fields, without `_ms` after a duration.
LIMITS: dict[str, Setting] = {
    setting.name: setting
    for setting in (
        _number("max_message_size_bytes", "A message, all sections together, where its entity sets none.", 1024,
                104_857_600),
        _number("max_entities", "Queues and topics together."),
        _number("max_subscriptions_per_topic", "Subscriptions of a topic."),
        _number("max_rules_per_subscription", "Rules of a subscription."),
        _number("max_sql_filters_per_topic", "SQL filters over all subscriptions of a topic."),
        _number("max_correlation_filters_per_topic", "Correlation filters over all subscriptions of a topic."),
        _duration("min_lock_duration", "The shortest LockDuration."),
        _duration("max_lock_duration", "The longest LockDuration.", 1000),
        _number("max_delivery_count", "The greatest MaxDeliveryCount."),
        _duration("min_duplicate_window", "The shortest window of duplicate detection."),
        _duration("max_duplicate_window", "The longest window of duplicate detection.", 1000),
        _duration("duplicate_key_window", "How long the key of a route's copy is kept at least.", 1000),
        _duration("min_auto_delete_on_idle", "The shortest AutoDeleteOnIdle."),
        _number("max_entity_size_megabytes", "The greatest MaxSizeInMegabytes.", 1, 2**30),
        _number("max_entity_name_characters", "Name of a queue or topic."),
        _number("max_subscription_name_characters", "Name of a subscription or rule."),
        _number("max_rule_expression_characters", "A filter's or action's expression.", 1, 1024),
        _number("partitions_per_entity", "Fragments of a partitioned entity; counts for those made from then on.", 1, 256),
        _number("partition_stores", "Stores over which the fragments of a new partitioned entity are spread.", 1, 16),
        _number("max_partitioned_entities", "Partitioned queues and topics together."),
        _number("max_partitions_per_event_hub", "Partitions of an event hub."),
        _number("max_consumer_groups_per_event_hub", "Consumer groups of an event hub, `$Default` included."),
        _duration("max_event_retention", "The longest MessageRetention of an event hub.", 1000),
        _number("hub_cache_bytes", "Recent events kept in memory, all event hubs together.", 0),
        _number("max_user_metadata_characters", "An entity's UserMetadata."),
        _number("max_message_id_characters", "A message's MessageId."),
        _number("max_session_id_characters", "A message's SessionId."),
        _number("max_property_bytes", "An application property, its name included."),
        _number("max_properties_bytes", "All application properties of a message."),
        _number("max_transaction_messages", "Messages sent and settled in one transaction."),
        _number("max_transaction_bytes", "Messages sent in one transaction, together; one alone may be larger.", 1024),
        _number("max_transactions_per_connection", "Transactions that a connection may have open."),
        _duration("transaction_timeout", "Time from a transaction's first operation to its discharge.", 1000),
        _number("live_tail_bytes", "New messages kept in memory, all entities together.", 1 << 20, 2**40),
        _number("max_connections", "Open connections whose client has shown a token or a key."),
        _number("max_unauthenticated_connections", "Open connections whose client has not, HTTP included. For one more the oldest of the address that has the most is closed."),
        _number("max_receivers_per_entity", "Receiving links of a queue or subscription."),
        _duration("connection_idle_timeout", "Silence that clients are asked to keep below; after twice as much a connection is closed.", 1000),
        Setting(name="link_idle_timeout", kind=Kind.DURATION, may_be_off=True, minimum=100, maximum=365 * _DAY_MS,
                description="Time without a message, credit or settlement after which a link is detached.",
                example="10m"),
        Setting(name="event_hub_link_idle_timeout", kind=Kind.DURATION, may_be_off=True, minimum=100,
                maximum=365 * _DAY_MS, example="30m", description="The same for links to event hubs."),
        _duration("token_deadline", "Time for a new connection to show a valid token.", 1000),
        _number("max_messages_per_batch", "Messages in one batch to a queue or topic."),
        _number("sender_credit", "Deliveries that a client may send to a queue or topic ahead of what the namespace has read."),
        _number("max_partial_bytes", "Messages whose last frame has not come, all connections together.", 1 << 20,
                2**40),
        _number("max_listeners_per_hybrid_connection", "Listeners of a hybrid connection."),
        _number("max_relayed", "Requests and WebSockets that are relayed at once, all hybrid connections together."),
        _duration("relay_accept_timeout", "Time for a listener to connect for a WebSocket or a large request.", 100),
        _duration("relay_response_timeout", "Time for a listener to answer a request, and between two parts of a body.", 100),
    )
}  # fmt: skip


def limit_spec() -> Spec:
    """All limits, for the reader of a file."""
    return Spec("limits", "Limits of a namespace.", tuple(LIMITS.values()))


def make_limits(values: dict[str, Any], tier: Tier | None = None) -> tuple[Limits, ConnectionLimits]:
    """The limits that a file sets, the others at their tier's or at their defaults.

    Args:
        values: parsed values by the names of `LIMITS`.
        tier: of the namespace; None for none.
    """
    by_field = dict(tier.limits) if tier is not None else {}
    by_field |= {name + ("_ms" if LIMITS[name].kind is Kind.DURATION else ""): value for name, value in values.items()}
    made = [kind(**{f.name: by_field[f.name] for f in fields(kind) if f.name in by_field}) for kind in _KINDS]
    return replace(made[0], tier=tier), made[1]


_KINDS: tuple[type[Any], type[Any]] = (Limits, ConnectionLimits)
