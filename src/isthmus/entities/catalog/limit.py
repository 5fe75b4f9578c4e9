"""The limits of a namespace, all of them settable.

What it is: one record of numbers with the service's values as defaults. Spec: docs/explanation/protocol.md, Settlement, Message, Rules, Entities.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.entities.catalog.tier import Tier

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one namespace.

    Attributes:
        max_message_size_bytes: of one message, all sections together; an entity may set its own.
        max_entities: queues and topics together.
        max_sql_filters_per_topic: over all its subscriptions.
        max_correlation_filters_per_topic: over all its subscriptions.
        min_lock_duration_ms: the shortest lock duration of an entity.
        max_lock_duration_ms: the longest lock duration of an entity.
        max_entity_size_megabytes: the greatest MaxSizeInMegabytes.
        max_property_bytes: of one application property, its name included.
        max_properties_bytes: of all application properties of a message.
        max_transaction_bytes: messages sent in one transaction, together; one message alone may be larger.
        duplicate_key_window_ms: the minimum time for which the key of a route's copy is kept.
        transaction_timeout_ms: from the first operation of a transaction to its discharge.
        live_tail_bytes: recently committed messages kept in memory, all entities together, so that live traffic
            is delivered without reading the disk.
        partitions_per_entity: fragments of a partitioned entity that is created from now on.
        partition_stores: the number of stores over which its fragments are spread.
        max_partitioned_entities: queues and topics together.
        max_event_retention_ms: the longest retention of an event hub.
        hub_cache_bytes: as `live_tail_bytes`, of all event hubs together.
        tier: the pricing tier whose settings and features the namespace has; None for all of them.
    """

    max_message_size_bytes: int = 1_048_576
    max_entities: int = 10_000
    max_subscriptions_per_topic: int = 2_000
    max_rules_per_subscription: int = 100_000
    max_sql_filters_per_topic: int = 2_000
    max_correlation_filters_per_topic: int = 100_000
    min_lock_duration_ms: int = 5_000
    max_lock_duration_ms: int = 300_000
    max_delivery_count: int = 2_147_483_647
    min_duplicate_window_ms: int = 5_000
    max_duplicate_window_ms: int = 604_800_000
    duplicate_key_window_ms: int = 3_600_000
    min_auto_delete_on_idle_ms: int = 300_000
    max_entity_size_megabytes: int = 81_920
    max_entity_name_characters: int = 260
    max_subscription_name_characters: int = 50
    max_rule_expression_characters: int = 1_024
    max_user_metadata_characters: int = 1_024
    max_message_id_characters: int = 128
    max_session_id_characters: int = 128
    max_property_bytes: int = 32_768
    max_properties_bytes: int = 65_536
    live_tail_bytes: int = 67_108_864
    max_transaction_messages: int = 100
    max_transaction_bytes: int = 16_777_216
    max_transactions_per_connection: int = 20
    transaction_timeout_ms: int = 120_000
    partitions_per_entity: int = 16
    partition_stores: int = 4
    max_partitioned_entities: int = 100
    max_partitions_per_event_hub: int = 100
    max_consumer_groups_per_event_hub: int = 100
    max_event_retention_ms: int = 7_776_000_000
    hub_cache_bytes: int = 16_777_216
    tier: Tier | None = None
