"""All-active: N namespaces each hold the topic, and every message sent to any of them reaches all.

What it is: the pattern's settings, its checks, the entities it wants and the routes it compiles to (FEDERATION.md,
Patterns). Per ordered pair of members the source topic gets a replication subscription without `$Default`, whose one
rule selects what no route has marked and marks the copy, so that no copy ever goes back. A queue is modelled as a topic
with exactly one ordinary subscription that all its consumers share. What it is not: the routes' execution.

Invariants:
    I1. N members give N × (N − 1) routes and as many replication subscriptions.
    I2. No message that bears the mark 1 is selected by any replication rule.
    I3. An unmarked message, and one that an application marked 0, is selected by every replication rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from isthmus.rules.tree import Property, render
from isthmus.topology.document import Document, Place, Values
from isthmus.topology.duration import INFINITE_MS
from isthmus.topology.model import Endpoint, Federation, Route, RouteOptions, Task
from isthmus.topology.pattern.base import COMMON, COMMON_PLANNED
from isthmus.topology.rule_check import check_action, check_filter, check_joined
from isthmus.topology.setting import SUBSCRIPTION_NAME_LIMIT, Kind, Setting, SettingError, Spec
from isthmus.topology.state import RuleState, SubscriptionState, TopicState

__all__ = ["MAX_DELIVERY_COUNT", "RULE", "AllActive", "AllActiveTask", "replication_subscription"]

RULE = "isthmus"
"""Name of the one rule of a replication subscription."""

MAX_DELIVERY_COUNT = 2000
"""The highest that Service Bus takes. A target that is away must not push messages into the dead-letter queue."""

_CONSUMERS = "consumers"

SUBSCRIPTION_SPEC = Spec(
    "subscription",
    "An ordinary subscription that the task keeps on its topic in every member, for applications to read.",
    (
        Setting(
            name="filter",
            kind=Kind.SQL,
            description="SQL filter of the subscription's only rule. Without it the subscription gets every message.",
            example="\"carrier = 'UA'\"",
        ),
        Setting(
            name="action",
            kind=Kind.SQL,
            description="SQL action of the same rule; needs a filter.",
            example="\"SET priority = 'high'\"",
        ),
    ),
)

SPEC = Spec(
    "all-active",
    "Every member holds the topic; every message sent to any member reaches all of them, exactly once where duplicate "
    "detection is on.",
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
            "consumers share. Each member's consumers get every message: share work within a member, not across.",
            example="bookings",
        ),
        Setting(
            name="members",
            kind=Kind.ALIASES,
            required=True,
            description="Aliases of two or more namespaces.",
            example="[ewr, jfk]",
        ),
        Setting(
            name="subscription",
            kind=Kind.SUBSCRIPTION,
            default=_CONSUMERS,
            description="With `queue`: name of the one ordinary subscription, which consumers read.",
            example=_CONSUMERS,
        ),
        Setting(
            name="subscriptions",
            kind=Kind.SUBSCRIPTIONS,
            description="With `topic`: ordinary subscriptions to keep in every member, as a list of names or as a mapping "
            "of names to `filter` and `action`. Others that stand are left alone.",
            example="[boards, audit]",
        ),
        Setting(
            name="filter",
            kind=Kind.SQL,
            description="SQL filter: only messages that it selects are replicated. It is joined with the rule on the mark.",
            example="\"carrier = 'UA'\"",
        ),
        Setting(
            name="mark",
            kind=Kind.PROPERTY,
            default="replication",
            description="Application property that copies bear with the value 1. A message that an application sends "
            "with 0 is still replicated; one that it sends with 1 stays where it is.",
            example="replication",
        ),
        Setting(
            name="duplicate_detection",
            kind=Kind.DURATION,
            default=600_000,
            minimum=20_000,
            maximum=604_800_000,
            may_be_off=True,
            description="History window of the topics' duplicate detection, or `off`. It absorbs the doubles that a "
            "crash between a send and its settlement makes. It is fixed when a topic is created.",
            example="10m",
        ),
        Setting(
            name="lock_duration",
            kind=Kind.DURATION,
            default=30_000,
            minimum=5_000,
            maximum=300_000,
            description="LockDuration of the replication subscriptions. Short, because a dead reader's locks hold an "
            "ordered route back that long; living readers renew.",
            example="30s",
        ),
        *COMMON,
        *COMMON_PLANNED,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllActiveTask(Task):
    """A task of this pattern.

    Attributes:
        entity: the topic's name in every member.
        is_queue: whether it stands for a queue.
        subscriptions: the ordinary subscriptions to keep.
        filter: condition on what is replicated; empty for all.
        mark: property that copies bear.
        duplicate_detection_ms: history window; 0 for off.
        lock_duration_ms: of the replication subscriptions.
        start: see `RouteOptions`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
    """

    entity: str
    is_queue: bool = False
    subscriptions: tuple[SubscriptionState, ...] = ()
    filter: str = ""
    mark: str = "replication"
    duplicate_detection_ms: int = 600_000
    lock_duration_ms: int = 30_000
    start: str = "now"
    ordering: str = "ordered"
    refused: str = "dead-letter"


def replication_subscription(task: str, target: str) -> str:
    """Name of the subscription that feeds the route to a target."""
    return f"isthmus.{task}.{target}"


def mark_filter(mark: str, condition: str = "") -> str:
    """The replication rule's filter: what no route has marked yet, and what the operator's condition selects."""
    name = render(Property("user", mark))
    unmarked = f"{name} IS NULL OR {name} <> 1"
    return f"({unmarked}) AND ({condition})" if condition else unmarked


def mark_action(mark: str) -> str:
    """The replication rule's action."""
    return f"SET {render(Property('user', mark))} = 1"


class AllActive:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> AllActiveTask | None:
        entity = self._entity(name, values, document)
        members = self._members(values, document)
        is_queue = values.written("queue")
        subscriptions = self._subscriptions(values, document, is_queue=is_queue)
        mark, text = values["mark"], values["filter"]
        if text and check_filter(text, values.at("filter"), document, mark=mark):
            check_joined(mark_filter(mark, text), values.at("filter"), document, mark=mark)
        if not entity or not members:
            return None
        return AllActiveTask(
            name=name,
            pattern=SPEC.name,
            members=tuple(members),
            place=values.place,
            places=values.places,
            entity=entity,
            is_queue=is_queue,
            subscriptions=subscriptions,
            filter=values["filter"] or "",
            mark=values["mark"],
            duplicate_detection_ms=values["duplicate_detection"],
            lock_duration_ms=values["lock_duration"],
            start=values["start"],
            ordering=values["ordering"],
            refused=values["refused"],
        )

    @staticmethod
    def _entity(name: str, values: Values, document: Document) -> str:
        if values.written("topic") and values.written("queue"):
            document.fault(values.at("queue"), f"task {name} has both topic and queue", "remove one")
        elif not values.written("topic") and not values.written("queue"):
            document.fault(values.place, f"task {name} has no topic", f"write topic: {name}, or queue: {name}")
        entity: str = values["topic"] or values["queue"] or ""
        if entity.lower().startswith("isthmus."):
            place = values.at("topic") if values["topic"] else values.at("queue")
            document.fault(place, "names that begin with 'isthmus.' are isthmus's own", "write another name")
        return entity

    @staticmethod
    def _members(values: Values, document: Document) -> list[str]:
        if values["members"] is None:
            return []
        members: list[str] = []
        for alias, place in values["members"]:
            if alias in members:
                document.fault(place, f"member {alias} stands twice", "remove one")
            else:
                members.append(alias)
        if len(values["members"]) < 2:
            document.fault(values.at("members"), "all-active needs two members or more", "write members: [ewr, jfk]")
        return members

    def _subscriptions(self, values: Values, document: Document, *, is_queue: bool) -> tuple[SubscriptionState, ...]:
        if is_queue:
            if values.written("subscriptions"):
                document.fault(
                    values.at("subscriptions"),
                    "a queue has exactly one subscription",
                    "write subscription: NAME, or topic: instead of queue:",
                )
            return (SubscriptionState(name=values["subscription"]),)
        if values.written("subscription"):
            document.fault(
                values.at("subscription"), "subscription goes with queue", "write subscriptions: [NAME] for a topic"
            )
        node = values["subscriptions"]
        if node is None:
            return ()
        named = list(self._named(node, document))
        found: dict[str, SubscriptionState] = {}
        for subscription, place in named:
            key = subscription.name.lower()
            if key in found:
                document.fault(place, f"subscription {subscription.name} stands twice", "remove one")
            elif key.startswith("isthmus."):
                document.fault(place, "names that begin with 'isthmus.' are isthmus's own", "write another name")
            found.setdefault(key, subscription)
        return tuple(found.values())

    def _named(self, node: object, document: Document) -> Iterator[tuple[SubscriptionState, Place]]:
        setting = Setting(name="subscriptions", kind=Kind.SUBSCRIPTION, description="", example="[boards, audit]")
        items = document.items(node, "subscriptions", setting.example)
        for key, value in items:
            try:
                name = setting.parse(document.scalar(setting, key))
            except SettingError as wrong:
                document.fault(document.place(key), wrong.message, wrong.hint)
                continue
            rules: tuple[RuleState, ...] | None = None
            if value is not None and not document.is_empty(value):
                values = document.settings(value, SUBSCRIPTION_SPEC, f"subscription {name}")
                rules = self._rules(values, document)
            yield SubscriptionState(name=name, rules=rules), document.place(key)

    @staticmethod
    def _rules(values: Values, document: Document) -> tuple[RuleState, ...] | None:
        if values["filter"]:
            check_filter(values["filter"], values.at("filter"), document)
        if values["action"]:
            check_action(values["action"], values.at("action"), document)
            if not values.written("filter"):
                document.fault(
                    values.at("action"), "an action needs a filter", 'write filter: "1 = 1" for all messages'
                )
        return (RuleState("filter", values["filter"], values["action"] or ""),) if values["filter"] else None

    def check(self, task: AllActiveTask, federation: Federation, document: Document) -> None:
        for target in task.members:
            name = replication_subscription(task.name, target)
            if len(name) > SUBSCRIPTION_NAME_LIMIT:
                document.fault(
                    task.place,
                    f"the replication subscription {name} has {len(name)} characters, {SUBSCRIPTION_NAME_LIMIT} at most",
                    f"shorten the task's name or the alias by {len(name) - SUBSCRIPTION_NAME_LIMIT}",
                )
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

    def wanted(self, task: AllActiveTask) -> Iterator[tuple[str, TopicState]]:
        rule = RuleState(RULE, mark_filter(task.mark, task.filter), mark_action(task.mark))
        for source in task.members:
            replication = tuple(
                SubscriptionState(
                    name=replication_subscription(task.name, target),
                    rules=(rule,),
                    lock_duration_ms=task.lock_duration_ms,
                    max_delivery_count=MAX_DELIVERY_COUNT,
                    auto_delete_on_idle_ms=INFINITE_MS,
                    requires_session=False,
                    forward_to="",
                )
                for target in task.members
                if target != source
            )
            yield (
                source,
                TopicState(
                    name=task.entity,
                    subscriptions=(*task.subscriptions, *replication),
                    duplicate_detection_ms=task.duplicate_detection_ms,
                    partitioned=False if task.ordering == "ordered" else None,
                ),
            )

    def routes(self, task: AllActiveTask) -> Iterator[Route]:
        options = RouteOptions(
            ordering=task.ordering,
            start=task.start,
            mark=task.mark,
            filter=task.filter,
            lock_duration_ms=task.lock_duration_ms,
            refused=task.refused,
        )
        for source in task.members:
            for target in task.members:
                if source != target:
                    subscription = replication_subscription(task.name, target)
                    yield Route(
                        name=f"{task.name}.{source}.{target}",
                        task=task.name,
                        pattern=task.pattern,
                        source=Endpoint(source, f"{task.entity}/Subscriptions/{subscription}"),
                        targets=(Endpoint(target, task.entity),),
                        options=options,
                    )
