"""Spillover: a message that fails in one region is tried once in the other, and parked when it fails there too.

What it is: the pattern's settings, its checks, the entities that it wants and its two routes ("Insulating applications against Service
Bus outages and disasters"; Microsoft Learn, "Overview of Service Bus dead-letter queues", "Chain Service Bus entities with
autoforwarding"). At both members the dead letters of the queue or subscription are forwarded to a topic of the task, `isthmus.TASK`,
with two subscriptions: one feeds the route to the other member, the other forwards to the parking queue. Half of the deadline is
the time to live at a member; a spilled copy gets the rest. What it is not: the copy, which the route's policy declares.

Invariants:
    I1. Every dead letter that a namespace forwards is selected by exactly one of the two subscriptions.
    I2. A spilled message is never spilled again: its second failure leads to the parking queue.
    I3. No message expires on its path, nor in the parking queue: only the operator removes it there. A message with
        nothing left of its deadline is parked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.message.copy_policy import CopyPolicy
from isthmus.message.name import DEAD_LETTER_REASON, WHY_REASON
from isthmus.rules.syntax.tree import Property, render
from isthmus.topology.check.rule_check import check_filter
from isthmus.topology.claim import CLAIM_TOPIC
from isthmus.topology.file.document import Document, Values
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.file.setting import Kind, Setting, Spec
from isthmus.topology.model import Endpoint, Federation, Flow, NamespaceRef, Route, RouteOptions, Task
from isthmus.topology.pattern.base import COMMON, COMMON_PLANNED
from isthmus.topology.pattern.part.entity import OWN_NAME, check_own_name, read_entity, read_members
from isthmus.topology.pattern.part.replication import (
    LOCK_DURATION,
    RULE,
    check_subscription_name,
    replication_state,
    replication_subscription,
)
from isthmus.topology.pattern.part.subscription import AUDIT, AUDIT_DURATION
from isthmus.topology.state import EntityState, QueueState, RuleState, SubscriptionState, TopicState

__all__ = ["Spillover", "SpilloverTask"]

REASONS = {"max-deliveries": "MaxDeliveryCountExceeded", "expired": "TTLExpiredException"}
"""DeadLetterReason by the names that a task may use for the broker's reasons; any other reason is one of an application."""

PARKING = "parking"
"""Part of the name of the subscription for messages that are not spilled."""

# Ten years: the header of a message can have 49 days at most; without a time to live there it is not changed.
_KEEP_ACTION = "SET sys.TimeToLive = '3650.00:00:00'"

SPEC = Spec(
    "spillover",
    "Applications use both members. A message that fails at one, because its deliveries or its time are used up, or the "
    "application dead-letters "
    "it, is tried once at the other; if it fails there too, it is parked.",
    (
        Setting(
            name="queue",
            kind=Kind.ENTITY,
            description="The queue, of the same name at both members. Exactly one of `queue` and `topic` is written.",
            example="payments",
        ),
        Setting(
            name="topic",
            kind=Kind.ENTITY,
            description="A topic, of the same name at both members; the dead letters of its subscription `subscription` spill into "
            "the other member's topic. Other subscriptions of the topic get the copy too, unless their rules exclude the mark.",
            example="payments",
        ),
        Setting(
            name="subscription",
            kind=Kind.SUBSCRIPTION,
            description="With `topic`: the subscription whose dead letters spill.",
            example="workers",
        ),
        Setting(
            name="members",
            kind=Kind.ALIASES,
            required=True,
            description="Aliases of the two namespaces.",
            example="[ewr, jfk]",
        ),
        Setting(
            name="deadline",
            kind=Kind.DURATION,
            required=True,
            minimum=2_000,
            maximum=2_592_000_000,
            description="The total time limit of a message. Half of it is the DefaultMessageTimeToLive at the member that it is sent "
            "to, where it is dead-lettered when it expires; a spilled copy's TimeToLive is the rest since the first send, and "
            "with nothing left the message is parked. If the namespace does not report when a dead letter was first sent (Azure), "
            "the first half counts as spent.",
            example="10m",
        ),
        Setting(
            name="reasons",
            kind=Kind.NAMES,
            description="Which dead letters spill, by their DeadLetterReason: `max-deliveries`, `expired`, or a reason that the "
            "application gives. All others are parked. Default: `[max-deliveries, expired]`.",
            example="[max-deliveries, expired]",
        ),
        Setting(
            name="parking",
            kind=Kind.ENTITY,
            description="The queue at each member for messages that failed permanently. Default: the entity's name with `-parked`.",
            example="payments-parked",
        ),
        Setting(
            name="mark",
            kind=Kind.PROPERTY,
            description="Application property of a spilled copy, with the number 1. Default: `isthmus-TASK-spilled`.",
            example="spilled",
        ),
        replace(
            AUDIT_DURATION,
            description="Keeps the subscription `audit` of `isthmus.TASK` at both members, which keeps spilled messages for "
            "this time and which no "
            "application consumes: `isthmus verify` reads it.",
        ),
        LOCK_DURATION,
        *COMMON,
        *COMMON_PLANNED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpilloverTask(Task):
    """A task of this pattern.

    Attributes:
        entity: the queue's or topic's name at both members.
        subscription: the subscription whose dead letters spill; empty for a queue.
        deadline_ms: the total time limit of a message.
        reasons: values of DeadLetterReason that spill.
        parking: the queue for messages that failed permanently.
        mark: property that spilled copies carry.
        audit_ms: how long the audit subscription keeps spilled messages; 0 for no limit; None if there is none.
        lock_duration_ms: LockDuration of the subscriptions that feed the routes.
        start: see `RouteOptions`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
    """

    entity: str
    subscription: str = ""
    deadline_ms: int
    reasons: tuple[str, ...] = tuple(REASONS.values())
    parking: str = ""
    mark: str = ""
    audit_ms: int | None = None
    lock_duration_ms: int = 30_000
    start: str = "now"
    ordering: str = "ordered"
    refused: str = "dead-letter"

    @property
    def topic(self) -> str:
        """The topic that the dead letters are forwarded to."""
        return f"{OWN_NAME}{self.name}"

    @property
    def spill_filter(self) -> str:
        """Selects the messages for the other member."""
        return f"{_REASON} IN ({_listed(self.reasons)}) AND {render(Property('user', self.mark))} IS NULL"

    @property
    def parking_filter(self) -> str:
        """Selects all other messages. A comparison of two types is unknown, not true: each type has its own alternative."""
        return (
            f"{render(Property('user', self.mark))} IS NOT NULL OR {_REASON} IS NULL OR {_REASON} NOT IN ({_listed(self.reasons)}) "
            f"OR {_REASON} = 1 OR {_REASON} <> 1 OR {_REASON} IN (TRUE, FALSE) OR {_REASON} <> newid() OR "
            f"{_REASON} <= sys.EnqueuedTimeUtc OR {_REASON} > sys.EnqueuedTimeUtc"
        )


_REASON = render(Property("user", DEAD_LETTER_REASON))


def _listed(texts: tuple[str, ...]) -> str:
    return ", ".join("'" + text.replace("'", "''") + "'" for text in texts)


class Spillover:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> SpilloverTask | None:
        entity = read_entity(name, values, document)
        members = read_members(values, "members", SPEC.name, document)
        if len(members) > 2:
            document.fault(values.at("members"), "spillover is between two members", "write a task for each pair")
        is_queue = values.written("queue")
        subscription = values["subscription"] or ""
        if is_queue and subscription:
            document.fault(values.at("subscription"), "subscription needs topic", "remove it")
        if not is_queue and values.written("topic") and not values.written("subscription"):
            document.fault(
                values.at("topic"), "a topic dead-letters by its subscriptions", "write subscription: NAME beside topic"
            )
        parking = values["parking"] or f"{entity}-parked"
        check_own_name(parking, values.at("parking"), document)
        if entity and parking.lower() == entity.lower():
            document.fault(
                values.at("parking"), f"{parking} is the task's own entity", f"write parking: {entity}-parked"
            )
        if not entity or not members or not values["deadline"] or (not is_queue and not subscription):
            return None
        task = SpilloverTask(
            name=name,
            pattern=SPEC.name,
            members=members,
            place=values.place,
            places=values.places,
            entity=entity,
            subscription=subscription,
            deadline_ms=values["deadline"],
            reasons=self._reasons(values, document),
            parking=parking,
            mark=values["mark"] or f"isthmus-{name}-spilled",
            audit_ms=values["audit"],
            lock_duration_ms=values["lock_duration"],
            start=values["start"],
            ordering=values["ordering"],
            refused=values["refused"],
        )
        for text in (task.spill_filter, task.parking_filter):
            if not check_filter(text, values.at("reasons"), document):
                break
        return task

    @staticmethod
    def _reasons(values: Values, document: Document) -> tuple[str, ...]:
        reasons: dict[str, str] = {}
        for text, place in values["reasons"] or ():
            reason = REASONS.get(text, text)
            if reason.lower() in reasons:
                document.fault(place, f"reason {text} appears twice", "remove one")
            reasons.setdefault(reason.lower(), reason)
        if values.written("reasons") and not reasons and "reasons" not in values.faulty:
            document.fault(values.at("reasons"), "no reason spills", "write reasons: [max-deliveries, expired]")
        return tuple(reasons.values()) or tuple(REASONS.values())

    def named(self, task: SpilloverTask, namespaces: Mapping[str, NamespaceRef]) -> SpilloverTask:
        return task

    def check(self, task: SpilloverTask, federation: Federation, document: Document) -> None:
        for name in (*task.members, PARKING):
            check_subscription_name(task.name, name, task.place, document)
        if PARKING in (alias.lower() for alias in task.members):
            document.fault(
                task.places.get("members", task.place),
                f"a member of a spillover task cannot have the alias {PARKING}, which is reserved for the parking subscription",
                "write another alias",
            )
        if task.topic.lower() == CLAIM_TOPIC:
            document.fault(
                task.place, f"the topic {CLAIM_TOPIC} is reserved for claims of tasks", "write another task name"
            )
        for other in federation.tasks.values():
            if other.name == task.name:
                break
            if not isinstance(other, SpilloverTask) or not set(task.members) & set(other.members):
                continue
            where = ", ".join(sorted(set(task.members) & set(other.members)))
            if (other.entity.lower(), other.subscription.lower()) == (task.entity.lower(), task.subscription.lower()):
                document.fault(
                    task.places.get("topic" if task.subscription else "queue", task.place),
                    f"the dead letters of {task.entity} at {where} are forwarded to task {other.name} already",
                    "remove one of the tasks",
                )
            elif task.parking.lower() in (other.entity.lower(), other.parking.lower()):
                document.fault(
                    task.places.get("parking", task.place),
                    f"the queue {task.parking} at {where} is in task {other.name} already",
                    "write another name for parking",
                )
            elif other.parking.lower() == task.entity.lower():
                document.fault(
                    task.places.get("queue", task.place),
                    f"the queue {task.entity} at {where} is the parking queue of task {other.name}: parked messages would expire there",
                    f"write another name for parking in task {other.name}",
                )

    def wanted(self, task: SpilloverTask) -> Iterator[tuple[str, EntityState]]:
        life_ms = task.deadline_ms // 2
        for member, pair in _pairs(task):
            yield member, QueueState(name=task.parking)
            yield member, TopicState(name=task.topic, subscriptions=tuple(self._subscriptions(task, pair)))
            if not task.subscription:
                yield (
                    member,
                    QueueState(
                        name=task.entity,
                        default_ttl_ms=life_ms,
                        dead_letters_expired=True,
                        forward_dead_letters_to=task.topic,
                    ),
                )
                continue
            failing = SubscriptionState(
                name=task.subscription,
                default_ttl_ms=life_ms,
                dead_letters_expired=True,
                forward_dead_letters_to=task.topic,
            )
            yield member, TopicState(name=task.entity, subscriptions=(failing,))

    @staticmethod
    def _subscriptions(task: SpilloverTask, pair: str) -> Iterator[SubscriptionState]:
        # A message that is parked from there, because its deadline has passed meanwhile, gets another reason from the route.
        kept = f"SET {render(Property('user', WHY_REASON))} = {_REASON}"
        spilled = RuleState(RULE, task.spill_filter, f"{_KEEP_ACTION}; {kept}")
        yield replace(
            replication_state(replication_subscription(task.name, pair), spilled, task.lock_duration_ms),
            forward_dead_letters_to=task.parking,
        )
        parked = RuleState(RULE, task.parking_filter, _KEEP_ACTION)
        yield replace(
            replication_state(replication_subscription(task.name, PARKING), parked, task.lock_duration_ms),
            forward_to=task.parking,
        )
        if task.audit_ms is not None:
            rule = RuleState(RULE, task.spill_filter, _KEEP_ACTION)
            yield SubscriptionState(name=AUDIT, rules=(rule,), default_ttl_ms=task.audit_ms or INFINITE_MS)

    def routes(self, task: SpilloverTask) -> Iterator[Route]:
        options = RouteOptions(
            ordering=task.ordering,
            start=task.start,
            mark=task.mark,
            mark_is_number=True,
            lock_duration_ms=task.lock_duration_ms,
            refused=task.refused,
            policy=CopyPolicy(
                deadline_ms=task.deadline_ms,
                deadline_spent_ms=task.deadline_ms // 2,
                keeps_dead_letter=True,
                dead_letters_returning=True,
            ),
        )
        for member, pair in _pairs(task):
            subscription = replication_subscription(task.name, pair)
            yield Route(
                name=f"{task.name}.{member}.{pair}",
                task=task.name,
                pattern=task.pattern,
                source=Endpoint(member, f"{task.topic}/Subscriptions/{subscription}"),
                targets=(Endpoint(pair, task.entity),),
                options=options,
            )

    def audit(self, task: SpilloverTask) -> Iterator[Flow]:
        for (member, pair), route in zip(_pairs(task), self.routes(task), strict=True):
            path = f"{task.entity}/Subscriptions/{task.subscription}" if task.subscription else task.entity
            yield Flow(
                origin=Endpoint(member, task.topic),
                witness=Endpoint(member, f"{task.topic}/Subscriptions/{AUDIT}" if task.audit_ms is not None else ""),
                target=Endpoint(pair, path),
                routes=(route.name,),
                filter=task.spill_filter,
                target_is_consumed=True,
                expires_ms=task.deadline_ms,
                audit_ms=task.audit_ms or 0,
            )


def _pairs(task: SpilloverTask) -> tuple[tuple[str, str], ...]:
    """Each member with the one that its failed messages are sent to."""
    first, second = task.members[:2]
    return (first, second), (second, first)
