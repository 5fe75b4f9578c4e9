"""Management of a namespace: create, update, delete, get and list.

What it is: the operations of the management API on descriptions, with the checks that the service makes; changes are
staged like messages and are durable with the next commit. What it is not: HTTP (the broker's), nor access rights.
Spec: docs/explanation/protocol.md, Administration, Rules, Entities. Over 400 lines: four kinds of entity with five operations each.

Invariants:
    I1. An operation that raises has changed and staged nothing.
    I2. Descriptions are copied on their way in: the caller's object stays the caller's.
"""

from __future__ import annotations

from dataclasses import replace

from isthmus.entities.catalog.catalog import Entry, check_name, parse_address
from isthmus.entities.catalog.description import (
    DEFAULT_RULE_NAME,
    INFINITE_MS,
    CorrelationFilter,
    Description,
    EntityStatus,
    QueueDescription,
    RuleDescription,
    SqlAction,
    SqlFilter,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.catalog.tier import Tier
from isthmus.entities.registry import HeldQueue, HeldSubscription, HeldTopic, Registry, described, rule_of
from isthmus.entities.topic.selection import compile_rule
from isthmus.errors import EntityExistsError, EntityNotFoundError, InvalidArgumentError, QuotaExceededError

__all__ = ["Administration"]

# The service's limit of its largest tier.
_LARGEST_MESSAGE_KILOBYTES = 102_400


class Administration(Registry):
    """The management operations."""

    # ---- queues

    def create_queue(self, name: str, description: QueueDescription | None = None) -> QueueDescription:
        """Make a queue; its description as stored. Like every change it is durable with the next commit.

        Raises:
            EntityExistsError: a queue or topic of that name is there.
            InvalidArgumentError: the name or a setting is not allowed.
            QuotaExceededError: the namespace has all the entities it may have.
        """
        key = self._check_new(name, "queue")
        made = replace(description or QueueDescription())
        self._check_description(made, name)
        entry = self._entry("queue", (name,), made)
        self._queues[key] = HeldQueue(entry, self._make_queue(entry))
        self._apply_queue(self._queues[key])
        self._stage(entry)
        self._target_changed(name)
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
        self._target_changed(name)
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
        self._topics[key] = HeldTopic(entry, self._make_topic(entry))
        self._apply_topic(self._topics[key])
        self._stage(entry)
        self._target_changed(name)
        return made

    def update_topic(self, name: str, description: TopicDescription) -> TopicDescription:
        """Replace a topic's description; errors as `update_queue`."""
        topic = self._topic(name)
        with self._staging.whole():
            self._change(topic.entry, description)
            self._apply_topic(topic)
        self._target_changed(name)
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
            QuotaExceededError: the topic has all the subscriptions it may have.
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
        subscription = HeldSubscription(entry, self._make_queue(entry))
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
        """Add a rule; messages accepted from then on see it.

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
        key = name.lower()
        if key in self._queues or key in self._topics or key in self.hubs or key in self.hybrid_connections:
            raise EntityExistsError(name)
        check_name(kind, name, self._limits.max_entity_name_characters)
        if len(self._queues) + len(self._topics) >= self._limits.max_entities:
            raise QuotaExceededError(f"The namespace has {self._limits.max_entities} entities, as many as it may have.")
        return key

    def _check_description(self, description: Description, name: str) -> None:
        """Refuse settings that the service would; `name` is the queue's or topic's, also for a subscription's."""
        limits = self._limits
        if limits.tier is not None:
            _check_tier(limits.tier, description, limits.max_message_size_bytes)
        if isinstance(description, QueueDescription | SubscriptionDescription):
            low, high = limits.min_lock_duration_ms, limits.max_lock_duration_ms
            _check_range("LockDuration (ms)", description.lock_duration_ms, low, high)
            _check_range("MaxDeliveryCount", description.max_delivery_count, 1, limits.max_delivery_count)
            self._check_forwarding(description, name)
        if isinstance(description, QueueDescription | TopicDescription):
            window = description.duplicate_detection_history_time_window_ms
            low, high = limits.min_duplicate_window_ms, limits.max_duplicate_window_ms
            _check_range("DuplicateDetectionHistoryTimeWindow (ms)", window, low, high)
            _check_range("MaxSizeInMegabytes", description.max_size_in_megabytes, 1, limits.max_entity_size_megabytes)
            if (kilobytes := description.max_message_size_in_kilobytes) is not None:
                _check_range("MaxMessageSizeInKilobytes", kilobytes, 1, _LARGEST_MESSAGE_KILOBYTES)
            if description.enable_partitioning:
                self._check_partitioning(name)
        if not isinstance(description, RuleDescription):
            _check_range("DefaultMessageTimeToLive (ms)", description.default_message_time_to_live_ms, 1, INFINITE_MS)
            low = limits.min_auto_delete_on_idle_ms
            _check_range("AutoDeleteOnIdle (ms)", description.auto_delete_on_idle_ms, low, INFINITE_MS)
            metadata, most = len(description.user_metadata or ""), limits.max_user_metadata_characters
            _check_range("The length of UserMetadata", metadata, 0, most)
            _check_status(description)

    def _check_partitioning(self, name: str) -> None:
        """Refuse one more partitioned entity than the namespace may have.

        Raises:
            InvalidArgumentError: it has no stores for any.
            QuotaExceededError: it has all that it may have.
        """
        if self._partitions.stores is None:
            raise InvalidArgumentError("EnablePartitioning: this namespace has no partitioned entities.")
        held: list[HeldQueue | HeldTopic] = [*self._queues.values(), *self._topics.values()]
        partitioned = [each for each in held if each.entry.fragments and each.entry.names[0].lower() != name.lower()]
        if len(partitioned) >= self._limits.max_partitioned_entities:
            raise QuotaExceededError(
                f"The namespace has {len(partitioned)} partitioned entities, as many as it may have."
            )

    def _check_forwarding(self, description: QueueDescription | SubscriptionDescription, name: str) -> None:
        """Refuse targets that the service would, and put the others in the spelling in which they were created.

        Like the service this takes an entity that forwards to itself, and one that requires sessions: what cannot go on
        is dead-lettered when it comes.
        """
        description.forward_to = self._checked_target("ForwardTo", description.forward_to, name)
        description.forward_dead_lettered_messages_to = self._checked_target(
            "ForwardDeadLetteredMessagesTo", description.forward_dead_lettered_messages_to, name
        )
        if description.forward_to:
            # As the service: an entity that only passes messages on must not be gone when one comes.
            description.auto_delete_on_idle_ms = INFINITE_MS

    def _checked_target(self, setting: str, path: str | None, name: str) -> str | None:
        if not path:
            return None
        address = parse_address(path)
        if address.subscription is not None or address.suffix:
            raise InvalidArgumentError(f"{setting} is '{path}'; messages are forwarded to a queue or topic.")
        target = self._target(address.name)
        if target is None and address.name == name.lower():
            return name
        if target is None:
            raise InvalidArgumentError(f"{setting} is '{path}'; the entity to forward to does not exist.")
        return target.path

    def _check_rule(self, rule: RuleDescription) -> None:
        check_name("rule", rule.name, self._limits.max_subscription_name_characters)
        most = self._limits.max_rule_expression_characters
        for what, part in (("filter", rule.filter), ("action", rule.action)):
            if isinstance(part, SqlFilter | SqlAction) and len(part.expression) > most:
                raise InvalidArgumentError(f"The {what} has {len(part.expression)} characters; {most} are allowed.")
        compile_rule(rule)
        rule.created_at_ms = rule.created_at_ms or self._clock.wall_ms()

    def _check_filters(self, topic: HeldTopic, added: RuleDescription) -> None:
        """Refuse one more filter than all subscriptions of a topic may have together."""
        limits = self._limits
        for kind, most in (
            (SqlFilter, limits.max_sql_filters_per_topic),
            (CorrelationFilter, limits.max_correlation_filters_per_topic),
        ):
            rules = [subscription.rules for subscription in topic.subscriptions.values()]
            if not isinstance(added.filter, kind) or sum(map(len, rules)) < most:
                continue
            if sum(isinstance(rule_of(entry).filter, kind) for held in rules for entry in held.values()) >= most:
                raise QuotaExceededError(
                    f"'{topic.entry.names[0]}' has {most} {kind.__name__}s, as many as it may have."
                )

    def _add_rule(self, subscription: HeldSubscription, rule: RuleDescription) -> None:
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


def _check_status(description: QueueDescription | TopicDescription | SubscriptionDescription) -> None:
    refused = {TopicDescription: EntityStatus.RECEIVE_DISABLED, SubscriptionDescription: EntityStatus.SEND_DISABLED}
    if description.status == refused.get(type(description)):
        kind = type(description).__name__.removesuffix("Description").lower()
        raise InvalidArgumentError(f"Status is {description.status}, which a {kind} cannot have.")


def _check_tier(tier: Tier, description: Description, max_message_size_bytes: int) -> None:
    """Refuse settings that the tier lacks, and cap the time to live where nobody has set one."""
    if isinstance(description, RuleDescription):
        return
    unset = type(description)()
    for setting in tier.lacks:
        attribute = setting if hasattr(description, setting) else f"{setting}_ms"
        value = getattr(description, attribute, None)
        if not value or value == getattr(unset, attribute):
            continue
        if setting == "max_message_size_in_kilobytes" and value * 1024 <= max_message_size_bytes:
            continue  # clients send back what they read
        spelt = "".join(word.capitalize() for word in setting.split("_"))
        kind = type(description).__name__.removesuffix("Description")
        raise InvalidArgumentError(
            f"The property '{spelt}' can't be set on a {kind} because the namespace is using the '{tier.title}' tier."
        )
    most = tier.max_time_to_live_ms
    if most is not None and description.default_message_time_to_live_ms == INFINITE_MS:
        description.default_message_time_to_live_ms = most
    if most is not None:
        _check_range("DefaultMessageTimeToLive (ms)", description.default_message_time_to_live_ms, 1000, most)


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidArgumentError(f"{name} is {value}; {low} to {high} is allowed.")
