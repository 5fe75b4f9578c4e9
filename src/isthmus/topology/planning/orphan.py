"""What isthmus made at a namespace and no task of a federation wants any more.

What it is: the search for such entities in all that a namespace holds, their choice by task or member, and the changes that
delete them. What it is not: the deletion, or the count of messages that wait (`isthmus.connectors.administration`).

Invariants:
    I1. Only entities whose names begin with `isthmus.` are deleted, and claims of tasks; of an application's entities nothing
        changes but that they no longer forward to what is deleted, or to a task that no longer names them.
    I2. What belongs to a task that the file does not have is only deleted where that task is named: another file may have it.
    I3. Nothing is deleted that something still forwards to: forwarding is ended first.
    I4. Whoever deletes holds every claim of the tasks concerned (`claims_at`): what a run still reads is not deleted under it.
    I5. The marker of a pair of namespaces is no task's, and never an orphan: it tells which member is fenced.
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
    """One entity that nobody wants.

    Attributes:
        alias: the namespace's.
        task: the task that it was made for, by its name.
        member: the member or target that its name ends with; empty where there is none.
        change: its deletion.
    """

    alias: str
    task: str
    member: str
    change: Change

    @property
    def is_claim(self) -> bool:
        """Whether it holds the claim of a task, and no message of an application's."""
        return self.change.topic.lower() == CLAIM_TOPIC


def find_orphans(federation: Federation, held: Iterable[NamespaceState]) -> list[Orphan]:
    """All orphans, namespace by namespace.

    Args:
        federation: whose tasks want what they want.
        held: of each namespace all that it holds.
    """
    desired = wanted(federation)
    return [
        orphan
        for namespace in held
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
            f"task {name} is in {federation.file}: take it out first, `apply` would make it again"
        )
    of_member = [
        each for each in orphans if each.task.lower() in tasks and folded in {each.member.lower(), each.alias.lower()}
    ]
    return of_member + [each for each in orphans if each.task.lower() == folded and each not in of_member]


def makes_own(plan: Plan) -> bool:
    """Whether a plan makes subscriptions of isthmus's own; a task that was given another topic has some at the former one, too."""
    return any(
        change.action == "create" and change.kind == "subscription" and change.subscription.lower().startswith(OWN)
        for change in plan.changes
    )


def former_notes(federation: Federation, held: Iterable[NamespaceState]) -> tuple[str, ...]:
    """Notes of the subscriptions of tasks at topics that no task of the file names any more; those at other topics a plan notes by itself.

    Args:
        federation: whose tasks want what they want.
        held: of each namespace all that it holds.
    """
    named_topics = {(alias, each.name.lower()) for alias, entities in wanted(federation).items() for each in entities}
    mine, _ = of_tasks(federation, find_orphans(federation, held))
    return tuple(
        f"subscription {each.change.subscription} of {each.change.topic} at {each.alias} is of task {each.task}, which no longer names that "
        "topic: it fills up; move what waits there with the former file, and delete it with isthmus apply --prune"
        for each in mine
        if each.change.subscription
        and not each.is_claim
        and (each.alias, each.change.topic.lower()) not in named_topics
    )


def strays(federation: Federation, held: Iterable[NamespaceState]) -> tuple[Change, ...]:
    """Updates that end what an application's queue or subscription forwards to an entity of a task that no longer names it.

    A task that was given another queue keeps its name, and so does its topic: what the former queue forwards would be taken for the
    new one's.

    Args:
        federation: whose tasks want what they want.
        held: of each namespace all that it holds.
    """
    desired = wanted(federation)
    return tuple(
        change
        for namespace in held
        for change in _strays_of(namespace, {each.name.lower(): each for each in desired.get(namespace.alias, ())})
    )


def claims_at(held: Mapping[str, NamespaceState], tasks: Collection[str]) -> list[tuple[str, str]]:
    """The claims of tasks that exist, by task and alias: a run of such a task holds one of them, be it of another file."""
    folded = {each.lower() for each in tasks}
    return [
        (subscription.name, alias)
        for alias, namespace in held.items()
        if (topic := namespace.topic(CLAIM_TOPIC)) is not None
        for subscription in topic.subscriptions
        if subscription.name.lower() in folded
    ]


def removal(held: Mapping[str, NamespaceState], orphans: Iterable[Orphan]) -> tuple[Change, ...]:
    """The changes that delete orphans, in the order in which they are made."""
    chosen = list(orphans)
    changes = [change for alias, namespace in held.items() for change in _unlinked(namespace, _gone(chosen, alias))]
    rank = {"subscription": 0, "queue": 1, "topic": 2}
    changes += sorted((each.change for each in chosen), key=lambda change: rank[change.kind])
    for alias, namespace in held.items():
        claims = namespace.topic(CLAIM_TOPIC)
        deleted = {each.change.subscription.lower() for each in chosen if each.alias == alias and each.is_claim}
        if claims and deleted and deleted == {each.name.lower() for each in claims.subscriptions}:
            changes.append(Change(alias=alias, action="delete", kind="topic", topic=claims.name, before=claims))
    return tuple(changes)


def _of_namespace(namespace: NamespaceState, desired: Mapping[str, TopicState | QueueState]) -> Iterator[Orphan]:
    for topic in namespace.topics:
        asked = desired.get(topic.name.lower())
        if asked is None and topic.name.lower().startswith(OWN) and topic.name.lower() != CLAIM_TOPIC:
            yield _orphan(namespace.alias, topic.name, _delete(namespace, topic))
            continue
        kept = {each.name.lower() for each in asked.subscriptions} if isinstance(asked, TopicState) else set()
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
        asked = desired.get(change.topic.lower())
        receiver = asked.subscription(name) if change.subscription and isinstance(asked, TopicState) else asked
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


def _gone(orphans: Iterable[Orphan], alias: str) -> set[tuple[str, str]]:
    """Lower-case names of the entities, and of subscriptions, that are deleted at a namespace."""
    return {(each.change.topic.lower(), each.change.subscription.lower()) for each in orphans if each.alias == alias}


def _unlinked(
    namespace: NamespaceState, gone: set[tuple[str, str]], why: str = "so that it does not forward to what is deleted"
) -> Iterator[Change]:
    """Updates that end forwarding to what is deleted, of what stays."""
    for queue in namespace.queues:
        ended = _ended(queue, gone)
        if ended and (queue.name.lower(), "") not in gone:
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
            ended = _ended(subscription, gone)
            if not ended or {(topic.name.lower(), ""), (topic.name.lower(), subscription.name.lower())} & gone:
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


def _ended(entity: QueueState | SubscriptionState, gone: set[tuple[str, str]]) -> tuple[str | None, str | None] | None:
    """What ForwardTo and ForwardDeadLetteredMessagesTo become: empty where it ends, None where it stays; None: both stay."""
    targets = (entity.forward_to, entity.forward_dead_letters_to)
    to, dead_letters = ("" if target and (target.lower(), "") in gone else None for target in targets)
    return None if to is None and dead_letters is None else (to, dead_letters)
