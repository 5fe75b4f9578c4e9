"""Entities that isthmus created at a namespace and that no task of a federation wants any more.

What it is: the search for such entities among all entities of a namespace, their choice by task or member, and the changes that
delete them. What it is not: the deletion, or the count of waiting messages (`isthmus.connectors.administration`).

Invariants:
    I1. Only entities whose names begin with `isthmus.` are deleted, and claims of tasks; an application's entities are only changed
        to no longer forward to a deleted entity, or to a task that no longer names them.
    I2. An entity of a task that the file does not have is only deleted if that task is named: another file may have it.
    I3. No entity is deleted that another one still forwards to: forwarding is ended first.
    I4. The deleting process has locked every claim of the tasks concerned (`claims_at`): no entity is deleted that a run still reads.
    I5. The marker of a pair of namespaces belongs to no task, and is never an orphan: it records which member is fenced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.errors import InvalidArgumentError
from isthmus.topology.claim import CLAIM_TOPIC
from isthmus.topology.model import Federation
from isthmus.topology.pair.description import MARKER
from isthmus.topology.planning.change import Change, Plan, same_value
from isthmus.topology.planning.finding import OWN
from isthmus.topology.planning.wanted import wanted
from isthmus.topology.state import NamespaceState, QueueState, SubscriptionState, TopicState

__all__ = ["Orphan", "claims_at", "find_orphans", "former_notes", "makes_own", "named", "of_tasks", "removal", "strays"]


@dataclass(frozen=True, slots=True)
class Orphan:
    """One entity that no task wants.

    Attributes:
        alias: alias of the namespace.
        task: the task that it was created for, by its name.
        member: the member or target that its name ends with; empty if there is none.
        change: its deletion.
    """

    alias: str
    task: str
    member: str
    change: Change

    @property
    def is_claim(self) -> bool:
        """Whether it contains the claim of a task, and no message of an application."""
        return self.change.topic.lower() == CLAIM_TOPIC


def find_orphans(federation: Federation, observed: Iterable[NamespaceState]) -> list[Orphan]:
    """All orphans, by namespace.

    Args:
        federation: its tasks determine the wanted entities.
        observed: all entities of each namespace.
    """
    desired = wanted(federation)
    return [
        orphan
        for namespace in observed
        for orphan in _of_namespace(namespace, {each.name.lower(): each for each in desired.get(namespace.alias, ())})
    ]


def of_tasks(federation: Federation, orphans: Iterable[Orphan]) -> tuple[list[Orphan], list[Orphan]]:
    """The orphans of tasks that the file has, and the others."""
    tasks = {name.lower() for name in federation.tasks}
    mine: list[Orphan] = []
    others: list[Orphan] = []
    for orphan in orphans:
        (mine if orphan.task.lower() in tasks else others).append(orphan)
    return mine, others


def named(federation: Federation, orphans: Iterable[Orphan], name: str) -> list[Orphan]:
    """The orphans of a task that the file no longer has, or of a member that tasks of the file no longer have.

    Raises:
        InvalidArgumentError: the file still has the task.
    """
    folded = name.lower()
    tasks, aliases = ({each.lower() for each in names} for names in (federation.tasks, federation.namespaces))
    if folded in tasks and folded not in aliases:
        raise InvalidArgumentError(
            f"task {name} is in {federation.file}: remove it from the file first, `apply` would create it again"
        )
    of_member = [
        each for each in orphans if each.task.lower() in tasks and folded in {each.member.lower(), each.alias.lower()}
    ]
    return of_member + [each for each in orphans if each.task.lower() == folded and each not in of_member]


def makes_own(plan: Plan) -> bool:
    """Whether a plan creates subscriptions of isthmus; a task that now names another topic has some at the former one, too."""
    return any(
        change.action == "create" and change.kind == "subscription" and change.subscription.lower().startswith(OWN)
        for change in plan.changes
    )


def former_notes(federation: Federation, observed: Iterable[NamespaceState]) -> tuple[str, ...]:
    """Notes on the subscriptions of tasks at topics that no task of the file names any more; a plan itself notes those at other topics.

    Args:
        federation: its tasks determine the wanted entities.
        observed: all entities of each namespace.
    """
    named_topics = {(alias, each.name.lower()) for alias, entities in wanted(federation).items() for each in entities}
    mine, _ = of_tasks(federation, find_orphans(federation, observed))
    return tuple(
        f"subscription {each.change.subscription} of {each.change.topic} at {each.alias} belongs to task {each.task}, which no "
        "longer names that "
        "topic: it fills up; move its messages with the former file, and delete it with isthmus apply --prune"
        for each in mine
        if each.change.subscription
        and not each.is_claim
        and (each.alias, each.change.topic.lower()) not in named_topics
    )


def strays(federation: Federation, observed: Iterable[NamespaceState]) -> tuple[Change, ...]:
    """Updates that end forwarding from an application's queue or subscription to an entity of a task that no longer names it.

    A task that now names another queue keeps its name, and so does its topic: messages that the former queue forwards would be treated as the
    new one's.

    Args:
        federation: its tasks determine the wanted entities.
        observed: all entities of each namespace.
    """
    desired = wanted(federation)
    return tuple(
        change
        for namespace in observed
        for change in _strays_of(namespace, {each.name.lower(): each for each in desired.get(namespace.alias, ())})
    )


def claims_at(observed: Mapping[str, NamespaceState], tasks: Collection[str]) -> list[tuple[str, str]]:
    """The claims of tasks that exist, by task and alias: a run of such a task has locked one of them, even if it runs another file."""
    folded = {each.lower() for each in tasks}
    return [
        (subscription.name, alias)
        for alias, namespace in observed.items()
        if (topic := namespace.topic(CLAIM_TOPIC)) is not None
        for subscription in topic.subscriptions
        if subscription.name.lower() in folded
    ]


def removal(observed: Mapping[str, NamespaceState], orphans: Iterable[Orphan]) -> tuple[Change, ...]:
    """The changes that delete orphans, in the order in which they are carried out."""
    chosen = list(orphans)
    changes = [
        change for alias, namespace in observed.items() for change in _unlinked(namespace, _deleted(chosen, alias))
    ]
    rank = {"subscription": 0, "queue": 1, "topic": 2}
    changes += sorted((each.change for each in chosen), key=lambda change: rank[change.kind])
    for alias, namespace in observed.items():
        claims = namespace.topic(CLAIM_TOPIC)
        deleted = {each.change.subscription.lower() for each in chosen if each.alias == alias and each.is_claim}
        if claims and deleted and deleted == {each.name.lower() for each in claims.subscriptions}:
            changes.append(Change(alias=alias, action="delete", kind="topic", topic=claims.name, before=claims))
    return tuple(changes)


def _of_namespace(namespace: NamespaceState, desired: Mapping[str, TopicState | QueueState]) -> Iterator[Orphan]:
    for topic in namespace.topics:
        declared = desired.get(topic.name.lower())
        if declared is None and topic.name.lower().startswith(OWN) and topic.name.lower() != CLAIM_TOPIC:
            yield _orphan(namespace.alias, topic.name, _delete(namespace, topic))
            continue
        kept = {each.name.lower() for each in declared.subscriptions} if isinstance(declared, TopicState) else set()
        for subscription in topic.subscriptions:
            change = Change(
                alias=namespace.alias,
                action="delete",
                kind="subscription",
                topic=topic.name,
                subscription=subscription.name,
                before=subscription,
            )
            if subscription.name.lower() in kept:
                continue
            if topic.name.lower() == CLAIM_TOPIC:
                yield Orphan(namespace.alias, subscription.name, "", change)
            elif subscription.name.lower().startswith(OWN):
                yield _orphan(namespace.alias, subscription.name, change)
    for queue in namespace.queues:
        name = queue.name.lower()
        if name.startswith(OWN) and not name.startswith(MARKER) and name not in desired:
            yield _orphan(namespace.alias, queue.name, _delete(namespace, queue))


def _strays_of(namespace: NamespaceState, desired: Mapping[str, TopicState | QueueState]) -> Iterator[Change]:
    own = {(name, "") for name in desired if name.startswith(OWN)}
    for change in _unlinked(namespace, own, "since the task no longer names it"):
        name = change.subscription or change.topic
        before, after = change.before, change.after
        assert isinstance(before, QueueState | SubscriptionState)
        assert isinstance(after, QueueState | SubscriptionState)
        declared = desired.get(change.topic.lower())
        receiver = declared.subscription(name) if change.subscription and isinstance(declared, TopicState) else declared
        kept = {
            field: None
            for field in ("forward_to", "forward_dead_letters_to")
            if receiver is not None and same_value(field, getattr(before, field), getattr(receiver, field, None))
        }
        after = replace(after, **kept)  # type: ignore[arg-type]
        if not name.lower().startswith(OWN) and (after.forward_to, after.forward_dead_letters_to) != (None, None):
            yield replace(change, after=after)


def _orphan(alias: str, name: str, change: Change) -> Orphan:
    task, _, member = name[len(OWN) :].partition(".")
    return Orphan(alias, task, member, change)


def _delete(namespace: NamespaceState, entity: TopicState | QueueState) -> Change:
    kind = "topic" if isinstance(entity, TopicState) else "queue"
    return Change(alias=namespace.alias, action="delete", kind=kind, topic=entity.name, before=entity)  # type: ignore[arg-type]


def _deleted(orphans: Iterable[Orphan], alias: str) -> set[tuple[str, str]]:
    """Lower-case names of the entities, and of subscriptions, that are deleted at a namespace."""
    return {(each.change.topic.lower(), each.change.subscription.lower()) for each in orphans if each.alias == alias}


def _unlinked(
    namespace: NamespaceState,
    deleted: set[tuple[str, str]],
    why: str = "so that it does not forward to a deleted entity",
) -> Iterator[Change]:
    """Updates of the remaining entities that end forwarding to deleted ones."""
    for queue in namespace.queues:
        ended = _ended(queue, deleted)
        if ended and (queue.name.lower(), "") not in deleted:
            after = QueueState(name=queue.name, forward_to=ended[0], forward_dead_letters_to=ended[1])
            yield Change(
                alias=namespace.alias,
                action="update",
                kind="queue",
                topic=queue.name,
                after=after,
                before=queue,
                why=why,
            )
    for topic in namespace.topics:
        for subscription in topic.subscriptions:
            ended = _ended(subscription, deleted)
            if not ended or {(topic.name.lower(), ""), (topic.name.lower(), subscription.name.lower())} & deleted:
                continue
            yield Change(
                alias=namespace.alias,
                action="update",
                kind="subscription",
                topic=topic.name,
                subscription=subscription.name,
                after=SubscriptionState(name=subscription.name, forward_to=ended[0], forward_dead_letters_to=ended[1]),
                before=subscription,
                why=why,
            )


def _ended(
    entity: QueueState | SubscriptionState, deleted: set[tuple[str, str]]
) -> tuple[str | None, str | None] | None:
    """The new ForwardTo and ForwardDeadLetteredMessagesTo: empty if it ends, None if it stays; None: both stay."""
    targets = (entity.forward_to, entity.forward_dead_letters_to)
    to, dead_letters = ("" if target and (target.lower(), "") in deleted else None for target in targets)
    return None if to is None and dead_letters is None else (to, dead_letters)
