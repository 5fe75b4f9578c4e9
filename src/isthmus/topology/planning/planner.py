"""What exists against what is wanted.

What it is: the pure comparison that gives the ordered changes which make the entities of a federation, and the faults
that no change can mend; its parts are in `isthmus.topology.planning`. What it is not: the observation and the changes
themselves, which a connector's administration does.

Invariants:
    I1. A plan whose changes have all been made is followed by a plan without changes.
    I2. Nothing of an application's is changed or deleted but what the file declares: settings of its queues that a task
        names, and rules of subscriptions that the file declares with a filter; and what these forward to a task of the file that says so no
        more.
    I3. At no point between two changes does a replication subscription take in messages without its rule's mark: it is
        created with its rule, and a wrong rule is first overwritten and only then deleted. (Where a mark changes, see I5.)
    I4. A replication subscription is created after the topics and the ordinary subscriptions of all namespaces, and what
        forwards after what it forwards to (`planning.order`).
    I5. Where subscriptions part the messages of a topic among them (`split`, `spillover`), their rules first take what either the former
        or the new one takes, by a second rule where one would be too long, and are narrowed when all do: between two changes a message may
        go two ways, and never none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from isthmus.errors import InvalidArgumentError
from isthmus.topology.check.start import Beginning, beginning, told_instead
from isthmus.topology.duplicate import duplicate_notes, keeps_keys
from isthmus.topology.graph.forwarding import long_walks, told_walk
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
    """Compare what a federation wants with what exists.

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
            findings.fault(alias, told_walk(walk), "end what is there already, or forward to another entity")
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
            alias, f"{state.endpoint} is namespace {same.alias} too", "write one alias, or another connection"
        )


def _made(entity: EntityState, namespace: NamespaceState) -> EntityState:
    """The entity once the plan is made: what is wanted, and where that says nothing what exists."""
    if isinstance(entity, QueueState):
        return _forwarding(entity, namespace.queue(entity.name))
    stands = namespace.topic(entity.name)
    if stands is None:
        return entity
    subscriptions = [_forwarding(each, stands.subscription(each.name)) for each in entity.subscriptions]
    others = [each for each in stands.subscriptions if entity.subscription(each.name) is None]
    return replace(entity, subscriptions=(*subscriptions, *others))


def _forwarding(wanted: _Receiver, stands: _Receiver | None) -> _Receiver:
    if stands is None:
        return wanted
    kept = {
        name: getattr(stands, name)
        for name in ("forward_to", "forward_dead_letters_to")
        if getattr(wanted, name) is None
    }
    return replace(wanted, **kept)


def _note_beginnings(findings: Findings, observed: Mapping[str, NamespaceState]) -> None:
    """Note what a new route does not get: what was sent to a topic that exists before its subscription was made."""
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
            f"topic {name} at {alias} exists: what was sent before `apply` makes {subscription}, e.g. what is in its subscriptions "
            f"{', '.join(others[:3])}{more}, does not go to {route.target} (start: now). To take it along {told_instead(route)}"
        )


def _note_orphans(findings: Findings, namespace: NamespaceState, entities: tuple[EntityState, ...]) -> None:
    """Note subscriptions that isthmus made for members or tasks that are gone, which fill until they are deleted, and what others forward."""
    for topic in entities:
        stands = namespace.topic(topic.name)
        if not isinstance(topic, TopicState) or stands is None:
            continue
        for subscription in stands.subscriptions:
            if topic.subscription(subscription.name):
                continue
            what = f"subscription {subscription.name} of {topic.name}"
            findings.note_kept(namespace.alias, what, SubscriptionState(name=subscription.name), subscription)
            if subscription.name.lower().startswith(OWN):
                findings.notes.append(
                    f"{what} at {namespace.alias} belongs to no task of "
                    "this file: it fills up; delete it once nobody needs its messages, with isthmus apply --prune where the task that "
                    "its name tells is in the file, else with isthmus remove"
                )
