"""A namespace's file made true.

What it is: the entities of a `NamespaceConfig` created, or brought in line where they stand already. What it is not: a
remover; entities that the file does not name stay, and so do their messages.
Spec: none; the file is read again at every start, and what it says wins over what the administration API changed since.

Invariants:
    I1. A second run with the same file changes nothing.
    I2. Whatever the engine refuses is told all at once; the caller then commits nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from isthmus.broker.config import NamespaceConfig, SubscriptionConfig
from isthmus.entities import Engine
from isthmus.entities.description import QueueDescription, RuleDescription, TopicDescription
from isthmus.errors import ConfigError, Fault, IsthmusError

__all__ = ["provision"]


def provision(engine: Engine, config: NamespaceConfig, *, file: str = "") -> list[str]:
    """Create or update what the file names; the changes are staged, the caller commits them.

    Returns:
        The paths of the entities that were created or changed.

    Raises:
        ConfigError: the engine refused something, e.g. a change of RequiresSession.
    """
    steps: list[tuple[str, Callable[[], bool]]] = []
    for name, topic in config.topics.items():
        steps.append((name, partial(_topic, engine, name, topic.description)))
    for name, queue in _targets_first(config.queues):
        steps.append((name, partial(_queue, engine, name, queue)))
    for name, topic in config.topics.items():
        for sub, wanted in topic.subscriptions.items():
            steps.append((f"{name}/Subscriptions/{sub}", partial(_subscription, engine, name, sub, wanted)))

    changed: list[str] = []
    faults: list[Fault] = []
    for path, step in steps:
        try:
            if step():
                changed.append(path)
        except IsthmusError as error:
            faults.append(Fault(f"{path}: {error}", file=file))
    if faults:
        raise ConfigError(faults)
    return changed


def _targets_first(queues: dict[str, QueueDescription]) -> Iterator[tuple[str, QueueDescription]]:
    """The queues, those that others forward to before the others; a circle is left to the engine to refuse."""
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


def _queue(engine: Engine, name: str, wanted: QueueDescription) -> bool:
    current = engine.get_queue(name)
    if current is None:
        engine.create_queue(name, wanted)
        return True
    wanted = replace(wanted, authorization_rules=current.authorization_rules)
    if wanted != current:
        engine.update_queue(name, wanted)
    return wanted != current


def _topic(engine: Engine, name: str, wanted: TopicDescription) -> bool:
    current = engine.get_topic(name)
    if current is None:
        engine.create_topic(name, wanted)
        return True
    wanted = replace(wanted, authorization_rules=current.authorization_rules)
    if wanted != current:
        engine.update_topic(name, wanted)
    return wanted != current


def _subscription(engine: Engine, topic: str, name: str, wanted: SubscriptionConfig) -> bool:
    current = engine.get_subscription(topic, name)
    changed = current != wanted.description
    if current is None:
        first = wanted.rules[0] if wanted.rules else None
        engine.create_subscription(topic, name, wanted.description, first)
    elif changed:
        engine.update_subscription(topic, name, wanted.description)
    return _rules(engine, topic, name, wanted.rules) or changed


def _rules(engine: Engine, topic: str, name: str, wanted: list[RuleDescription]) -> bool:
    """Bring the rules in line with the file's; a file without rules leaves them alone."""
    if not wanted:
        return False
    standing = {rule.name.lower(): rule for rule in engine.list_rules(topic, name)}
    changed = False
    for rule in wanted:
        current = standing.pop(rule.name.lower(), None)
        if current is None:
            engine.create_rule(topic, name, rule)
        elif (current.filter, current.action) != (rule.filter, rule.action):
            engine.update_rule(topic, name, replace(rule, created_at_ms=current.created_at_ms))
        else:
            continue
        changed = True
    for rule in standing.values():
        engine.delete_rule(topic, name, rule.name)
    return changed or bool(standing)
