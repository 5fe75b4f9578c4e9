"""The order in which changes are carried out.

What it is: a stable topological order of a plan's changes. What it is not: the changes.

Invariants:
    I1. An entity that forwards is created or changed after its target and the target's subscriptions and rules: a
        topic drops messages that arrive before it has a subscription.
    I2. A replication subscription is created after the topics and the ordinary subscriptions of all namespaces, unless one of
        these forwards to the entity that it belongs to.
    I3. By default: topics and logs, queues and consumer groups, ordinary subscriptions, replication subscriptions, rules; each as found.
    I4. A rule is changed after the subscriptions of its topic were created: one of these selects the messages that it no longer selects.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.topology.planning.change import Change
from isthmus.topology.planning.finding import OWN
from isthmus.topology.state import QueueState, SubscriptionState

__all__ = ["ordered"]

_REPLICATION = 3


def ordered(changes: Sequence[Change]) -> tuple[Change, ...]:
    """The changes in the order in which they are carried out."""
    order = sorted(range(len(changes)), key=lambda index: _rank(changes[index]))
    hard, soft = (
        _needs(changes),
        {
            index: {other for other in order if _rank(changes[other]) in {0, 2}}
            for index in order
            if _rank(changes[index]) == _REPLICATION
        },
    )
    done: list[int] = []
    left = dict.fromkeys(order)
    while left:
        ready = [index for index in left if not hard[index] & left.keys()]
        # Circular forwarding is a fault of the file; the service refuses its first change.
        index = next((each for each in ready if not soft.get(each, set()) & left.keys()), next(iter(ready or left)))
        del left[index]
        done.append(index)
    return tuple(changes[index] for index in done)


def _needs(changes: Sequence[Change]) -> dict[int, set[int]]:
    """For each change the changes that have to precede it."""
    at: dict[tuple[str, str], set[int]] = {}
    made: dict[tuple[str, str], set[int]] = {}
    rules: dict[tuple[str, str, str], set[int]] = {}
    for index, change in enumerate(changes):
        key = (change.alias, change.topic.lower())
        at.setdefault(key, set()).add(index)
        if change.kind == "subscription" and change.action == "create":
            made.setdefault(key, set()).add(index)
        if change.kind == "rule":
            rules.setdefault((*key, change.subscription.lower()), set()).add(index)
    needs: dict[int, set[int]] = {}
    for index, change in enumerate(changes):
        key = (change.alias, change.topic.lower())
        needs[index] = made.get(key, set()) - {index} if change.kind == "rule" else set()
        for target in _targets(change):
            needs[index] |= at.get((change.alias, target.lower()), set()) - {index}
            # Its waiting messages are passed on as soon as it forwards, whichever rule selected them.
            own = (change.alias, change.topic.lower(), change.subscription.lower())
            needs[index] |= rules.get(own, set())
    return needs


def _targets(change: Change) -> list[str]:
    after = change.after
    if not isinstance(after, QueueState | SubscriptionState):
        return []
    return [each for each in (after.forward_to, after.forward_dead_letters_to) if each]


def _rank(change: Change) -> int:
    if change.kind == "subscription":
        return _REPLICATION if change.subscription.lower().startswith(OWN) else 2
    return {"topic": 0, "log": 0, "queue": 1, "group": 1, "rule": 4}[change.kind]
