"""Service Bus entities, through azure-servicebus's administration client.

What it is: `isthmus.connectors.administration.Administration` for Service Bus and any namespace with its Atom API
(docs/explanation/protocol.md, Administration). What it is not: an Atom client of our own, except for one element that the Python client
cannot send: the rule with which a subscription is created. Without it a subscription would receive unmarked messages between its
creation and the change of `$Default`, and a copy without mark returns to its origin.

Invariants:
    I1. An update sends the entity as it was read with only the change's fields replaced, because the API replaces whole entities.
    I2. No error contains a key or a token.
    I3. An update of a plan is refused where another client has changed the same settings since the plan was made; the entity is read
        directly before it is written. Our own namespaces also detect a change in between; Azure's have no condition for that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import NamedTuple, Self

from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import (
    SqlRuleAction,
    SqlRuleFilter,
    SubscriptionProperties,
    TopicProperties,
)

from isthmus.connectors.administration import EntityChangedError, EntitySize
from isthmus.connectors.servicebus.administration.client import (
    CA_FILE_VARIABLE,
    OpenClient,
    administration_errors,
    ca_file,
    open_administration_client,
)
from isthmus.connectors.servicebus.administration.entity_property import (
    queue_state,
    received,
    rule_state,
    settings_of,
    topic_state,
    waiting_in_topic,
)
from isthmus.connectors.servicebus.administration.listing import listed, listed_below
from isthmus.topology import (
    Change,
    NamespaceRef,
    NamespaceState,
    QueueState,
    RuleState,
    SubscriptionState,
    TopicState,
    WantedState,
)
from isthmus.topology.canary import has_canary
from isthmus.topology.planning.change import Entity, moved_on

__all__ = ["CA_FILE_VARIABLE", "ServiceBusAdministration", "ca_file"]


_LIMIT_SECONDS = 600.0
"""How long an entity's size limit is cached: operators change it rarely, and its size is queried often."""


class _Limit(NamedTuple):
    """An entity's kind and size limit, and the monotonic second until which they are cached."""

    kind: str
    limit_bytes: int
    until: float


class ServiceBusAdministration:
    """The entities of one namespace.

    Args:
        opened: the namespace's client.
    """

    def __init__(self, opened: OpenClient) -> None:
        self._opened = opened
        self._client, self._transport, self._endpoint = opened
        self._limits: dict[str, _Limit] = {}

    @classmethod
    def open(cls, namespace: NamespaceRef) -> Self:
        """Opens an administration with the namespace's connection string or identity.

        Raises:
            SecretError, ConnectionStringError: the connection cannot be resolved.
            AdministrationError: the authority's file does not exist.
        """
        return cls(open_administration_client(namespace))

    def close(self) -> None:
        self._client.close()

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        topics: list[TopicState] = []
        queues: list[QueueState] = []
        with self._errors():
            # Also detects an unreachable or refusing namespace where no entity is requested.
            identity = self._opened.identity()
            for asked in entities:
                of_topic = asked if isinstance(asked, TopicState) else TopicState(name=asked.name)
                for observe in (self._topic, self._queue) if asked is of_topic else (self._queue, self._topic):
                    match observe(of_topic):
                        case TopicState() as topic:
                            topics.append(topic)
                        case QueueState() as queue:
                            queues.append(queue)
                        case None:
                            continue
                    break
        return NamespaceState(
            alias=alias, endpoint=self._endpoint, identity=identity, topics=tuple(topics), queues=tuple(queues)
        )

    def _topic(self, topic: TopicState) -> TopicState | None:
        try:
            existing = self._client.get_topic(topic.name)
        except (ResourceNotFoundError, AttributeError):
            # The client fails on the answer for a queue of this name, which has no topic description.
            return None
        return self._topic_state(topic, existing)

    def _topic_state(self, topic: TopicState, existing: TopicProperties) -> TopicState:
        subscriptions = tuple(
            self._subscription(topic, each) for each in listed_below(self._client.list_subscriptions, topic.name)
        )
        return replace(topic_state(topic.name, existing), subscriptions=subscriptions)

    def _queue(self, asked: TopicState) -> QueueState | None:
        try:
            existing = self._client.get_queue(asked.name)
        except (ResourceNotFoundError, AttributeError):  # see `_topic`
            return None
        return queue_state(asked.name, existing)

    def _subscription(self, topic: TopicState, existing: SubscriptionProperties) -> SubscriptionState:
        rules: tuple[RuleState, ...] | None = None
        if topic.subscription(existing.name) is not None or has_canary(topic):
            rules = tuple(rule_state(each) for each in listed_below(self._client.list_rules, topic.name, existing.name))
        return SubscriptionState(
            name=existing.name,
            rules=rules,
            **received(existing),
        )

    def inventory(self, alias: str) -> NamespaceState:
        with self._errors():
            identity = self._opened.identity()
            topics = tuple(
                self._topic_state(TopicState(name=each.name), each) for each in listed(self._client.list_topics)
            )
            queues = tuple(queue_state(each.name, each) for each in listed(self._client.list_queues))
        return NamespaceState(alias=alias, endpoint=self._endpoint, identity=identity, topics=topics, queues=queues)

    def waiting(self, change: Change) -> int:
        with self._errors():
            if change.kind == "queue":
                return int(self._client.get_queue_runtime_properties(change.topic).total_message_count or 0)
            if change.kind == "subscription":
                name = change.subscription
                found = self._client.get_subscription_runtime_properties(change.topic, name)
                return int(found.total_message_count or 0)
            return waiting_in_topic(self._client, change.topic)

    def describe(self) -> str:
        """Name and tier of the namespace, for display.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with self._errors():
            found = self._client.get_namespace_properties()
        units = f", {found.messaging_units} messaging units" if found.messaging_units else ""
        return f"namespace {found.name}, tier {found.messaging_sku or 'unknown'}{units}"

    def size(self, entity: str) -> EntitySize | None:
        with self._errors():
            known = self._limits.get(entity)
            if known is not None and time.monotonic() < known.until:
                used_bytes = self._used_bytes(known.kind, entity)
                if used_bytes is not None:
                    return EntitySize(used_bytes, known.limit_bytes, known.kind)
            for kind in ("topic", "queue"):
                limit_bytes = self._limit_bytes(kind, entity)
                used_bytes = None if limit_bytes is None else self._used_bytes(kind, entity)
                if limit_bytes is not None and used_bytes is not None:
                    self._limits[entity] = _Limit(kind, limit_bytes, time.monotonic() + _LIMIT_SECONDS)
                    return EntitySize(used_bytes, limit_bytes, kind)
            return None

    def _limit_bytes(self, kind: str, name: str) -> int | None:
        try:
            return int(getattr(self._client, f"get_{kind}")(name).max_size_in_megabytes or 0) * 1024 * 1024
        except (ResourceNotFoundError, AttributeError):  # see `_topic`
            return None

    def _used_bytes(self, kind: str, name: str) -> int | None:
        try:
            return int(getattr(self._client, f"get_{kind}_runtime_properties")(name).size_in_bytes or 0)
        except (ResourceNotFoundError, AttributeError):
            return None

    def make(self, change: Change) -> None:
        with self._errors(), self._transport.condition.required():
            match change:
                case Change(kind="topic", after=TopicState() as topic):
                    self._make_topic(change, topic)
                case Change(kind="queue", after=QueueState() as queue):
                    self._make_queue(change, queue)
                case Change(kind="subscription", after=SubscriptionState() as subscription):
                    self._make_subscription(change, subscription)
                case Change(kind="rule"):
                    self._make_rule(change)
                case Change(action="delete"):
                    self._delete(change)

    def _delete(self, change: Change) -> None:
        try:
            match change.kind:
                case "subscription":
                    self._client.delete_subscription(change.topic, change.subscription)
                case "queue":
                    self._client.delete_queue(change.topic)
                case "topic":
                    self._client.delete_topic(change.topic)
        except ResourceNotFoundError:
            return  # another client has deleted it

    def _refuse_changed(self, change: Change, existing: Entity) -> None:
        """Raises where another client has changed, since the plan was made, a setting that an update sets (I3)."""
        if differences := moved_on(change, existing):
            reason = f"{change.kind} {change.path} was changed since the plan was made ({'; '.join(differences)})"
            raise EntityChangedError(self._endpoint, reason, "run it again, and check its plan")

    def _make_topic(self, change: Change, topic: TopicState) -> None:
        if change.action == "create":
            window_ms = topic.duplicate_detection_ms
            with self._transport.repetition.done_before(ResourceExistsError):
                self._client.create_topic(
                    topic.name,
                    requires_duplicate_detection=bool(window_ms),
                    duplicate_detection_history_time_window=timedelta(milliseconds=window_ms) if window_ms else None,
                    enable_partitioning=topic.partitioned,
                    max_size_in_megabytes=topic.initial_size_megabytes,
                )
            return
        existing = self._client.get_topic(topic.name)
        self._refuse_changed(change, topic_state(topic.name, existing))
        if topic.duplicate_detection_ms:
            existing.duplicate_detection_history_time_window = timedelta(milliseconds=topic.duplicate_detection_ms)
        self._client.update_topic(existing)

    def _make_queue(self, change: Change, queue: QueueState) -> None:
        window_ms = queue.duplicate_detection_ms
        window = timedelta(milliseconds=window_ms) if window_ms else None
        if change.action == "create":
            with self._transport.repetition.done_before(ResourceExistsError):
                self._client.create_queue(
                    queue.name,
                    requires_duplicate_detection=bool(window_ms),
                    duplicate_detection_history_time_window=window,
                    enable_partitioning=queue.partitioned,
                    max_size_in_megabytes=queue.initial_size_megabytes,
                    **settings_of(queue, creates=True),
                )
            if queue.status in {None, "Active"}:
                return
            window = None
        existing = self._client.get_queue(queue.name)
        self._refuse_changed(change, queue_state(queue.name, existing))
        for name, value in settings_of(queue).items():
            setattr(existing, name, value)
        if window is not None:
            existing.duplicate_detection_history_time_window = window
        self._client.update_queue(existing)

    def _make_subscription(self, change: Change, subscription: SubscriptionState) -> None:
        if change.action == "update":
            self._update_subscription(change, subscription)
            return
        first, *others = subscription.rules or (None,)
        with self._transport.default_rule.given(first), self._transport.repetition.done_before(ResourceExistsError):
            self._client.create_subscription(change.topic, subscription.name, **settings_of(subscription, creates=True))
        for rule in others:
            if rule is not None:
                self._create_rule(change.topic, subscription.name, rule)
        if subscription.status not in {None, "Active"}:
            self._update_subscription(change, subscription)

    def _update_subscription(self, change: Change, subscription: SubscriptionState) -> None:
        existing = self._client.get_subscription(change.topic, subscription.name)
        self._refuse_changed(change, SubscriptionState(name=subscription.name, **received(existing)))
        for name, value in settings_of(subscription).items():
            setattr(existing, name, value)
        self._client.update_subscription(change.topic, existing)

    def _make_rule(self, change: Change) -> None:
        after = change.after
        if isinstance(after, RuleState):
            if change.action == "create":
                self._create_rule(change.topic, change.subscription, after)
                return
            existing = self._client.get_rule(change.topic, change.subscription, after.name)
            self._refuse_changed(change, rule_state(existing))
            existing.filter = SqlRuleFilter(after.filter)
            existing.action = SqlRuleAction(after.action) if after.action else None
            self._client.update_rule(change.topic, change.subscription, existing)
        elif change.before is not None:
            with self._transport.repetition.done_before(ResourceNotFoundError):
                self._client.delete_rule(change.topic, change.subscription, change.before.name)

    def _create_rule(self, topic: str, subscription: str, rule: RuleState) -> None:
        action = SqlRuleAction(rule.action) if rule.action else None
        with self._transport.repetition.done_before(ResourceExistsError):
            self._client.create_rule(topic, subscription, rule.name, filter=SqlRuleFilter(rule.filter), action=action)

    def _errors(self) -> AbstractContextManager[None]:
        return administration_errors(self._endpoint)
