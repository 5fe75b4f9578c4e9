"""Replication subscriptions: the subscriptions of a topic that feed routes.

What it is: the settings that every pattern with a topic as its source takes, the name, rule and state of a replication
subscription, and the check of its name. What it is not: the rule on the mark (`isthmus.topology.pattern.part.mark`).
"""

from __future__ import annotations

from isthmus.topology.check.rule_check import check_filter, check_joined
from isthmus.topology.file.document import Document, Place
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.file.setting import SUBSCRIPTION_NAME_LIMIT, Kind, Setting
from isthmus.topology.pattern.part.mark import mark_action, mark_filter, unmarked_filter
from isthmus.topology.state import RuleState, SubscriptionState

__all__ = [
    "FILTER",
    "LOCK_DURATION",
    "MARK",
    "MAX_DELIVERY_COUNT",
    "RULE",
    "TOPIC_SIZE_GB",
    "TOPIC_SIZE",
    "check_subscription_name",
    "check_task_filter",
    "replication_rule",
    "replication_state",
    "replication_subscription",
]

RULE = "isthmus"
"""Name of the one rule of a replication subscription."""

MAX_DELIVERY_COUNT = 2000
"""The highest that Service Bus takes. A target that is away must not push messages into the dead-letter queue."""

TOPIC_SIZE_GB = 5
"""The largest size that every tier of Service Bus takes (quotas, "Queue or topic size")."""

TOPIC_SIZE = Setting(
    name="topic_size_gb",
    kind=Kind.INTEGER,
    default=TOPIC_SIZE_GB,
    minimum=1,
    maximum=80,
    description="Size of the topics that `apply` creates, in GB. Publishers are refused at a topic that is full. A "
    "topic that exists keeps its size.",
    example="5",
)

FILTER = Setting(
    name="filter",
    kind=Kind.SQL,
    description="SQL filter: only messages that it selects are replicated. It is joined with the rule on the mark.",
    example="\"carrier = 'UA'\"",
)

MARK = Setting(
    name="mark",
    kind=Kind.PROPERTY,
    description="Application property that copies carry. Without it a property of the task's own, "
    "`isthmus-TASK-HASH`, that holds the copy's MessageId. With it the property of this name, that holds the "
    "number 1: a message that an application sends with another value is still replicated, of whatever type but "
    "binary; one that it sends with the number 1 stays where it is.",
    example="replication",
)

LOCK_DURATION = Setting(
    name="lock_duration",
    kind=Kind.DURATION,
    default=30_000,
    minimum=5_000,
    maximum=300_000,
    description="LockDuration of the replication subscriptions. Short, because a dead reader's locks hold an "
    "ordered route back that long; living readers renew.",
    example="30s",
)


def replication_subscription(task: str, target: str) -> str:
    """Name of the subscription that feeds the route to a target."""
    return f"isthmus.{task}.{target}"


def replication_rule(mark: str, condition: str = "", action: str = "", *, is_number: bool = False) -> RuleState:
    """The one rule of a replication subscription: what the task has not copied and the operator's condition selects.

    Args:
        mark: the property that the task's copies carry.
        condition: the operator's filter; empty: every message.
        action: the operator's action; it is done before the mark is set.
        is_number: whether a copy carries the number 1; else its MessageId.
    """
    actions = [each for each in (action.strip().rstrip(";"), mark_action(mark, is_number=is_number)) if each]
    return RuleState(RULE, mark_filter(mark, condition, is_number=is_number), "; ".join(actions))


def replication_state(
    name: str, rule: RuleState, lock_duration_ms: int, *, requires_session: bool = False
) -> SubscriptionState:
    """A replication subscription as it must be."""
    return SubscriptionState(
        name=name,
        rules=(rule,),
        lock_duration_ms=lock_duration_ms,
        max_delivery_count=MAX_DELIVERY_COUNT,
        auto_delete_on_idle_ms=INFINITE_MS,
        requires_session=requires_session,
        forward_to="",
    )


def check_task_filter(text: str, place: Place, document: Document, *, mark: str, is_number: bool) -> None:
    """Fault an operator's filter that is wrong, or of no use once it is joined with the rule on the mark."""
    if text and check_filter(text, place, document, mark=mark):
        joined = mark_filter(mark, text, is_number=is_number)
        check_joined(joined, place, document, mark=mark, unmarked=unmarked_filter(mark, text))


def check_subscription_name(task: str, target: str, place: Place, document: Document) -> None:
    """Fault a task whose replication subscription would have too long a name."""
    name = replication_subscription(task, target)
    if len(name) > SUBSCRIPTION_NAME_LIMIT:
        document.fault(
            place,
            f"the replication subscription {name} has {len(name)} characters, {SUBSCRIPTION_NAME_LIMIT} at most",
            f"shorten the task's name or the alias by {len(name) - SUBSCRIPTION_NAME_LIMIT}",
        )
