"""All-active: N namespaces each hold the topic, and every message sent to any of them reaches all.

What it is: the pattern's settings, its checks, the entities it wants and the routes it compiles to (Microsoft Learn,
"Message replication tasks patterns"). Per ordered pair of members the source topic gets a replication subscription without `$Default`, whose one
rule selects what no route has marked and marks the copy, so that no copy ever goes back. A queue is modelled as a topic
with exactly one ordinary subscription that all its consumers share. What it is not: the routes' execution; the rule on the
mark (`mark`). Over 400 lines: settings, checks, entities and routes of the pattern, which are read together.

Invariants:
    I1. N members give N × (N − 1) routes and as many replication subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from isthmus.topology.document import Document, Place, Values
from isthmus.topology.duration import INFINITE_MS
from isthmus.topology.model import Endpoint, Federation, Flow, NamespaceRef, Route, RouteOptions, Task
from isthmus.topology.pattern.base import COMMON, COMMON_PLANNED
from isthmus.topology.pattern.mark import default_mark, mark_action, mark_filter, unmarked_filter
from isthmus.topology.rule_check import check_action, check_filter, check_joined
from isthmus.topology.setting import SUBSCRIPTION_NAME_LIMIT, Kind, Setting, SettingError, Spec
from isthmus.topology.state import RuleState, SubscriptionState, TopicState

__all__ = [
    "AUDIT",
    "AUDIT_TTL_MS",
    "DETECTION_WINDOW_MS",
    "MAX_DELIVERY_COUNT",
    "RULE",
    "AllActive",
    "AllActiveTask",
    "replication_subscription",
]

RULE = "isthmus"
"""Name of the one rule of a replication subscription."""

MAX_DELIVERY_COUNT = 2000
"""The highest that Service Bus takes. A target that is away must not push messages into the dead-letter queue."""

AUDIT = "audit"
"""Name of the subscription that holds every message for `isthmus verify`, and that no application consumes."""

AUDIT_TTL_MS = 86_400_000
"""How long an audit subscription keeps a message unless the task says otherwise."""

TOPIC_SIZE_GB = 5
"""The largest size that every tier of Service Bus takes (quotas, "Queue or topic size")."""

DETECTION_WINDOW_MS = 600_000
"""Of duplicate detection where a task needs it and names no window: the service's own default."""

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
    "Every member holds the topic; every message sent to any member reaches all of them. A copy that a crash sends twice "
    "is dropped as `duplicates` says.",
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
            name="audit",
            kind=Kind.DURATION,
            minimum=60_000,
            maximum=INFINITE_MS,
            may_be_off=True,
            description="Keeps the subscription `audit` at every member, which holds every message so long and which no "
            "application consumes: `isthmus verify` reads it. With `off`, `audit` among `subscriptions` keeps its messages "
            "for ever. Without this setting, `audit` among `subscriptions` keeps them for a day, and a queue has none.",
            example="1d",
        ),
        Setting(
            name="topic_size_gb",
            kind=Kind.INTEGER,
            default=TOPIC_SIZE_GB,
            minimum=1,
            maximum=80,
            description="Size of the topics that `apply` creates, in GB. Publishers are refused at a topic that is full. A "
            "topic that stands keeps its size.",
            example="5",
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
            description="Application property that copies bear. Without it a property of the task's own, "
            "`isthmus-TASK-HASH`, that holds the copy's MessageId. With it the property of this name, that holds the "
            "number 1: a message that an application sends with another value is still replicated, of whatever type but "
            "binary; one that it sends with the number 1 stays where it is.",
            example="replication",
        ),
        Setting(
            name="duplicates",
            kind=Kind.CHOICE,
            choices=("auto", "origin", "message-id", "allow"),
            default="auto",
            description="What becomes of a copy that is sent again after a crash. `origin`: a copy is known by namespace, "
            "entity, sequence number and time where its message entered; a namespace of isthmus drops the second one "
            "within an hour, whatever the MessageIds are, and at Azure, whose topics then have duplicate detection, the "
            "copy's MessageId is made of these and the sender's own stands in the property `repl-message-id`. "
            "`message-id`: the topics have duplicate detection, which drops every message whose MessageId came before, "
            "of one publisher and of several: only for ids that are unique over all publishers. `allow`: both stand, and "
            "`isthmus verify` counts them. `auto`: `origin` at namespaces of isthmus, `allow` at Azure.",
            example="origin",
        ),
        Setting(
            name="duplicate_detection",
            kind=Kind.DURATION,
            minimum=20_000,
            maximum=604_800_000,
            may_be_off=True,
            description="History window of the topics' duplicate detection, with `duplicates: message-id` (there `10m` "
            "unless it is written). A file that has a window and no `duplicates` means `message-id`. Whether a topic has "
            "detection is fixed when it is created.",
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
        audit_ms: how long the audit subscription keeps a message; 0 for no limit; None where there is no such subscription.
        topic_size_gb: size of topics that are created.
        filter: condition on what is replicated; empty for all.
        mark: property that copies bear.
        mark_is_number: whether they bear it with the number 1; else with their MessageId.
        duplicates: what becomes of a copy that is sent again: `auto`, `origin`, `message-id` or `allow`.
        duplicate_detection_ms: history window of `message-id`; 0 for off.
        lock_duration_ms: of the replication subscriptions.
        start: see `RouteOptions`.
        ordering: see `RouteOptions`.
        refused: see `RouteOptions`.
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

    @property
    def rule(self) -> RuleState:
        """The one rule of its replication subscriptions."""
        is_number = self.mark_is_number
        return RuleState(
            RULE,
            mark_filter(self.mark, self.filter, is_number=is_number),
            mark_action(self.mark, is_number=is_number),
        )


def replication_subscription(task: str, target: str) -> str:
    """Name of the subscription that feeds the route to a target."""
    return f"isthmus.{task}.{target}"


class AllActive:
    """The pattern."""

    spec = SPEC

    def build(self, name: str, values: Values, document: Document) -> AllActiveTask | None:
        entity = self._entity(name, values, document)
        members = self._members(values, document)
        is_queue = values.written("queue")
        subscriptions = self._subscriptions(values, document, is_queue=is_queue)
        subscriptions, audit_ms = self._audited(values, subscriptions, document)
        is_number = values.written("mark")
        mark, text = values["mark"] or default_mark(name, ()), values["filter"]
        if text and check_filter(text, values.at("filter"), document, mark=mark):
            joined = mark_filter(mark, text, is_number=is_number)
            check_joined(joined, values.at("filter"), document, mark=mark, unmarked=unmarked_filter(mark, text))
        duplicates, window_ms = self._duplicates(values, document)
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
        if task.mark_is_number:
            return task
        members = [namespaces[alias] for alias in task.members if alias in namespaces]
        places = [(each.alias, str(each.connection) if each.connection else each.host) for each in members]
        return replace(task, mark=default_mark(task.name, places))

    @staticmethod
    def _duplicates(values: Values, document: Document) -> tuple[str, int]:
        """What becomes of doubles, and the window of detection by MessageId."""
        window_ms = values["duplicate_detection"]
        if not values.written("duplicates"):
            return ("message-id", window_ms) if window_ms else ("auto", 0)
        duplicates = values["duplicates"]
        place = values.at("duplicate_detection")
        if duplicates == "message-id":
            if window_ms == 0:
                document.fault(
                    place, "duplicates: message-id needs duplicate detection", "write duplicate_detection: 10m"
                )
            return duplicates, DETECTION_WINDOW_MS if window_ms is None else window_ms
        if window_ms:
            document.fault(
                place,
                f"duplicate_detection compares MessageIds, which duplicates: {duplicates} does not",
                "remove it, or write duplicates: message-id",
            )
        return duplicates, 0

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
            if values["subscription"].lower() == AUDIT:
                document.fault(
                    values.at("subscription"),
                    f"the name {AUDIT} is that of the subscription that isthmus verify reads, and no application",
                    f"write subscription: {_CONSUMERS}",
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

    @staticmethod
    def _audited(
        values: Values, subscriptions: tuple[SubscriptionState, ...], document: Document
    ) -> tuple[tuple[SubscriptionState, ...], int | None]:
        """The subscriptions with the audit subscription as the task wants it, and how long that keeps a message."""
        declared = any(each.name.lower() == AUDIT for each in subscriptions)
        if not declared and not values["audit"]:
            return subscriptions, None
        written = values["audit"] is not None
        audit_ms: int = values["audit"] if written else AUDIT_TTL_MS
        ttl_ms = audit_ms or INFINITE_MS
        if ttl_ms >= INFINITE_MS:
            document.warn(
                values.at("audit"),
                f"the subscription {AUDIT} keeps its messages for ever: unless somebody consumes them it fills the topic, "
                "until publishers are refused",
                "write audit: 1d",
            )

        def kept(each: SubscriptionState) -> SubscriptionState:
            # One that stands may be an application's, which relies on what it was made with.
            return replace(each, default_ttl_ms=ttl_ms) if written else replace(each, initial_ttl_ms=ttl_ms)

        all_of_them = subscriptions if declared else (*subscriptions, SubscriptionState(name=AUDIT))
        return tuple(kept(each) if each.name.lower() == AUDIT else each for each in all_of_them), audit_ms

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
        for source in task.members:
            replication = tuple(
                SubscriptionState(
                    name=replication_subscription(task.name, target),
                    rules=(task.rule,),
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
                    initial_size_megabytes=task.topic_size_gb * 1024,
                    duplicate_detection_ms=task.duplicate_detection_ms,
                    keyless_detection_ms=DETECTION_WINDOW_MS if task.duplicates == "origin" else None,
                    partitioned=False if task.ordering == "ordered" else None,
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

    def audit(self, task: AllActiveTask) -> Iterator[Flow]:
        # What the filter of an audit subscription leaves out would be missed nowhere.
        has_audit = any(each.name.lower() == AUDIT and not each.rules for each in task.subscriptions)
        whole = next((each.name for each in task.subscriptions if not each.rules), "")
        name = AUDIT if has_audit else whole
        for route in self.routes(task):
            source, target = (
                Endpoint(each.alias, f"{task.entity}/Subscriptions/{name}" if name else "")
                for each in (route.source, route.target)
            )
            yield Flow(
                origin=Endpoint(route.source.alias, task.entity),
                witness=source,
                target=target,
                routes=(route.name,),
                filter=task.filter,
                origin_is_consumed=not has_audit,
                target_is_consumed=not has_audit,
                audit_ms=(task.audit_ms or 0) if has_audit else 0,
                detection_ms=task.duplicate_detection_ms,
                consumers=task.subscriptions[0].name if task.is_queue else "",
            )
