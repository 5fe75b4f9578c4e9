"""All-active: N namespaces have the topic, and every message sent to any of them reaches all.

What it is: the pattern's settings, its checks, the entities that it wants and its routes (Microsoft Learn,
"Message replication tasks patterns"). Per ordered pair of members the source topic gets a replication subscription without `$Default`, whose one
rule selects messages that no route has marked and marks the copy, so that no copy is copied back. A queue is modelled as a topic
with exactly one ordinary subscription that all its consumers share. What it is not: the execution of routes; the rule on the
mark (`mark`).

Invariants:
    I1. N members give N × (N − 1) routes and as many replication subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.model import Endpoint, Federation, Flow, NamespaceRef, Route, RouteOptions, Task
from isthmus.topology.pattern.base import COMMON, COMMON_PLANNED
from isthmus.topology.pattern.ordering import in_sessions, partitioned
from isthmus.topology.pattern.part.duplicate import (
    DETECTION_WINDOW_MS,
    DUPLICATE_DETECTION,
    DUPLICATES,
    read_duplicates,
)
from isthmus.topology.pattern.part.entity import read_entity, read_members
from isthmus.topology.pattern.part.mark import default_mark
from isthmus.topology.pattern.part.mixed_member import (
    audit_of,
    check_members,
    log_options,
    member_state,
    plain_options,
    read_at,
)
from isthmus.topology.pattern.part.replication import (
    FILTER,
    LOCK_DURATION,
    MARK,
    TOPIC_SIZE,
    TOPIC_SIZE_GB,
    check_subscription_name,
    check_task_filter,
    replication_rule,
    replication_state,
    replication_subscription,
)
from isthmus.topology.pattern.part.subscription import (
    AUDIT,
    AUDIT_DURATION,
    AUDIT_TTL_MS,
    SUBSCRIPTION,
    SUBSCRIPTIONS,
    audited,
    read_task_subscriptions,
)
from isthmus.topology.state import RuleState, SubscriptionState, TopicState, WantedState

__all__ = ["AUDIT", "AUDIT_TTL_MS", "AllActive", "AllActiveTask"]

SPEC = Spec(
    "all-active",
    "Every member has the topic; every message sent to any member reaches all of them. A copy that a crash sends twice "
    "is dropped according to `duplicates`.",
    (
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            description="The topic, of the same name in every member. Exactly one of `topic` and `queue` is written.",
            example="flights",
        ),
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="A queue, modelled as a topic of this name with exactly one ordinary subscription that all "
            "consumers share. Each member's consumers get every message: consumers compete within a member, not across members.",
            example="bookings",
        ),
        Setting(
            name="members",
            kind=Kind.ALIASES,
            required=True,
            description="Aliases of two or more namespaces, of kind `servicebus`, `kafka`, `eventhubs`, `rabbitmq` or `amqp` "
            "([several kinds in one task](../how-to/hold-a-topic-in-several-systems.md)).",
            example="[ewr, jfk]",
        ),
        SUBSCRIPTION,
        SUBSCRIPTIONS,
        AUDIT_DURATION,
        TOPIC_SIZE,
        FILTER,
        MARK,
        DUPLICATES,
        DUPLICATE_DETECTION,
        LOCK_DURATION,
        *COMMON,
        *COMMON_PLANNED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllActiveTask(Task):
    """A task of this pattern.

    Attributes:
        entity: the topic's name in every member.
        is_queue: whether it models a queue.
        subscriptions: the ordinary subscriptions to keep.
        audit_ms: how long the audit subscription keeps a message; 0 for no limit; None if there is no such subscription.
        topic_size_gb: size of topics that are created.
        filter: condition on what is replicated; empty for all.
        mark: property that copies carry.
        mark_is_number: whether its value is the number 1; otherwise their MessageId.
        duplicates: the treatment of a copy that is sent again: `auto`, `origin`, `message-id` or `allow`.
        duplicate_detection_ms: history window of `message-id`; 0 for off.
        lock_duration_ms: LockDuration of the replication subscriptions.
        start: see `RouteOptions`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
        logs: members that are logs, e.g. clusters of Kafka.
        plains: members that are neither logs nor Service Bus, e.g. RabbitMQ.
        blocking: members that cannot keep messages that are set aside: refusals there block.
        recorded: plain members whose topic can record messages for verification.
    """

    entity: str
    is_queue: bool = False
    subscriptions: tuple[SubscriptionState, ...] = ()
    audit_ms: int | None = None
    topic_size_gb: int = TOPIC_SIZE_GB
    filter: str = ""
    mark: str = "replication"
    mark_is_number: bool = True
    duplicates: str = "auto"
    duplicate_detection_ms: int = 0
    lock_duration_ms: int = 30_000
    start: str = "now"
    ordering: str = "ordered"
    refused: str = "dead-letter"
    logs: tuple[str, ...] = ()
    plains: tuple[str, ...] = ()
    blocking: tuple[str, ...] = ()
    recorded: tuple[str, ...] = ()

    @property
    def claim_members(self) -> tuple[str, ...]:
        """The members that are Service Bus: only these can contain a claim."""
        return tuple(each for each in self.members if each not in (*self.logs, *self.plains))

    @property
    def rule(self) -> RuleState:
        """The one rule of its replication subscriptions."""
        return replication_rule(self.mark, self.filter, is_number=self.mark_is_number)


class AllActive:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> AllActiveTask | None:
        entity = read_entity(name, values, document)
        members = read_members(values, "members", SPEC.name, document)
        is_queue = values.written("queue")
        subscriptions, audit_ms = audited(values, read_task_subscriptions(values, document), document)
        is_number = values.written("mark")
        mark = values["mark"] or default_mark(name, ())
        check_task_filter(values["filter"] or "", values.at("filter"), document, mark=mark, is_number=is_number)
        duplicates, window_ms = read_duplicates(values, document)
        if not entity or not members:
            return None
        return AllActiveTask(
            name=name,
            pattern=SPEC.name,
            members=members,
            place=values.place,
            places=values.places,
            entity=entity,
            is_queue=is_queue,
            subscriptions=subscriptions,
            audit_ms=audit_ms,
            topic_size_gb=values["topic_size_gb"],
            filter=values["filter"] or "",
            mark=mark,
            mark_is_number=is_number,
            duplicates=duplicates,
            duplicate_detection_ms=window_ms,
            lock_duration_ms=values["lock_duration"],
            start=values["start"],
            ordering=values["ordering"],
            refused=values["refused"],
        )

    def named(self, task: AllActiveTask, namespaces: Mapping[str, NamespaceRef]) -> AllActiveTask:
        task = replace(
            task,
            logs=tuple(each for each in task.members if each in namespaces and namespaces[each].is_log),
            plains=tuple(each for each in task.members if each in namespaces and namespaces[each].is_plain),
            recorded=tuple(each for each in task.members if each in namespaces and namespaces[each].keeps_audit),
            blocking=tuple(
                each
                for each in task.members
                if each in namespaces
                and not namespaces[each].is_service_bus
                and (namespaces[each].is_log or not namespaces[each].keeps_rejected)
            ),
        )
        if task.mark_is_number:
            return task
        members = [namespaces[alias] for alias in task.members if alias in namespaces]
        addresses = [(each.alias, str(each.connection) if each.connection else each.host) for each in members]
        return replace(task, mark=default_mark(task.name, addresses))

    def check(self, task: AllActiveTask, federation: Federation, document: Document) -> None:
        for target in task.members:
            check_subscription_name(task.name, target, task.place, document)
        check_members(task, federation, document)
        for other in federation.tasks.values():
            if other.name == task.name:
                break
            shared = set(task.members) & set(other.members)
            same = isinstance(other, AllActiveTask) and other.entity.lower() == task.entity.lower()
            if same and shared:
                document.fault(
                    task.places.get("queue" if task.is_queue else "topic", task.place),
                    f"topic {task.entity} at {', '.join(sorted(shared))} is in task {other.name} already",
                    f"write all members into task {other.name}, or another topic",
                )

    def wanted(self, task: AllActiveTask) -> Iterator[tuple[str, WantedState]]:
        for source in task.members:
            if source not in task.claim_members:
                yield source, member_state(task, source)
                continue
            replication = tuple(
                replication_state(
                    replication_subscription(task.name, target),
                    task.rule,
                    task.lock_duration_ms,
                    requires_session=in_sessions(task.ordering),
                )
                for target in task.members
                if target != source
            )
            yield (
                source,
                TopicState(
                    name=task.entity,
                    subscriptions=(*task.subscriptions, *replication),
                    initial_size_megabytes=task.topic_size_gb * 1024,
                    duplicate_detection_ms=task.duplicate_detection_ms,
                    keyless_detection_ms=DETECTION_WINDOW_MS if task.duplicates == "origin" else None,
                    partitioned=partitioned(task.ordering),
                ),
            )

    def routes(self, task: AllActiveTask) -> Iterator[Route]:
        options = RouteOptions(
            ordering=task.ordering,
            start=task.start,
            mark=task.mark,
            mark_is_number=task.mark_is_number,
            duplicates=task.duplicates,
            filter=task.filter,
            lock_duration_ms=task.lock_duration_ms,
            refused=task.refused,
        )
        for source in task.members:
            for target in task.members:
                if source == target:
                    continue
                claims = [each for each in (source, target) if each in task.claim_members]
                yield Route(
                    name=f"{task.name}.{source}.{target}",
                    task=task.name,
                    pattern=task.pattern,
                    source=read_at(task, source, target),
                    targets=(Endpoint(target, task.entity),),
                    options=replace(
                        options,
                        log=log_options(task, source, target),
                        plain=plain_options(task, source, target),
                        refused="block" if source in task.blocking else task.refused,
                    ),
                    claim_at="" if source in claims or not claims else claims[0],
                    is_claimed=bool(claims),
                )

    def audit(self, task: AllActiveTask) -> Iterator[Flow]:
        # A filter of the audit subscription would hide missing messages.
        has_audit = any(each.name.lower() == AUDIT and not each.rules for each in task.subscriptions)
        whole = next((each.name for each in task.subscriptions if not each.rules), "")
        name = AUDIT if has_audit else whole
        for route in self.routes(task):
            source, target = (
                _read_by_audit(task, each.alias, f"{task.entity}/Subscriptions/{name}" if name else "")
                for each in (route.source, route.target)
            )
            yield Flow(
                origin=Endpoint(route.source.alias, task.entity),
                witness=source,
                target=target,
                routes=(route.name,),
                filter=task.filter,
                origin_is_consumed=not (has_audit or route.source.alias in task.logs),
                target_is_consumed=not (has_audit or route.target.alias in task.logs),
                origin_is_recorded=bool(audit_of(task, route.source.alias)),
                target_is_recorded=bool(audit_of(task, route.target.alias)),
                audit_ms=(task.audit_ms or 0) if has_audit else 0,
                detection_ms=task.duplicate_detection_ms,
                consumers=task.subscriptions[0].name if task.is_queue else "",
            )


def _read_by_audit(task: AllActiveTask, alias: str, subscription: str) -> Endpoint:
    """The entity that verification reads at a member; for a plain member its record, else the topic itself."""
    return Endpoint(alias, subscription if alias in task.claim_members else audit_of(task, alias) or task.entity)
