"""The present counts of an entity, as the management API reports it.

What it is: one record per query. Spec: docs/explanation/protocol.md, Administration (CountDetails), 5.3.
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.entities.catalog.catalog import Entry
from isthmus.entities.catalog.description import CorrelationFilter
from isthmus.entities.loaded import LoadedTopic, rule_of
from isthmus.entities.port import Entity

__all__ = ["Runtime", "runtime_of"]


@dataclass(slots=True)
class Runtime:
    """Counts, size and times of a queue, topic or subscription; exact, restart or not.

    Attributes:
        active_message_count: messages that a receiver can get or has locked.
        transfer_message_count: messages that wait to be forwarded.
        transfer_dead_letter_message_count: messages that could not be, since the target was deleted or refused them.
        deferred_message_count: part of `message_count`, in none of the service's own details.
        message_count: the sum of these.
        size_bytes: of all of them, as their senders wrote them; MaxSizeInMegabytes limits it.
        accessed_at_ms: last send or receive; 0 is never.
        subscription_count: of a topic, else 0.
    """

    active_message_count: int = 0
    dead_letter_message_count: int = 0
    scheduled_message_count: int = 0
    transfer_message_count: int = 0
    transfer_dead_letter_message_count: int = 0
    deferred_message_count: int = 0
    locked_message_count: int = 0
    message_count: int = 0
    size_bytes: int = 0
    created_at_ms: int = 0
    updated_at_ms: int = 0
    accessed_at_ms: int = 0
    subscription_count: int = 0
    sql_filter_count: int = 0
    correlation_filter_count: int = 0


def runtime_of(entry: Entry, member: Entity, topic: LoadedTopic | None = None) -> Runtime:
    """Counts, size and times of an entity.

    Args:
        entry: its row.
        member: its object.
        topic: the topic with its subscriptions, if it is a topic.
    """
    runtime = Runtime(
        active_message_count=member.active_count,
        scheduled_message_count=member.scheduled_count,
        deferred_message_count=member.deferred_count,
        size_bytes=member.stored_bytes(),
        created_at_ms=entry.created_at_ms,
        updated_at_ms=entry.updated_at_ms,
        accessed_at_ms=member.accessed_at_ms,
    )
    runtime.message_count = member.active_count + member.scheduled_count + member.deferred_count
    lost = member.transfer_dead_letters
    if lost is not None:
        runtime.transfer_dead_letter_message_count = lost.active_count
        runtime.message_count += lost.active_count
    if topic is not None:
        filters = [rule_of(rule).filter for each in topic.subscriptions.values() for rule in each.rules.values()]
        runtime.subscription_count = len(topic.subscriptions)
        runtime.correlation_filter_count = sum(isinstance(one, CorrelationFilter) for one in filters)
        # `$Default` and its opposite are SQL filters of the service: 1=1 and 1=0.
        runtime.sql_filter_count = len(filters) - runtime.correlation_filter_count
    source = member.source
    if source is None:
        return runtime
    runtime.transfer_message_count = source.transfer_count
    runtime.active_message_count -= source.transfer_count - source.leaving_count
    runtime.message_count += source.leaving_count
    runtime.locked_message_count = source.locked_count
    if source.dead_letters is not None:
        dead = source.dead_letters.active_count + source.dead_letters.leaving_count
        runtime.dead_letter_message_count = dead
        runtime.message_count += dead
    return runtime
