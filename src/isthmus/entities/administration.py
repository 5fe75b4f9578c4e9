"""Management of a namespace: create, update, delete, get and list.

What it is: the operations of the management API on descriptions, with the checks that depend on other entities (`catalog.check`
has the others); changes are staged like messages and are durable with the next commit. What it is not: HTTP (the broker's), nor access rights.
Spec: docs/explanation/protocol.md, Administration, Rules, Entities.

Invariants:
    I1. An operation that raises has changed and staged nothing.
    I2. Descriptions are copied on input: later changes of the caller's object have no effect.
"""

from __future__ import annotations

from dataclasses import replace

from isthmus.entities.catalog.catalog import Entry, check_name
from isthmus.entities.catalog.check import check_filters, check_rule, check_settings, check_tier
from isthmus.entities.catalog.description import (
    DEFAULT_RULE_NAME,
    Description,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.loaded import LoadedQueue, LoadedSubscription, LoadedTopic, described, rule_of
from isthmus.entities.registry import Registry
from isthmus.errors import EntityExistsError, EntityNotFoundError, InvalidArgumentError, QuotaExceededError, StoreError

__all__ = ["Administration"]


class Administration(Registry):
    """The management operations."""

    # ---- lookup

    def _check_loaded(self) -> None:
        if not self._is_loaded:  # the entities are not known, and staged changes would be lost
            raise StoreError("The store has failed and is not reopened yet.")

    def _queue(self, name: str) -> LoadedQueue:
        self._check_loaded()
        found = self._queues.get(name.lower())
        if found is None:
            raise EntityNotFoundError(name)
        return found

    def _topic(self, name: str) -> LoadedTopic:
        self._check_loaded()
        found = self._topics.get(name.lower())
        if found is None:
            raise EntityNotFoundError(name)
        return found

    def _subscription(self, topic: str, name: str) -> tuple[LoadedTopic, LoadedSubscription]:
        owner = self._topic(topic)
        found = owner.subscriptions.get(name.lower())
        if found is None:
            raise EntityNotFoundError(f"{topic}/Subscriptions/{name}")
        return owner, found

    # ---- queues

    def create_queue(self, name: str, description: QueueDescription | None = None) -> QueueDescription:
        """Make a queue; returns its description as stored. Like every change it is durable with the next commit.

        Raises:
            EntityExistsError: a queue or topic of that name exists.
            InvalidArgumentError: the name or a setting is not allowed.
            QuotaExceededError: the namespace has as many entities as it may have.
        """
        key = self._check_new(name, "queue")
        made = replace(description or QueueDescription())
        self._check_description(made, name)
        entry = self._entry("queue", (name,), made)
        self._queues[key] = LoadedQueue(entry, self._make_queue(entry))
        self._apply_queue(self._queues[key])
        self._stage(entry)
        self._forwarding.target_changed(name)
        return made

    def update_queue(self, name: str, description: QueueDescription) -> QueueDescription:
        """Replace a queue's description. RequiresSession, RequiresDuplicateDetection, EnablePartitioning are fixed.

        Raises:
            EntityNotFoundError: no such queue.
            InvalidArgumentError: a setting is not allowed or fixed.
        """
        queue = self._queue(name)
        with self._staging.whole():
            self._change(queue.entry, description)
            self._apply_queue(queue)
        queue.queue.notify()
        self._forwarding.target_changed(name)
        self._pump()
        return described(queue.entry, QueueDescription)

    def delete_queue(self, name: str) -> None:
        """Remove a queue with its messages and dead-letter queue.

        Raises:
            EntityNotFoundError: no such queue.
        """
        queue = self._queue(name)
        del self._queues[name.lower()]
        self.key_names.remove(name)
        self._unstage(queue.entry)
        self._wipe(queue.entry, queue.queue, queue.queue.dead_letters)

    def get_queue(self, name: str) -> QueueDescription | None:
        """A queue's description; None if there is no such queue."""
        found = self._queues.get(name.lower())
        return described(found.entry, QueueDescription) if found else None

    def list_queues(self) -> list[tuple[str, QueueDescription]]:
        """Names (as created) and descriptions, ordered by lower-case name."""
        return [
            (queue.entry.names[0], described(queue.entry, QueueDescription))
            for _, queue in sorted(self._queues.items())
        ]

    # ---- topics

    def create_topic(self, name: str, description: TopicDescription | None = None) -> TopicDescription:
        """Make a topic; errors as `create_queue`."""
        tier = self._limits.tier
        if tier is not None and not tier.has_topics:
            raise InvalidArgumentError(f"The namespace is using the '{tier.title}' tier, which has no topics.")
        key = self._check_new(name, "topic")
        made = replace(description or TopicDescription())
        self._check_description(made, name)
        entry = self._entry("topic", (name,), made)
        self._topics[key] = LoadedTopic(entry, self._make_topic(entry))
        self._apply_topic(self._topics[key])
        self._stage(entry)
        self._forwarding.target_changed(name)
        return made

    def update_topic(self, name: str, description: TopicDescription) -> TopicDescription:
        """Replace a topic's description; errors as `update_queue`."""
        topic = self._topic(name)
        with self._staging.whole():
            self._change(topic.entry, description)
            self._apply_topic(topic)
        self._forwarding.target_changed(name)
        self._pump()
        return description

    def delete_topic(self, name: str) -> None:
        """Remove a topic with its subscriptions and their messages.

        Raises:
            EntityNotFoundError: no such topic.
        """
        topic = self._topic(name)
        for subscription in list(topic.subscriptions):
            self.delete_subscription(name, subscription)
        del self._topics[name.lower()]
        self.key_names.remove(name)
        self._unstage(topic.entry)
        self._wipe(topic.entry, topic.topic)

    def get_topic(self, name: str) -> TopicDescription | None:
        """A topic's description; None if there is no such topic."""
        found = self._topics.get(name.lower())
        return described(found.entry, TopicDescription) if found else None

    def list_topics(self) -> list[tuple[str, TopicDescription]]:
        """Names (as created) and descriptions, ordered by lower-case name."""
        return [
            (topic.entry.names[0], described(topic.entry, TopicDescription))
            for _, topic in sorted(self._topics.items())
        ]

    # ---- subscriptions

    def create_subscription(
        self,
        topic: str,
        name: str,
        description: SubscriptionDescription | None = None,
        default_rule: RuleDescription | None = None,
    ) -> SubscriptionDescription:
        """Make a subscription with one rule: `default_rule`, or ``$Default`` that selects everything.

        Raises:
            EntityNotFoundError: no such topic.
            EntityExistsError: the topic has a subscription of that name.
            InvalidArgumentError: the name, a setting or the rule is not allowed.
            QuotaExceededError: the topic has as many subscriptions as it may have.
        """
        owner = self._topic(topic)
        if name.lower() in owner.subscriptions:
            raise EntityExistsError(f"{owner.entry.names[0]}/Subscriptions/{name}")
        check_name("subscription", name, self._limits.max_subscription_name_characters)
        if len(owner.subscriptions) >= self._limits.max_subscriptions_per_topic:
            raise QuotaExceededError(f"'{topic}' has {len(owner.subscriptions)} subscriptions, as many as it may have.")
        made = replace(description or SubscriptionDescription())
        self._check_description(made, owner.entry.names[0])
        rule = replace(default_rule or RuleDescription(DEFAULT_RULE_NAME))
        rule.name = rule.name or DEFAULT_RULE_NAME
        self._check_rule(rule)
        self._check_filters(owner, rule)
        names = (owner.entry.names[0], name)
        entry = self._entry("subscription", names, made)
        subscription = LoadedSubscription(entry, self._make_queue(entry))
        owner.subscriptions[name.lower()] = subscription
        self._stage(entry)
        self._add_rule(subscription, rule)
        self._apply_subscription(owner, subscription)
        return made

    def update_subscription(
        self, topic: str, name: str, description: SubscriptionDescription
    ) -> SubscriptionDescription:
        """Replace a subscription's description; errors as `update_queue`."""
        owner, subscription = self._subscription(topic, name)
        self._change(subscription.entry, description)
        self._apply_subscription(owner, subscription)
        subscription.queue.notify()
        self._pump()
        return described(subscription.entry, SubscriptionDescription)

    def delete_subscription(self, topic: str, name: str) -> None:
        """Remove a subscription with its messages.

        Raises:
            EntityNotFoundError: no such subscription.
        """
        owner, subscription = self._subscription(topic, name)
        del owner.subscriptions[name.lower()]
        owner.topic.unsubscribe(name.lower())
        for rule in subscription.rules.values():
            self._unstage(rule)
        self._unstage(subscription.entry)
        self._wipe(subscription.entry, subscription.queue, subscription.queue.dead_letters)

    def get_subscription(self, topic: str, name: str) -> SubscriptionDescription | None:
        """A subscription's description; None if there is no such topic or subscription."""
        owner = self._topics.get(topic.lower())
        found = owner.subscriptions.get(name.lower()) if owner else None
        return described(found.entry, SubscriptionDescription) if found else None

    def list_subscriptions(self, topic: str) -> list[tuple[str, SubscriptionDescription]]:
        """Names and descriptions, ordered by lower-case name.

        Raises:
            EntityNotFoundError: no such topic.
        """
        return [
            (subscription.entry.names[1], described(subscription.entry, SubscriptionDescription))
            for _, subscription in sorted(self._topic(topic).subscriptions.items())
        ]

    # ---- rules

    def create_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Add a rule; it applies to messages accepted from then on.

        Raises:
            EntityNotFoundError: no such subscription.
            EntityExistsError: it has a rule of that name.
            InvalidArgumentError: the name is not allowed, or an expression does not parse (RuleSyntaxError).
        """
        owner, found = self._subscription(topic, subscription)
        if rule.name.lower() in found.rules:
            raise EntityExistsError(f"{found.queue.path}/Rules/{rule.name}")
        if len(found.rules) >= self._limits.max_rules_per_subscription:
            raise QuotaExceededError(f"'{found.queue.path}' has {len(found.rules)} rules, as many as it may have.")
        added = replace(rule)
        self._check_rule(added)
        self._check_filters(owner, added)
        self._add_rule(found, added)
        self._apply_subscription(owner, found)
        return added

    def update_rule(self, topic: str, subscription: str, rule: RuleDescription) -> RuleDescription:
        """Replace the rule of the same name.

        Raises:
            EntityNotFoundError: no such subscription or rule.
            InvalidArgumentError: an expression does not parse (RuleSyntaxError).
        """
        owner, found = self._subscription(topic, subscription)
        entry = found.rules.get(rule.name.lower())
        if entry is None:
            raise EntityNotFoundError(f"{found.queue.path}/Rules/{rule.name}")
        changed = replace(rule, created_at_ms=rule_of(entry).created_at_ms)
        self._check_rule(changed)
        if type(changed.filter) is not type(rule_of(entry).filter):
            self._check_filters(owner, changed)
        entry.description = changed
        entry.updated_at_ms = max(self._clock.wall_ms(), entry.updated_at_ms + 1)
        self._stage(entry)
        self._apply_subscription(owner, found)
        return changed

    def delete_rule(self, topic: str, subscription: str, name: str) -> None:
        """Remove a rule.

        Raises:
            EntityNotFoundError: no such subscription or rule.
        """
        owner, found = self._subscription(topic, subscription)
        entry = found.rules.pop(name.lower(), None)
        if entry is None:
            raise EntityNotFoundError(f"{found.queue.path}/Rules/{name}")
        self._unstage(entry)
        self._apply_subscription(owner, found)

    def get_rule(self, topic: str, subscription: str, name: str) -> RuleDescription | None:
        """A rule; None if there is none of that name."""
        owner = self._topics.get(topic.lower())
        found = owner.subscriptions.get(subscription.lower()) if owner else None
        entry = found.rules.get(name.lower()) if found else None
        return rule_of(entry) if entry else None

    def list_rules(self, topic: str, subscription: str) -> list[RuleDescription]:
        """Rules, ordered by lower-case name.

        Raises:
            EntityNotFoundError: no such subscription.
        """
        _, found = self._subscription(topic, subscription)
        return [rule_of(entry) for _, entry in sorted(found.rules.items())]

    # ---- checks

    def _check_new(self, name: str, kind: str) -> str:
        self._check_loaded()
        key = name.lower()
        if key in self._queues or key in self._topics or key in self.hubs or key in self.hybrid_connections:
            raise EntityExistsError(name)
        check_name(kind, name, self._limits.max_entity_name_characters)
        if len(self._queues) + len(self._topics) >= self._limits.max_entities:
            raise QuotaExceededError(f"The namespace has {self._limits.max_entities} entities, as many as it may have.")
        return key

    def _check_description(self, description: Description, name: str) -> None:
        """Refuse settings that the service refuses; `name` is the queue's or topic's, also for a subscription's description."""
        check_tier(description, self._limits)
        if isinstance(description, QueueDescription | SubscriptionDescription):
            self._forwarding.check(description, name)
        check_settings(description, self._limits)
        if getattr(description, "enable_partitioning", False):
            self._check_partitioning(name)

    def _check_partitioning(self, name: str) -> None:
        """Refuse one more partitioned entity than the limit of the namespace.

        Raises:
            InvalidArgumentError: it has no stores for partitioned entities.
            QuotaExceededError: it has as many as it may have.
        """
        if self._partitions.stores is None:
            raise InvalidArgumentError("EnablePartitioning: this namespace has no partitioned entities.")
        loaded: list[LoadedQueue | LoadedTopic] = [*self._queues.values(), *self._topics.values()]
        partitioned = [each for each in loaded if each.entry.fragments and each.entry.names[0].lower() != name.lower()]
        if len(partitioned) >= self._limits.max_partitioned_entities:
            raise QuotaExceededError(
                f"The namespace has {len(partitioned)} partitioned entities, as many as it may have."
            )

    def _check_rule(self, rule: RuleDescription) -> None:
        check_rule(rule, self._limits)
        rule.created_at_ms = rule.created_at_ms or self._clock.wall_ms()

    def _check_filters(self, topic: LoadedTopic, added: RuleDescription) -> None:
        rules = [rule_of(entry) for loaded in topic.subscriptions.values() for entry in loaded.rules.values()]
        check_filters(topic.entry.names[0], rules, added, self._limits)

    def _add_rule(self, subscription: LoadedSubscription, rule: RuleDescription) -> None:
        entry = self._entry("rule", (*subscription.entry.names, rule.name), rule)
        subscription.rules[rule.name.lower()] = entry
        self._stage(entry)

    def _change(self, entry: Entry, description: Description) -> None:
        before = entry.description
        if type(before) is not type(description):
            raise InvalidArgumentError(f"'{entry.names[-1]}' is a {entry.kind}; its description has another type.")
        for name in ("requires_session", "requires_duplicate_detection", "enable_partitioning"):
            if getattr(before, name, None) != getattr(description, name, None):
                spelt = "".join(word.capitalize() for word in name.split("_"))
                kind = entry.kind.capitalize()
                raise InvalidArgumentError(
                    f"The value for the '{spelt}' property of an existing {kind} can't be changed; create it again."
                )
        changed = replace(description)
        self._check_description(changed, entry.names[0])
        entry.description = changed
        entry.updated_at_ms = max(self._clock.wall_ms(), entry.updated_at_ms + 1)
        self._stage(entry)
