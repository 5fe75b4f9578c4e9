"""The comparison of the existing entities with the wanted ones.

What it is: the pure comparison that returns the ordered changes which create the entities of a federation, and the faults
that no change can resolve; its parts are in `isthmus.topology.planning`. What it is not: observing and changing namespaces,
which a connector's administration does.

Invariants:
    I1. After all changes of a plan have been carried out, the next plan has no changes.
    I2. Entities of an application are changed or deleted only as the file declares: settings of queues that a task names, rules of
        subscriptions that the file declares with a filter, and forwarding of these to a task of the file that no longer
        declares it.
    I3. At no point between two changes does a replication subscription select messages without its rule's mark: it is
        created with its rule, and a wrong rule is first overwritten and only then deleted. (Where a mark changes, see I5.)
    I4. A replication subscription is created after the topics and the ordinary subscriptions of all namespaces, and an entity that
        forwards after its target (`planning.order`).
    I5. If subscriptions divide the messages of a topic among them (`split`, `spillover`), their rules first select the union of the former
        and the new selection, with a second rule if one would be too long, and are narrowed when all do: between two changes two
        subscriptions may select a message, and at least one does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from isthmus.errors import InvalidArgumentError
from isthmus.topology.check.start import Beginning, alternative_to, beginning
from isthmus.topology.duplicate import duplicate_notes, keeps_keys
from isthmus.topology.graph.forwarding import long_walks, walk_fault
from isthmus.topology.model import Federation
from isthmus.topology.planning.change import Plan
from isthmus.topology.planning.finding import OWN, Findings
from isthmus.topology.planning.log_planner import log_changes, wanted_logs
from isthmus.topology.planning.order import ordered
from isthmus.topology.planning.plain_planner import plain_changes, wanted_plain
from isthmus.topology.planning.queue import plan_queue
from isthmus.topology.planning.topic import plan_topic
from isthmus.topology.planning.wanted import contradictions, wanted
from isthmus.topology.route import routes
from isthmus.topology.state import EntityState, NamespaceState, QueueState, SubscriptionState, TopicState

__all__ = ["plan"]

_Receiver = TypeVar("_Receiver", QueueState, SubscriptionState)


def plan(federation: Federation, observed: Mapping[str, NamespaceState]) -> Plan:
    """Compare the entities that a federation wants with the existing ones.

    Args:
        federation: from `isthmus.topology.read`.
        observed: by alias, every namespace that a task uses.

    Raises:
        InvalidArgumentError: a namespace that a task uses was not observed.
    """
    desired = wanted(federation)
    used = (*desired, *wanted_logs(federation), *wanted_plain(federation))
    missing = [alias for alias in used if alias not in observed]
    if missing:
        raise InvalidArgumentError(f"not observed: {', '.join(missing)}")
    findings = Findings(federation, faults=list(contradictions(federation)))
    _check_endpoints(findings, {alias: observed[alias] for alias in used})
    for alias, entities in desired.items():
        for entity in entities:
            if isinstance(entity, TopicState):
                plan_topic(findings, observed[alias], entity)
            else:
                plan_queue(findings, observed[alias], entity)
        for walk in long_walks(_made(each, observed[alias]) for each in entities):
            findings.fault(alias, walk_fault(walk), "end the existing forwarding, or forward to another entity")
        _note_orphans(findings, observed[alias], entities)
    _note_beginnings(findings, observed)
    for task in federation.tasks.values():
        keyless = [
            alias
            for alias in task.sent_to
            if federation.namespaces[alias].is_plain or not keeps_keys(observed[alias].endpoint)
        ]
        findings.notes += duplicate_notes(task, keyless)
    for others in (log_changes(federation, observed), plain_changes(federation, observed)):
        findings.changes += others.changes
        findings.notes += others.notes
        findings.faults += others.faults
    return Plan(
        changes=ordered(findings.changes),
        routes=tuple(routes(federation)),
        notes=tuple(findings.notes),
        faults=tuple(findings.faults),
    )


def _check_endpoints(findings: Findings, observed: Mapping[str, NamespaceState]) -> None:
    first: list[NamespaceState] = []
    for alias, state in observed.items():
        same = next((each for each in first if each.is_same_namespace(state)), None)
        if same is None:
            first.append(state)
            continue
        findings.fault(
            alias, f"{state.endpoint} is also namespace {same.alias}", "write one alias, or another connection"
        )


def _made(entity: EntityState, namespace: NamespaceState) -> EntityState:
    """The entity after the plan: the wanted fields, and the existing ones where none is wanted."""
    if isinstance(entity, QueueState):
        return _forwarding(entity, namespace.queue(entity.name))
    existing = namespace.topic(entity.name)
    if existing is None:
        return entity
    subscriptions = [_forwarding(each, existing.subscription(each.name)) for each in entity.subscriptions]
    others = [each for each in existing.subscriptions if entity.subscription(each.name) is None]
    return replace(entity, subscriptions=(*subscriptions, *others))


def _forwarding(wanted: _Receiver, existing: _Receiver | None) -> _Receiver:
    if existing is None:
        return wanted
    kept = {
        name: getattr(existing, name)
        for name in ("forward_to", "forward_dead_letters_to")
        if getattr(wanted, name) is None
    }
    return replace(wanted, **kept)


def _note_beginnings(findings: Findings, observed: Mapping[str, NamespaceState]) -> None:
    """Note the messages that a new route does not get: those sent to an existing topic before its subscription was created."""
    for route in routes(findings.federation):
        alias, path = route.source.alias, route.options.feed or route.source.entity
        name, _, subscription = path.partition("/Subscriptions/")
        if beginning(route) is not Beginning.NOW or not findings.federation.namespaces[alias].is_service_bus:
            continue
        topic = observed[alias].topic(name)
        if topic is None or topic.subscription(subscription) is not None:
            continue
        others = sorted(each.name for each in topic.subscriptions if not each.name.lower().startswith(OWN))
        if not others:
            continue
        more = f" and {len(others) - 3} more" if len(others) > 3 else ""
        findings.notes.append(
            f"topic {name} at {alias} exists: messages sent before `apply` creates {subscription}, e.g. those in its subscriptions "
            f"{', '.join(others[:3])}{more}, are not moved to {route.target} (start: now). To include them, {alternative_to(route)}"
        )


def _note_orphans(findings: Findings, namespace: NamespaceState, entities: tuple[EntityState, ...]) -> None:
    """Note subscriptions that isthmus created for deleted members or tasks, which fill until they are deleted, and forwarding of other entities."""
    for topic in entities:
        existing = namespace.topic(topic.name)
        if not isinstance(topic, TopicState) or existing is None:
            continue
        for subscription in existing.subscriptions:
            if topic.subscription(subscription.name):
                continue
            what = f"subscription {subscription.name} of {topic.name}"
            findings.note_kept(namespace.alias, what, SubscriptionState(name=subscription.name), subscription)
            if subscription.name.lower().startswith(OWN):
                findings.notes.append(
                    f"{what} at {namespace.alias} belongs to no task of "
                    "this file: it fills up; delete it once its messages are not needed, with isthmus apply --prune if the task in "
                    "its name is in the file, else with isthmus remove"
                )
