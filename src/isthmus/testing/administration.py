"""Namespaces' administration in memory.

What it is: an `isthmus.connectors.administration.Administration` that holds entities as the service does (a subscription
gets `$Default` unless it is created with a rule; an entity cannot be created twice, nor updated by a plan that was made before its last change), and
that can be made unavailable or to fail at a change. What it is not: a broker; it has no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from isthmus.connectors.administration import (
    AdministrationError,
    EntityChangedError,
    EntitySize,
    NamespaceUnreachableError,
)
from isthmus.topology import (
    Change,
    EntityState,
    NamespaceRef,
    NamespaceState,
    QueueState,
    RuleState,
    SubscriptionState,
    TopicState,
    WantedState,
)
from isthmus.topology.canary import has_canary
from isthmus.topology.file.duration import INFINITE_MS
from isthmus.topology.planning.change import moved_on
from isthmus.topology.state import DEFAULT_RULE

__all__ = ["FakeAdministration", "fake_opener"]

_State = TypeVar("_State", TopicState, QueueState, SubscriptionState)
_Receiver = TypeVar("_Receiver", QueueState, SubscriptionState)

_TOPIC = TopicState(name="", duplicate_detection_ms=0, partitioned=False)
_RECEIVED: dict[str, Any] = {
    "lock_duration_ms": 60_000,
    "max_delivery_count": 10,
    "auto_delete_on_idle_ms": INFINITE_MS,
    "requires_session": False,
    "forward_to": "",
    "forward_dead_letters_to": "",
    "default_ttl_ms": INFINITE_MS,
    "dead_letters_expired": False,
    "status": "Active",
}
_SUBSCRIPTION = SubscriptionState(name="", **_RECEIVED)
_QUEUE = QueueState(name="", duplicate_detection_ms=0, partitioned=False, **_RECEIVED)

# Fields of an existing entity that the service refuses to change.
_FIXED = ("requires_session", "partitioned")


class FakeAdministration:
    """One namespace's entities.

    Args:
        endpoint: the endpoint that it reports.
        identity: the identity that it reports; empty: none.
        topics: the topics at the start, every field given or the service's default.
        queues: the queues at the start, likewise; a name alone is a queue with the service's defaults.

    Attributes:
        away: True makes every call fail as if the namespace could not be reached.
        refuse_after: number of changes after which every further one is refused; None for never.
        changes: the changes that were made, in order.
        messages: by path of a queue or subscription, how many messages it holds.
        closed: whether `close` was called.
    """

    def __init__(
        self,
        endpoint: str,
        topics: Sequence[TopicState] = (),
        queues: Sequence[QueueState | str] = (),
        identity: str = "",
    ) -> None:
        self.endpoint = endpoint
        self.identity = identity
        self.away = False
        self.refuse_after: int | None = None
        self.changes: list[Change] = []
        self.messages: dict[str, int] = {}
        self.closed = False
        self._queues: dict[str, QueueState] = {}
        for queue in queues:
            existing = QueueState(name=queue) if isinstance(queue, str) else queue
            self._queues[existing.name.lower()] = _filled(existing, _QUEUE)
        self._topics: dict[str, TopicState] = {}
        self._subscriptions: dict[tuple[str, str], SubscriptionState] = {}
        for topic in topics:
            self._topics[topic.name.lower()] = _filled(replace(topic, subscriptions=()), _TOPIC)
            for subscription in topic.subscriptions:
                self._subscriptions[topic.name.lower(), subscription.name.lower()] = _created(subscription)

    def observe(self, alias: str, entities: Sequence[WantedState]) -> NamespaceState:
        self._answer()
        asked = {each.name.lower(): each for each in entities}
        return NamespaceState(
            alias=alias,
            endpoint=self.endpoint,
            identity=self.identity,
            topics=tuple(_as_read(self._observed(name), asked[name]) for name in self._topics if name in asked),
            queues=tuple(queue for name, queue in self._queues.items() if name in asked),
        )

    def _observed(self, name: str) -> TopicState:
        subscriptions = tuple(each for (topic, _), each in self._subscriptions.items() if topic == name)
        return replace(self._topics[name], subscriptions=subscriptions)

    def inventory(self, alias: str) -> NamespaceState:
        every: list[EntityState] = [*map(self._observed, self._topics), *self._queues.values()]
        return self.observe(alias, every)

    def waiting(self, change: Change) -> int:
        self._answer()
        return sum(
            count
            for path, count in self.messages.items()
            if path == change.path or (change.kind == "topic" and path.startswith(f"{change.path}/"))
        )

    def size(self, entity: str) -> EntitySize | None:
        self._answer()
        kinds = (("topic", self._topics), ("queue", self._queues))
        return next((EntitySize(0, 1 << 30, kind) for kind, held in kinds if entity.lower() in held), None)

    def make(self, change: Change) -> None:
        self._answer()
        if self.refuse_after is not None and len(self.changes) >= self.refuse_after:
            raise AdministrationError(self.endpoint, "refused with 403 (told to)")
        topic, key = change.topic.lower(), (change.topic.lower(), change.subscription.lower())
        self._check(change)
        match change:
            case Change(action="delete", kind="topic" | "queue" | "subscription"):
                self._delete(change)
            case Change(kind="queue", after=QueueState() as queue):
                held = self._present(self._queues.get(topic), change)
                self._queues[topic] = _kept(queue, held or _QUEUE)
            case Change(kind="topic", after=TopicState() as after):
                existing = self._present(self._topics.get(topic), change)
                self._topics[topic] = _filled(after, existing or _TOPIC)
            case Change(kind="subscription", after=SubscriptionState() as after):
                if topic not in self._topics:
                    raise AdministrationError(self.endpoint, f"refused with 404 (no topic {change.topic})")
                present = self._present(self._subscriptions.get(key), change)
                self._subscriptions[key] = _kept(after, present) if present else _created(after)
            case _:
                self._subscriptions[key] = self._with_rule(self._subscriptions[key], change)
        self.changes.append(change)

    def _delete(self, change: Change) -> None:
        """As the service: deleting a topic deletes its subscriptions; deleting a missing entity is no error."""
        name, subscription = change.topic.lower(), change.subscription.lower()
        for key in list(self._subscriptions):
            if key == (name, subscription) or (change.kind == "topic" and key[0] == name):
                del self._subscriptions[key]
        if change.kind != "subscription":
            (self._topics if change.kind == "topic" else self._queues).pop(name, None)

    def _check(self, change: Change) -> None:
        """Refuse what the service would: a name in use, a missing forwarding target, forwarding from an entity with sessions."""
        names = {"topic": set(self._queues), "queue": set(self._topics)}.get(change.kind, set())
        if change.action == "create" and change.topic.lower() in names:
            raise AdministrationError(self.endpoint, f"refused create {change.path} with 409 (the name is taken)")
        after, before = change.after, change.before
        if not isinstance(after, QueueState | SubscriptionState):
            return
        for target in (after.forward_to, after.forward_dead_letters_to):
            if target and target.lower() not in {**self._topics, **self._queues, change.topic.lower(): None}:
                raise AdministrationError(self.endpoint, f"refused {change.path} with 400 (no entity {target})")
        key = (change.topic.lower(), change.subscription.lower())
        existing = self._subscriptions.get(key) if change.subscription else self._queues.get(key[0])
        fixed = [name for name in _FIXED if getattr(after, name, None) is not None]
        if existing is not None and any(getattr(after, name) != getattr(existing, name) for name in fixed):
            raise AdministrationError(self.endpoint, f"refused {change.path} with 400 (cannot be changed)")
        if after.forward_to and (after if before is None else existing or after).requires_session:
            raise AdministrationError(self.endpoint, f"refused {change.path} with 400 (requires sessions)")

    def _with_rule(self, existing: SubscriptionState, change: Change) -> SubscriptionState:
        entity = change.after or change.before
        if entity is None:
            raise AdministrationError(self.endpoint, "refused with 400 (no rule)")
        present = self._present(existing.rule(entity.name), change)
        rules = [rule for rule in existing.rules or () if rule is not present]
        if isinstance(change.after, RuleState):
            rules.append(change.after)
        return replace(existing, rules=tuple(rules))

    def _present(self, present: _Entity | None, change: Change) -> _Entity | None:
        if (present is None) != (change.action == "create"):
            code = "409 (it exists)" if present is not None else "404 (it does not exist)"
            raise AdministrationError(self.endpoint, f"refused {change.action} {change.path} with {code}")
        if present is not None and moved_on(change, present):
            raise EntityChangedError(self.endpoint, f"{change.path} was changed since it was looked at")
        return present

    def _answer(self) -> None:
        if self.away:
            raise NamespaceUnreachableError(
                self.endpoint, "cannot be reached (told to)", "check host, port and network"
            )

    def close(self) -> None:
        self.closed = True


_Entity = TypeVar("_Entity", TopicState, QueueState, SubscriptionState, RuleState)


def fake_opener(namespaces: dict[str, FakeAdministration]) -> Callable[[NamespaceRef], FakeAdministration]:
    """An opener for `isthmus.connectors.administration.Administrations` by alias."""
    return lambda namespace: namespaces[namespace.alias]


def _as_read(topic: TopicState, asked: WantedState) -> TopicState:
    """The topic with the rules that a namespace's administration reads."""
    if not isinstance(asked, TopicState) or has_canary(asked):
        return topic
    subscriptions = (
        each if asked.subscription(each.name) else replace(each, rules=None) for each in topic.subscriptions
    )
    return replace(topic, subscriptions=tuple(subscriptions))


def _filled(state: _State, base: _State) -> _State:
    """The state with the base's value in every field that is None."""
    return replace(
        state, **{each.name: getattr(base, each.name) for each in fields(state) if getattr(state, each.name) is None}
    )


def _kept(state: _Receiver, base: _Receiver) -> _Receiver:
    """The state as the service keeps it: an entity that forwards is never deleted when idle."""
    if state.default_ttl_ms is None and state.initial_ttl_ms is not None and not base.name:
        state = replace(state, default_ttl_ms=state.initial_ttl_ms)
    filled = _filled(state, base)
    return replace(filled, auto_delete_on_idle_ms=INFINITE_MS) if filled.forward_to else filled


def _created(subscription: SubscriptionState) -> SubscriptionState:
    rules = subscription.rules if subscription.rules is not None else (RuleState(DEFAULT_RULE, "1=1"),)
    return replace(_kept(subscription, _SUBSCRIPTION), rules=rules)
