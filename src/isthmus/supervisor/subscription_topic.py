"""The topics of durable subscriptions at AMQP brokers, as the runs of a state folder have asked for them.

What it is: a list in the state folder, and the check of routes against it. A subscription is known by its name: where a route asks for it at
another topic, ActiveMQ Artemis deletes it with the messages that wait there, and creates another one, as JMS specifies. What it is not: the link that asks
(`isthmus.connectors.amqp.remote`).
Specification: Jakarta Messaging 3.1, 8.3.3 (unshared durable subscriptions).

Invariants:
    I1. A topic is on the list before a run asks for its subscription.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from isthmus.errors import ConfigError, Fault, InvalidArgumentError
from isthmus.topology.kind.amqp import AMQP
from isthmus.topology.model import NamespaceRef, Route
from isthmus.whole_file import write_file

__all__ = ["check_topics", "note_topics"]

_FILE = "amqp-topics.json"


def check_topics(routes: Iterable[Route], namespaces: Mapping[str, NamespaceRef], state_folder: Path) -> None:
    """Refuse routes that would have a broker delete what waits for them.

    Raises:
        ConfigError: a task reads another topic by the subscription that it had.
        InvalidArgumentError: the list cannot be read.
    """
    known, faults = _known(state_folder), []
    for route in _subscribed(routes, namespaces):
        key, topic = _key(route), route.source.entity
        former = known.get(key, topic)
        if former != topic:
            faults.append(
                Fault(
                    f"task {route.task}: the subscription {route.options.plain.subscription} at {route.source.alias} is of topic {former}, and the "
                    f"task reads {topic} now: the broker may delete it, with what waits there",
                    "let the former file's run move that first (isthmus run --available-now), with nothing published there any more; then take "
                    f"{key} out of {state_folder / _FILE}",
                )
            )
    if faults:
        raise ConfigError(faults)


def note_topics(routes: Iterable[Route], namespaces: Mapping[str, NamespaceRef], state_folder: Path) -> None:
    """Add what routes are about to ask for to the list.

    Raises:
        InvalidArgumentError: the list cannot be read.
        OSError: it cannot be written.
    """
    known = _known(state_folder)
    every = known | {_key(route): route.source.entity for route in _subscribed(routes, namespaces)}
    if every != known:
        write_file(state_folder / _FILE, json.dumps(every, indent=1).encode())


def _subscribed(routes: Iterable[Route], namespaces: Mapping[str, NamespaceRef]) -> Iterable[Route]:
    return (
        route
        for route in routes
        if route.options.plain.subscription and namespaces[route.source.alias].kind == AMQP.name
    )


def _key(route: Route) -> str:
    return f"{route.source.alias}/{route.options.plain.subscription}"


def _known(state_folder: Path) -> dict[str, str]:
    path = state_folder / _FILE
    try:
        return {str(key): str(topic) for key, topic in json.loads(path.read_bytes()).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidArgumentError(
            f"{path}, which names the topics of durable subscriptions, cannot be read ({error}); repair it, or remove it where no task was given "
            "another topic"
        ) from None
