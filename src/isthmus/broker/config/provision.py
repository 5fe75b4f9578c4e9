"""A namespace's file applied.

What it is: the entities of a `NamespaceConfig` created, or updated where they exist already. What it is not: removal;
entities that the file does not name stay, and so do their messages.
Spec: docs/reference/namespace-file.md; the file is read again at every start, and overrides changes made through the administration API.

Invariants:
    I1. A second run with the same file changes nothing.
    I2. All refusals of the engine are reported together, and then nothing is staged: the file is tried on a copy first.
    I3. A start enables nothing that was disabled: an entity whose status the file does not state keeps its status.
    I4. Partitions that were added to an event hub do not prevent a start, where the file does not state their number.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

from isthmus.broker.config.namespace_file import NamespaceConfig, SubscriptionConfig
from isthmus.broker.security.rule import merge_rules
from isthmus.clock import SystemClock
from isthmus.entities import Engine, FragmentStores, Limits
from isthmus.entities.catalog.description import (
    DEFAULT_RULE_NAME,
    INFINITE_MS,
    AuthorizationRule,
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from isthmus.entities.hub import DEFAULT_CONSUMER_GROUP, EventHubDescription
from isthmus.entities.hybrid_connection import HybridConnectionDescription
from isthmus.errors import ConfigError, Fault, IsthmusError
from isthmus.store import MemoryJournal

__all__ = ["provision"]


def provision(engine: Engine, config: NamespaceConfig, *, file: str = "", limits: Limits = Limits()) -> list[str]:  # noqa: B008 - frozen
    """Creates or updates the entities of the file; the changes are staged, the caller commits them.

    Args:
        engine: the entities.
        config: what the file says.
        file: its name, for faults.
        limits: those of the engine.

    Returns:
        The paths of the entities that were created or changed.

    Raises:
        ConfigError: the engine refuses something, e.g. a change of RequiresSession; nothing is staged.
    """
    faults: list[Fault] = []
    trial = _copy(engine, config, limits)
    for path, step in _steps(config):
        try:
            step(trial)
        except IsthmusError as error:
            faults.append(Fault(f"{path}: {error}", file=file))
    if faults:
        raise ConfigError(faults)
    return [path for path, step in _steps(config) if step(engine)]


_S = TypeVar(
    "_S",
    QueueDescription,
    TopicDescription,
    SubscriptionDescription,
    EventHubDescription,
    HybridConnectionDescription,
)
_D = TypeVar("_D", QueueDescription, TopicDescription, EventHubDescription, HybridConnectionDescription)
_NO_LIMITS: dict[str, Any] = {
    each.name: 1 if each.name.startswith("min_") else INFINITE_MS
    for each in fields(Limits)
    if each.name.startswith(("min_", "max_"))
} | {"tier": None}


def _steps(config: NamespaceConfig) -> Iterator[tuple[str, Callable[[Engine], bool]]]:
    """Paths, and for each a function that applies it to an engine; it returns whether anything changed."""

    def keeps(what: str) -> bool:
        return what not in config.stated

    for name, topic in config.topics.items():
        rules = config.authorization_rules.get(name)
        keeps_status = keeps(f"topic {name}")
        yield name, partial(_topic, name=name, wanted=topic.description, rules=rules, keeps_status=keeps_status)
    for name, queue in _targets_first(config.queues):
        rules = config.authorization_rules.get(name)
        yield name, partial(_queue, name=name, wanted=queue, rules=rules, keeps_status=keeps(f"queue {name}"))
    for name, topic in config.topics.items():
        for sub, wanted in topic.subscriptions.items():
            keeps_status = keeps(f"subscription {name}/{sub}")
            step = partial(_subscription, topic=name, name=sub, wanted=wanted, keeps_status=keeps_status)
            yield f"{name}/Subscriptions/{sub}", step
    for name, hub in config.event_hubs.items():
        rules = config.authorization_rules.get(name)
        what = f"event hub {name}"
        keeps_count = keeps(f"partitions of {what}")
        step = partial(_event_hub, name=name, wanted=hub, rules=rules, keeps_status=keeps(what))
        yield name, partial(step, keeps_count=keeps_count)
    for name, described in config.hybrid_connections.items():
        rules = config.authorization_rules.get(name)
        keeps_status = keeps(f"hybrid connection {name}")
        yield name, partial(_hybrid_connection, name=name, wanted=described, rules=rules, keeps_status=keeps_status)


def _copy(engine: Engine, config: NamespaceConfig, limits: Limits) -> Engine:
    """An engine in memory with the existing entities whose names are in the file, also where one is a queue and the other a topic."""
    journal = MemoryJournal()
    # Existing entities may have been created under other limits: they are copied without any, and then checked with today's.
    limits = replace(limits, partitions_per_entity=1, partition_stores=1)
    copy = _engine_in_memory(journal, replace(limits, **_NO_LIMITS), partitioned=engine.stores is not None)
    names = (*config.topics, *config.queues, *config.event_hubs, *config.hybrid_connections)
    for name in names:
        if (hub := engine.hubs.get(name)) is not None:
            copy.hubs.create(name, hub)
        if (described := engine.hybrid_connections.get(name)) is not None:
            copy.hybrid_connections.create(name, described)
    for name in (*names, *_targets(config)):
        if copy.get_topic(name) is not None or copy.get_queue(name) is not None:
            continue
        if (topic := engine.get_topic(name)) is not None:
            copy.create_topic(name, topic)
        if (queue := engine.get_queue(name)) is not None:
            copy.create_queue(name, replace(queue, forward_to=None, forward_dead_lettered_messages_to=None))
    for name, wanted in config.topics.items():
        for sub in wanted.subscriptions:
            if (subscription := engine.get_subscription(name, sub)) is not None:
                plain = replace(subscription, forward_to=None, forward_dead_lettered_messages_to=None)
                copy.create_subscription(name, sub, plain)
                copy.delete_rule(name, sub, DEFAULT_RULE_NAME)
                for rule in engine.list_rules(name, sub):
                    copy.create_rule(name, sub, rule)
    copy.close()
    return _engine_in_memory(journal, limits, partitioned=engine.stores is not None)


def _engine_in_memory(journal: MemoryJournal, limits: Limits, *, partitioned: bool) -> Engine:
    clock = SystemClock()
    stores = FragmentStores(lambda _: MemoryJournal(), clock, limits, os.urandom) if partitioned else None
    return Engine(journal, clock, limits=limits, stores=stores)


def _targets(config: NamespaceConfig) -> Iterator[str]:
    """What the file's entities forward to: it may exist without being named in the file."""
    described: list[QueueDescription | SubscriptionDescription] = [*config.queues.values()]
    described += [each.description for topic in config.topics.values() for each in topic.subscriptions.values()]
    for each in described:
        yield from filter(None, (each.forward_to, each.forward_dead_lettered_messages_to))


def _targets_first(queues: dict[str, QueueDescription]) -> Iterator[tuple[str, QueueDescription]]:
    """The queues, forwarding targets first; in a circle, one has no target and is refused."""
    pending = dict(queues)
    while pending:
        waiting = {name.lower() for name in pending}
        ready = [
            name
            for name, queue in pending.items()
            if not {(queue.forward_to or "").lower(), (queue.forward_dead_lettered_messages_to or "").lower()} & waiting
        ]
        for name in ready or list(pending):
            yield name, pending.pop(name)


def _authorized(wanted: _D, current: _D | None, rules: list[AuthorizationRule] | None) -> _D:
    """The description with the file's authorization rules, or with those that exist where the file has none."""
    existing = current.authorization_rules if current is not None else []
    if rules is not None:
        existing = merge_rules(rules, existing, SystemClock().wall_ms())
    return replace(wanted, authorization_rules=existing)


def _standing(wanted: _S, current: _S | None, *, keeps_status: bool) -> _S:
    """The description with the status that the entity has (I3)."""
    return replace(wanted, status=current.status) if keeps_status and current is not None else wanted


def _queue(
    engine: Engine, name: str, wanted: QueueDescription, rules: list[AuthorizationRule] | None, *, keeps_status: bool
) -> bool:
    current = engine.get_queue(name)
    wanted = _standing(_authorized(wanted, current, rules), current, keeps_status=keeps_status)
    if current is None:
        engine.create_queue(name, wanted)
        return True
    if wanted != current:
        engine.update_queue(name, wanted)
    return wanted != current


def _topic(
    engine: Engine, name: str, wanted: TopicDescription, rules: list[AuthorizationRule] | None, *, keeps_status: bool
) -> bool:
    current = engine.get_topic(name)
    wanted = _standing(_authorized(wanted, current, rules), current, keeps_status=keeps_status)
    if current is None:
        engine.create_topic(name, wanted)
        return True
    if wanted != current:
        engine.update_topic(name, wanted)
    return wanted != current


def _event_hub(
    engine: Engine,
    name: str,
    wanted: EventHubDescription,
    rules: list[AuthorizationRule] | None,
    *,
    keeps_status: bool,
    keeps_count: bool,
) -> bool:
    current = engine.hubs.get(name)
    wanted = _standing(_authorized(wanted, current, rules), current, keeps_status=keeps_status)
    if current is None:
        engine.hubs.create(name, wanted)
        return True
    # As with subscriptions, consumer groups that the file does not name stay. A file has no metadata.
    existing = {group.lower() for group in (DEFAULT_CONSUMER_GROUP, *current.consumer_groups)}
    added = [group for group in wanted.consumer_groups if group.lower() not in existing]
    count = max(wanted.partition_count, current.partition_count) if keeps_count else wanted.partition_count
    wanted = replace(
        wanted,
        partition_count=count,
        consumer_groups=[*current.consumer_groups, *added],
        consumer_group_metadata=current.consumer_group_metadata,
    )
    if wanted != current:
        engine.hubs.update(name, wanted)
    return wanted != current


def _hybrid_connection(
    engine: Engine,
    name: str,
    wanted: HybridConnectionDescription,
    rules: list[AuthorizationRule] | None,
    *,
    keeps_status: bool,
) -> bool:
    current = engine.hybrid_connections.get(name)
    wanted = _standing(_authorized(wanted, current, rules), current, keeps_status=keeps_status)
    if current is None:
        engine.hybrid_connections.create(name, wanted)
        return True
    if wanted != current:
        engine.hybrid_connections.update(name, wanted)
    return wanted != current


def _subscription(engine: Engine, topic: str, name: str, wanted: SubscriptionConfig, *, keeps_status: bool) -> bool:
    current = engine.get_subscription(topic, name)
    described = _standing(wanted.description, current, keeps_status=keeps_status)
    changed = current != described
    if current is None:
        first = wanted.rules[0] if wanted.rules else None
        engine.create_subscription(topic, name, described, first)
    elif changed:
        engine.update_subscription(topic, name, described)
    return _rules(engine, topic, name, wanted.rules) or changed


def _rules(engine: Engine, topic: str, name: str, wanted: list[RuleDescription]) -> bool:
    """Updates the rules to those of the file; without rules in the file they stay unchanged."""
    if not wanted:
        return False
    existing = {rule.name.lower(): rule for rule in engine.list_rules(topic, name)}
    changed = False
    for rule in wanted:
        current = existing.pop(rule.name.lower(), None)
        if current is None:
            engine.create_rule(topic, name, rule)
        elif (current.filter, current.action) != (rule.filter, rule.action):
            engine.update_rule(topic, name, replace(rule, created_at_ms=current.created_at_ms))
        else:
            continue
        changed = True
    for rule in existing.values():
        engine.delete_rule(topic, name, rule.name)
    return changed or bool(existing)
