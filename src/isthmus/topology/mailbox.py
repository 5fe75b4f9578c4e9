"""Mailboxes: queues that replication subscriptions forward to, so that a backlog does not fill the topic; and the action on a full mailbox.

What it is: the two settings, the entities and routes of a task with mailboxes, and their checks. Forwarded messages count against the size
of the queue, and no longer against that of the topic. A message keeps the topic's sequence number and enqueued time beside those of the
queue (Microsoft Learn, "Chaining Service Bus entities with autoforwarding"), so that copies are identified as before. What it is not: the
deletion of messages from a full mailbox (`isthmus.supervisor.watch.drop_watch`).

Invariants:
    I1. A mailbox has the name of its subscription, and those settings of the subscription that matter to a reader.
    I2. A route belongs to its topic, with or without a mailbox: its name, its mark and its copies' origin are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from isthmus.topology.file.document import Document
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.model import Endpoint, Federation, Route, Task
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.state import EntityState, QueueState, SubscriptionState, TopicState

__all__ = ["check_full", "rerouted", "with_mailboxes"]

_SUBSCRIPTIONS = "/Subscriptions/"
_OWN = "isthmus."


def with_mailboxes(task: Task, alias: str, entity: EntityState) -> Iterator[EntityState]:
    """The entities that a task wants, with the mailboxes of its replication subscriptions."""
    if not task.mailbox or not isinstance(entity, TopicState):
        yield entity
        return
    fed = {name.lower() for at, topic, name in _feeds(task) if (at, topic.lower()) == (alias, entity.name.lower())}
    forwarding = [
        replace(each, forward_to=each.name) if each.name.lower() in fed else each for each in entity.subscriptions
    ]
    yield replace(entity, subscriptions=tuple(forwarding))
    for each in entity.subscriptions:
        if each.name.lower() in fed:
            yield _mailbox(each, entity)


def rerouted(task: Task, route: Route) -> Route:
    """The route as it is carried: from the mailbox, if there is one."""
    topic, _, subscription = route.source.entity.partition(_SUBSCRIPTIONS)
    if not task.mailbox or (route.source.alias, topic, subscription) not in set(_feeds(task)):
        return route
    options = replace(route.options, feed=route.source.entity)
    return replace(route, source=Endpoint(route.source.alias, subscription), options=options)


def check_full(federation: Federation, document: Document) -> None:
    """Fault `mailbox` and `when_full` where a task cannot have them."""
    for task in federation.tasks.values():
        place = task.places.get("mailbox", task.place)
        full = task.places.get("when_full", task.place)
        if task.when_full == "drop" and not task.mailbox:
            document.fault(
                full,
                "when_full: drop deletes from mailboxes, and the task has none",
                "write mailbox: true, or when_full: alert",
            )
        if task.pattern == "archive" and task.when_full == "spool":
            document.fault(full, "a task of pattern archive has a spool already", "remove when_full")
        if not next(PATTERNS[task.pattern].routes(task), None) and (task.mailbox or task.when_full != "alert"):
            document.fault(full, f"task {task.name} has no routes that could have a backlog", "remove it")
            continue
        if task.when_full == "spool" and federation.spark.is_remote:
            document.fault(
                full,
                "when_full: spool stores messages in the state folder, which executors on other machines cannot access",
                "write mailbox: true instead",
            )
        if not task.mailbox:
            continue
        feeds = list(_feeds(task))
        if not feeds:
            document.fault(
                place,
                f"task {task.name} has no replication subscription that could forward to a mailbox",
                "remove mailbox: its routes read queues, logs, or subscriptions of applications",
            )
        names = [(alias, name) for alias, _, name in feeds]
        for alias, name in dict.fromkeys(each for each in names if names.count(each) > 1):
            document.fault(place, f"two topics at {alias} would have the mailbox {name}", "write two tasks")


def _feeds(task: Task) -> Iterator[tuple[str, str, str]]:
    """Alias, topic and name of the task's own subscriptions that feed its routes."""
    pattern = PATTERNS[task.pattern]
    feeding = {(route.source.alias, route.source.entity.lower()) for route in pattern.routes(task)}
    for alias, entity in pattern.wanted(task):
        for each in entity.subscriptions if isinstance(entity, TopicState) else ():
            path = f"{entity.name}{_SUBSCRIPTIONS}{each.name}".lower()
            is_own = each.name.lower().startswith(_OWN) and not each.forward_dead_letters_to
            if is_own and (alias, path) in feeding:
                yield alias, entity.name, each.name


def _mailbox(subscription: SubscriptionState, topic: TopicState) -> QueueState:
    return QueueState(
        name=subscription.name,
        lock_duration_ms=subscription.lock_duration_ms,
        max_delivery_count=subscription.max_delivery_count,
        auto_delete_on_idle_ms=INFINITE_MS,
        requires_session=False,
        forward_to="",
        default_ttl_ms=subscription.default_ttl_ms,
        dead_letters_expired=subscription.dead_letters_expired,
        partitioned=False,
        initial_size_megabytes=topic.initial_size_megabytes,
    )
