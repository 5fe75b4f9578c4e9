"""Active-passive: messages sent to the primary are also at the secondary, for as long as a failover needs them.

What it is: the pattern's settings, its checks, the entities it wants and its one route (Microsoft Learn, "Message replication
tasks patterns", active-passive; "Insulating applications against Service Bus outages and disasters"). The primary's topic gets a
replication subscription whose DefaultMessageTimeToLive is twice `failover_within`; the route gives each copy the rest of the original's
life, at most that long, so that the secondary has only the messages that a failover needs. A rule's action could also set the time to
live, but not to the lesser of two values: it would lengthen the life of a message with a shorter one.
What it is not: the failover of publishers and consumers (docs/how-to/active-passive.md).

Invariants:
    I1. There is one route, from the primary to the secondary; nothing at the secondary is ever copied back.
    I2. No copy lives longer than its original, nor longer than twice `failover_within` at the secondary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.message.copy_policy import CopyPolicy
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
from isthmus.topology.pattern.part.entity import read_entity
from isthmus.topology.pattern.part.mark import default_mark
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
    SUBSCRIPTION,
    SUBSCRIPTIONS,
    audited,
    read_task_subscriptions,
)
from isthmus.topology.state import SubscriptionState, TopicState

__all__ = ["ActivePassive", "ActivePassiveTask"]

SPEC = Spec(
    "active-passive",
    "Applications use the primary; the secondary has copies of the last messages, so that publishers and consumers can continue there when "
    "the primary is unavailable. Copies live at most twice as long as a failover may take. Nothing is copied back to the primary.",
    (
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            description="The topic, of the same name at both. Exactly one of `topic` and `queue` is written.",
            example="bookings",
        ),
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="A queue, modelled as a topic of this name with exactly one ordinary subscription that all consumers share.",
            example="bookings",
        ),
        Setting(
            name="primary",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the namespace that applications use.",
            example="ewr",
        ),
        Setting(
            name="secondary",
            kind=Kind.ALIAS,
            required=True,
            description="Alias of the namespace that applications use while the primary is unavailable.",
            example="jfk",
        ),
        Setting(
            name="failover_within",
            kind=Kind.DURATION,
            required=True,
            minimum=1_000,
            maximum=86_400_000,
            description="The longest time until consumers read at the secondary after the primary became unavailable. A copy's TimeToLive is "
            "the rest of its original's, and at most twice this time, both while it waits for the secondary and there.",
            example="1m",
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
class ActivePassiveTask(Task):
    """A task of this pattern; `members` are the primary and the secondary.

    Attributes:
        entity: the topic's name at both.
        is_queue: whether it models a queue.
        failover_within_ms: how long a failover may take.
        subscriptions: the ordinary subscriptions to keep at both.
        audit_ms: how long the audit subscription keeps a message; 0 for no limit; None if there is no such subscription.
        topic_size_gb: size of topics that are created.
        filter: condition on what is replicated; empty for all.
        mark: property that copies carry.
        mark_is_number: whether its value is the number 1; otherwise their MessageId.
        duplicates: the treatment of a copy that is sent again: `auto`, `origin`, `message-id` or `allow`.
        duplicate_detection_ms: history window of `message-id`; 0 for off.
        lock_duration_ms: LockDuration of the replication subscription.
        start: see `RouteOptions`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
    """

    entity: str
    is_queue: bool = False
    failover_within_ms: int
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

    @property
    def window_ms(self) -> int:
        """The longest life of a copy."""
        return 2 * self.failover_within_ms


class ActivePassive:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> ActivePassiveTask | None:
        entity = read_entity(name, values, document)
        primary, secondary = values["primary"], values["secondary"]
        if primary and primary == secondary:
            document.fault(
                values.at("secondary"),
                f"primary and secondary of task {name} are both {primary}",
                "write another namespace's alias",
            )
        subscriptions, audit_ms = audited(values, read_task_subscriptions(values, document), document)
        is_number = values.written("mark")
        mark = values["mark"] or default_mark(name, ())
        check_task_filter(values["filter"] or "", values.at("filter"), document, mark=mark, is_number=is_number)
        duplicates, window_ms = read_duplicates(values, document)
        if not entity or not primary or not secondary or not values["failover_within"]:
            return None
        return ActivePassiveTask(
            name=name,
            pattern=SPEC.name,
            members=(primary, secondary),
            place=values.place,
            places=values.places,
            entity=entity,
            is_queue=values.written("queue"),
            failover_within_ms=values["failover_within"],
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

    def named(self, task: ActivePassiveTask, namespaces: Mapping[str, NamespaceRef]) -> ActivePassiveTask:
        if task.mark_is_number:
            return task
        members = [namespaces[alias] for alias in task.members if alias in namespaces]
        addresses = [(each.alias, str(each.connection) if each.connection else each.host) for each in members]
        return replace(task, mark=default_mark(task.name, addresses))

    def check(self, task: ActivePassiveTask, federation: Federation, document: Document) -> None:
        check_subscription_name(task.name, task.members[1], task.place, document)
        for other in federation.tasks.values():
            if other.name == task.name:
                break
            same = isinstance(other, ActivePassiveTask) and other.entity.lower() == task.entity.lower()
            if same and other.members == task.members:
                document.fault(
                    task.places.get("queue" if task.is_queue else "topic", task.place),
                    f"topic {task.entity} is replicated from {' to '.join(task.members)} by task {other.name} already",
                    "write another topic, or remove one of the tasks",
                )

    def wanted(self, task: ActivePassiveTask) -> Iterator[tuple[str, TopicState]]:
        primary, secondary = task.members
        rule = replication_rule(task.mark, task.filter, is_number=task.mark_is_number)
        name = replication_subscription(task.name, secondary)
        replication = replace(
            replication_state(name, rule, task.lock_duration_ms, requires_session=in_sessions(task.ordering)),
            default_ttl_ms=task.window_ms,
            dead_letters_expired=False,
        )
        topic = TopicState(
            name=task.entity,
            subscriptions=task.subscriptions,
            initial_size_megabytes=task.topic_size_gb * 1024,
            duplicate_detection_ms=task.duplicate_detection_ms,
            keyless_detection_ms=DETECTION_WINDOW_MS if task.duplicates == "origin" else None,
            partitioned=partitioned(task.ordering),
        )
        yield primary, replace(topic, subscriptions=(*task.subscriptions, replication))
        yield secondary, topic

    def routes(self, task: ActivePassiveTask) -> Iterator[Route]:
        primary, secondary = task.members
        subscription = replication_subscription(task.name, secondary)
        yield Route(
            name=f"{task.name}.{primary}.{secondary}",
            task=task.name,
            pattern=task.pattern,
            source=Endpoint(primary, f"{task.entity}/Subscriptions/{subscription}"),
            targets=(Endpoint(secondary, task.entity),),
            options=RouteOptions(
                ordering=task.ordering,
                start=task.start,
                mark=task.mark,
                mark_is_number=task.mark_is_number,
                duplicates=task.duplicates,
                filter=task.filter,
                lock_duration_ms=task.lock_duration_ms,
                refused=task.refused,
                policy=CopyPolicy(ttl_ceiling_ms=task.window_ms),
            ),
        )

    def audit(self, task: ActivePassiveTask) -> Iterator[Flow]:
        primary, secondary = task.members
        # A filter of the audit subscription would hide missing messages.
        has_audit = any(each.name.lower() == AUDIT and not each.rules for each in task.subscriptions)
        whole = next((each.name for each in task.subscriptions if not each.rules), "")
        name = AUDIT if has_audit else whole
        path = f"{task.entity}/Subscriptions/{name}" if name else ""
        yield Flow(
            origin=Endpoint(primary, task.entity),
            witness=Endpoint(primary, path),
            target=Endpoint(secondary, path),
            routes=tuple(route.name for route in self.routes(task)),
            filter=task.filter,
            origin_is_consumed=not has_audit,
            target_is_consumed=not has_audit,
            expires_ms=task.window_ms,
            audit_ms=(task.audit_ms or 0) if has_audit else 0,
            detection_ms=task.duplicate_detection_ms,
            consumers=task.subscriptions[0].name if task.is_queue else "",
        )
