"""The topic in which runs claim tasks.

What it is: the names and the wanted state of the entity with the claims: one topic at every member of a task, with one
subscription per task. A message in it is a claim; the run that has locked it moves the task. What it is not: claiming.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.model import Endpoint, Task
from isthmus.topology.state import RuleState, SubscriptionState, TopicState

__all__ = ["CLAIM_LOCK_MS", "CLAIM_TOPIC", "claim_endpoint", "claims"]

CLAIM_TOPIC = "isthmus.claims"

CLAIM_LOCK_MS = 15_000
"""How long a dead run keeps its task; a live run renews three times within it."""

_RULE = "task"
_MAX_DELIVERY_COUNT = 2000


def claims(task: Task) -> Iterator[tuple[str, TopicState]]:
    """The entities for a task's claims: the aliases of the namespaces with claims, and the topic."""
    subscription = SubscriptionState(
        name=task.name,
        rules=(RuleState(_RULE, f"sys.Label = '{task.name}'"),),
        lock_duration_ms=CLAIM_LOCK_MS,
        max_delivery_count=_MAX_DELIVERY_COUNT,
        auto_delete_on_idle_ms=INFINITE_MS,
        requires_session=False,
        forward_to="",
    )
    for alias in task.claim_members:
        yield alias, TopicState(name=CLAIM_TOPIC, subscriptions=(subscription,))


def claim_endpoint(task: str, alias: str) -> Endpoint:
    """The subscription with a task's claim at a member."""
    return Endpoint(alias, f"{CLAIM_TOPIC}/Subscriptions/{task}")
