"""The forwarding of a namespace's entities, and the number of hops of a message.

What it is: the graph of auto-forwarding and of dead-letter forwarding, with the walks that Service Bus does not
complete. What it is not: the order in which such entities are created (`planning.order`).
Spec: Microsoft Learn, "Chaining Service Bus entities with autoforwarding"; docs/explanation/protocol.md, Forwarding.

Invariants:
    I1. A walk that is a circle, or that has more than HOP_LIMIT hops, is found, whichever entity it begins with.
    I2. Every reported walk begins where no longer one passes: one mistake is reported once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from isthmus.errors import Fault
from isthmus.topology.model import Federation
from isthmus.topology.planning.wanted import wanted, wanted_of
from isthmus.topology.state import EntityState, QueueState, SubscriptionState

__all__ = ["HOP_LIMIT", "hop_faults", "long_walks", "walk_fault"]

HOP_LIMIT = 4
"""A message is dead-lettered with the reason MaxTransferHopCountExceeded at the next hop."""


def long_walks(entities: Iterable[EntityState]) -> Iterator[tuple[str, ...]]:
    """Walks that are too long, each as the lower-case names that it passes; a circle ends with a name that it has passed before."""
    links = _links(entities)
    reached = {target for targets in links.values() for target in targets}
    passed: set[str] = set()
    for start in (*(name for name in links if name not in reached), *links):
        if start in passed:
            continue
        walk = _longest(start, links)
        passed |= set(walk)
        if len(walk) - 1 > HOP_LIMIT or len(set(walk)) < len(walk):
            yield walk


def walk_fault(walk: tuple[str, ...]) -> str:
    """The description of a faulty walk."""
    path = " → ".join(walk)
    if len(set(walk)) < len(walk):
        return f"messages are forwarded in a circle: {path}"
    return f"messages are forwarded {len(walk) - 1} times: {path}; Service Bus dead-letters them after {HOP_LIMIT}"


def hop_faults(federation: Federation) -> Iterator[Fault]:
    """A fault for each walk of the file that is too long, at the last task with a link of it."""
    for alias, entities in wanted(federation).items():
        for walk in long_walks(entities):
            on_it = [
                task
                for task in federation.tasks.values()
                if any(
                    name in walk and targets & set(walk)
                    for name, targets in _links(each for at, each in wanted_of(task) if at == alias).items()
                )
            ]
            names, place = ", ".join(task.name for task in on_it), on_it[-1].place
            yield Fault(
                f"at {alias} {walk_fault(walk)} (tasks: {names})",
                "forward directly to the last of them",
                federation.file,
                place.line,
                place.column,
            )


def _links(entities: Iterable[EntityState]) -> dict[str, set[str]]:
    """By name, the entities to which messages are forwarded; for a topic, those of all its subscriptions."""
    found: dict[str, set[str]] = {}
    for entity in entities:
        forwarding: tuple[QueueState | SubscriptionState, ...] = (
            (entity,) if isinstance(entity, QueueState) else entity.subscriptions
        )
        targets = {
            target.lower()
            for each in forwarding
            for target in (each.forward_to, each.forward_dead_letters_to)
            if target
        }
        if targets:
            found.setdefault(entity.name.lower(), set()).update(targets)
    return found


def _longest(start: str, links: dict[str, set[str]]) -> tuple[str, ...]:
    """The longest walk from an entity, or a circle."""
    known: dict[str, tuple[str, ...]] = {}

    def walk(name: str, before: tuple[str, ...]) -> tuple[str, ...]:
        if name in before:
            return (name,)
        if name not in known:
            longest: tuple[str, ...] = ()
            for target in sorted(links.get(name, ())):
                rest = walk(target, (*before, name))
                if len(set(rest) | {*before, name}) < len(rest) + len(before) + 1:
                    return (name, *rest)
                longest = max(longest, rest, key=len)
            known[name] = (name, *longest)
        return known[name]

    return walk(start, ())
