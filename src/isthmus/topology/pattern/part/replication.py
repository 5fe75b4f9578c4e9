"""Replication subscriptions: the subscriptions of a topic that feed routes.

What it is: the settings of every pattern with a topic as its source, the name, rule and state of a replication
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
"""The largest value of Service Bus. An unavailable target must not cause dead letters."""

TOPIC_SIZE_GB = 5
"""The largest size that every tier of Service Bus accepts (quotas, "Queue or topic size")."""

TOPIC_SIZE = Setting(
    name="topic_size_gb",
    kind=Kind.INTEGER,
    default=TOPIC_SIZE_GB,
    minimum=1,
    maximum=80,
    description="Size of the topics that `apply` creates, in GB. A full topic refuses messages of publishers. An "
    "existing topic keeps its size.",
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
    description="Application property that copies carry. Default: the task's own property "
    "`isthmus-TASK-HASH` with the copy's MessageId. If written: the property of this name with the "
    "number 1: a message that an application sends with another value is still replicated, of whatever type but "
    "binary; one that it sends with the number 1 is not replicated.",
    example="replication",
)

LOCK_DURATION = Setting(
    name="lock_duration",
    kind=Kind.DURATION,
    default=30_000,
    minimum=5_000,
    maximum=300_000,
    description="LockDuration of the replication subscriptions. Short, because the locks of a dead reader delay an "
    "ordered route for this long; live readers renew.",
    example="30s",
)


def replication_subscription(task: str, target: str) -> str:
    """Name of the subscription that feeds the route to a target."""
    return f"isthmus.{task}.{target}"


def replication_rule(mark: str, condition: str = "", action: str = "", *, is_number: bool = False) -> RuleState:
    """The one rule of a replication subscription: messages that the task has not copied and that the operator's condition selects.

    Args:
        mark: the property that the task's copies carry.
        condition: the operator's filter; empty: every message.
        action: the operator's action; it runs before the mark is set.
        is_number: whether the mark has the value 1; otherwise the copy's MessageId.
    """
    actions = [each for each in (action.strip().rstrip(";"), mark_action(mark, is_number=is_number)) if each]
    return RuleState(RULE, mark_filter(mark, condition, is_number=is_number), "; ".join(actions))


def replication_state(
    name: str, rule: RuleState, lock_duration_ms: int, *, requires_session: bool = False
) -> SubscriptionState:
    """The required state of a replication subscription."""
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
    """Fault an operator's filter that is invalid, or useless after joining it with the rule on the mark."""
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
