"""What stands against what is wanted.

What it is: the pure comparison that gives the ordered changes which make the entities of a federation, and the faults
that no change can mend. What it is not: the observation and the changes themselves, which a connector's administration
does.

Invariants:
    I1. A plan whose changes have all been made is followed by a plan without changes.
    I2. Nothing of an application's is changed or deleted but rules of subscriptions that the file declares with a filter.
    I3. At no point between two changes does a replication subscription take in messages without its rule's mark: it is
        created with its rule, and a wrong rule is first overwritten and only then deleted.
    I4. A replication subscription is created after the topics and the ordinary subscriptions of all namespaces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from isthmus.errors import Fault, InvalidArgumentError
from isthmus.topology.change import Action, Change, Plan, differences
from isthmus.topology.claim import claims
from isthmus.topology.duplicate import duplicate_notes, keeps_keys
from isthmus.topology.duration import INFINITE_MS, format_ms
from isthmus.topology.log_planner import log_changes, wanted_logs
from isthmus.topology.model import Federation
from isthmus.topology.pattern import PATTERNS
from isthmus.topology.route import routes
from isthmus.topology.state import NamespaceState, RuleState, SubscriptionState, TopicState

__all__ = ["plan", "wanted", "wanted_topics"]

_OWN = "isthmus."


def wanted(federation: Federation) -> dict[str, tuple[TopicState, ...]]:
    """What must stand at each namespace that a task uses: the pattern's entities, and where runs claim the task."""
    topics: dict[str, dict[str, TopicState]] = {}
    for task in federation.tasks.values():
        for alias, topic in (*PATTERNS[task.pattern].wanted(task), *claims(task)):
            if not isinstance(topic, TopicState):
                continue
            at = topics.setdefault(alias, {})
            stands = at.get(topic.name.lower())
            at[topic.name.lower()] = _merged(stands, topic) if stands else topic
    return {alias: tuple(at.values()) for alias, at in topics.items()}


def wanted_topics(federation: Federation) -> dict[str, tuple[str, ...]]:
    """The names of the topics to observe at each namespace that a task uses."""
    return {alias: tuple(topic.name for topic in topics) for alias, topics in wanted(federation).items()}


def plan(federation: Federation, observed: Mapping[str, NamespaceState]) -> Plan:
    """Compare what a federation wants with what stands.

    Args:
        federation: from `isthmus.topology.read`.
        observed: by alias, every namespace that a task uses.

    Raises:
        InvalidArgumentError: a namespace that a task uses was not observed.
    """
    desired = wanted(federation)
    missing = [alias for alias in (*desired, *wanted_logs(federation)) if alias not in observed]
    if missing:
        raise InvalidArgumentError(f"not observed: {', '.join(missing)}")
    planner = _Planner(federation)
    planner.check_endpoints({alias: observed[alias] for alias in (*desired, *wanted_logs(federation))})
    for alias, topics in desired.items():
        for topic in topics:
            planner.topic(observed[alias], topic)
        planner.orphans(observed[alias], topics)
    planner.duplicates(observed)
    logs = log_changes(federation, observed)
    planner.changes += logs.changes
    planner.notes += logs.notes
    planner.faults += logs.faults
    return Plan(
        changes=tuple(sorted(planner.changes, key=_rank)),
        routes=tuple(routes(federation)),
        notes=tuple(planner.notes),
        faults=tuple(planner.faults),
    )


class _Planner:
    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.changes: list[Change] = []
        self.notes: list[str] = []
        self.faults: list[Fault] = []

    def _fault(self, alias: str, message: str, hint: str) -> None:
        place = self.federation.namespaces[alias].place
        self.faults.append(Fault(f"namespace {alias}: {message}", hint, self.federation.file, place.line, place.column))

    def duplicates(self, observed: Mapping[str, NamespaceState]) -> None:
        """Note how each task tells a copy that is sent again."""
        for task in self.federation.tasks.values():
            keyless = [alias for alias in task.members if not keeps_keys(observed[alias].endpoint)]
            self.notes += duplicate_notes(task, keyless)

    def check_endpoints(self, observed: Mapping[str, NamespaceState]) -> None:
        first: dict[str, str] = {}
        for alias, state in observed.items():
            endpoint = state.endpoint.lower()
            if endpoint and endpoint in first:
                self._fault(
                    alias, f"{endpoint} is namespace {first[endpoint]} too", "write one alias, or another connection"
                )
            first.setdefault(endpoint, alias)

    def topic(self, namespace: NamespaceState, topic: TopicState) -> None:
        alias, stands = namespace.alias, namespace.topic(topic.name)
        topic = _fitted(topic, namespace)
        if stands is None:
            if namespace.has_queue(topic.name):
                self._fault(
                    alias,
                    f"a queue stands where the topic {topic.name} should",
                    "write another name, or move the queue's messages and delete it: one queue at many regions is "
                    "modelled as a topic with one subscription",
                )
                return
            bare = replace(topic, subscriptions=())
            self.changes.append(Change(alias=alias, action="create", kind="topic", topic=topic.name, after=bare))
            if topic.duplicate_detection_ms:
                self.notes.append(
                    f"duplicate detection will be on for topic {topic.name} at {alias} "
                    f"({format_ms(topic.duplicate_detection_ms)}): messages with equal MessageId are dropped within it, "
                    "of one publisher and of several"
                )
            for subscription in topic.subscriptions:
                self._create_subscription(alias, topic, subscription)
            return
        self._check_topic(alias, topic, stands)
        for subscription in topic.subscriptions:
            self._subscription(alias, topic, subscription, stands.subscription(subscription.name))

    def _check_topic(self, alias: str, topic: TopicState, stands: TopicState) -> None:
        window_ms = topic.duplicate_detection_ms
        if window_ms == 0 and stands.duplicate_detection_ms:
            self.notes.append(
                f"topic {topic.name} at {alias} stands with duplicate detection "
                f"({format_ms(stands.duplicate_detection_ms)}), which cannot be turned off: a message is dropped there "
                "when its MessageId came before; only copies that are known by their origin are not compared by it"
            )
        if window_ms and not stands.duplicate_detection_ms:
            self._fault(
                alias,
                f"topic {topic.name} stands without duplicate detection, which cannot be turned on",
                "write another value of duplicates in the task, or delete the topic",
            )
        elif window_ms and window_ms != stands.duplicate_detection_ms:
            after = replace(topic, subscriptions=(), partitioned=stands.partitioned)
            before = replace(stands, subscriptions=())
            self.changes.append(
                Change(alias=alias, action="update", kind="topic", topic=topic.name, after=after, before=before)
            )
        if topic.partitioned is False and stands.partitioned:
            self._fault(
                alias,
                f"topic {topic.name} is partitioned and keeps no order, which cannot be changed",
                "write ordering: none in the task, or delete the topic",
            )

    def _create_subscription(self, alias: str, topic: TopicState, subscription: SubscriptionState) -> None:
        self.changes.append(
            Change(
                alias=alias,
                action="create",
                kind="subscription",
                topic=topic.name,
                subscription=subscription.name,
                after=subscription,
            )
        )

    def _subscription(
        self, alias: str, topic: TopicState, subscription: SubscriptionState, stands: SubscriptionState | None
    ) -> None:
        if stands is None:
            self._create_subscription(alias, topic, subscription)
            return
        if subscription.requires_session is False and stands.requires_session:
            self._fault(
                alias,
                f"subscription {subscription.name} of {topic.name} requires sessions, which cannot be changed",
                "delete the subscription; apply creates it again",
            )
            return
        if any(True for _ in differences(stands, subscription)):
            self.changes.append(
                Change(
                    alias=alias,
                    action="update",
                    kind="subscription",
                    topic=topic.name,
                    subscription=subscription.name,
                    after=replace(subscription, rules=None),
                    before=replace(stands, rules=None),
                )
            )
        endless = (stands.default_ttl_ms or 0) >= INFINITE_MS
        if subscription.initial_ttl_ms is not None and subscription.initial_ttl_ms < INFINITE_MS and endless:
            self.notes.append(
                f"subscription {subscription.name} of {topic.name} at {alias} keeps its messages for ever and is left so: "
                f"it fills the topic unless somebody consumes it; write audit: {format_ms(subscription.initial_ttl_ms)} in "
                "the task to change it"
            )
        if subscription.rules is not None:
            self._rules(alias, topic.name, subscription, stands)

    def _rules(self, alias: str, topic: str, subscription: SubscriptionState, stands: SubscriptionState) -> None:
        def change(action: Action, after: RuleState | None, before: RuleState | None, why: str = "") -> None:
            self.changes.append(
                Change(
                    alias=alias,
                    action=action,
                    kind="rule",
                    topic=topic,
                    subscription=subscription.name,
                    after=after,
                    before=before,
                    why=why,
                )
            )

        rules = subscription.rules or ()
        foreign = [rule for rule in stands.rules or () if subscription.rule(rule.name) is None]
        for rule in rules:
            present = stands.rule(rule.name)
            if present is None:
                for other in foreign:
                    if not other.selects_as(rule):
                        change("update", replace(rule, name=other.name), other, "so that nothing passes it meanwhile")
                change("create", rule, None)
            elif not present.selects_as(rule):
                change("update", rule, present)
        for other in foreign:
            replaced = not any(stands.rule(rule.name) for rule in rules) and rules
            change(
                "delete",
                None,
                replace(rules[0], name=other.name) if replaced else other,
                "selects beside the task's rule",
            )

    def orphans(self, namespace: NamespaceState, topics: tuple[TopicState, ...]) -> None:
        """Note subscriptions that isthmus made for members or tasks that are gone; they fill until they are deleted."""
        for topic in topics:
            stands = namespace.topic(topic.name)
            for subscription in stands.subscriptions if stands else ():
                if subscription.name.lower().startswith(_OWN) and not topic.subscription(subscription.name):
                    self.notes.append(
                        f"subscription {subscription.name} of {topic.name} at {namespace.alias} belongs to no task of "
                        "this file: it fills up; delete it once nobody needs its messages"
                    )


def _fitted(topic: TopicState, namespace: NamespaceState) -> TopicState:
    """What is wanted of a topic at this namespace."""
    if topic.keyless_detection_ms is None:
        return topic
    detection_ms = topic.duplicate_detection_ms if keeps_keys(namespace.endpoint) else topic.keyless_detection_ms
    return replace(topic, duplicate_detection_ms=detection_ms, keyless_detection_ms=None)


def _rank(change: Change) -> int:
    """Topics, then ordinary subscriptions, then replication subscriptions, then rules; within each as planned."""
    if change.kind in {"topic", "log"}:
        return 0
    if change.kind == "subscription":
        return 2 if change.subscription.lower().startswith(_OWN) else 1
    return 3


def _merged(first: TopicState, second: TopicState) -> TopicState:
    more = tuple(each for each in second.subscriptions if first.subscription(each.name) is None)
    return replace(first, subscriptions=first.subscriptions + more)
