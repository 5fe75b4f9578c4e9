"""The topics of durable subscriptions at AMQP brokers, as the runs of a state folder have requested them.

What it is: a list in the state folder, and the check of routes against it. A subscription is identified by its name: if a route requests it at
another topic, ActiveMQ Artemis deletes it with its messages, and creates another one, as JMS specifies. What it is not: the link
(`isthmus.connectors.amqp.remote`).
Specification: Jakarta Messaging 3.1, 8.3.3 (unshared durable subscriptions).

Invariants:
    I1. A topic is on the list before a run requests its subscription.
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
    """Refuse routes for which a broker would delete waiting messages.

    Raises:
        ConfigError: a task reads another topic with its former subscription.
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
                    f"task reads {topic} now: the broker may delete it, with its messages",
                    "first let a run of the former file move them (isthmus run --available-now), after publishing has stopped; then remove "
                    f"{key} from {state_folder / _FILE}",
                )
            )
    if faults:
        raise ConfigError(faults)


def note_topics(routes: Iterable[Route], namespaces: Mapping[str, NamespaceRef], state_folder: Path) -> None:
    """Add the subscriptions that routes are about to request to the list.

    Raises:
        InvalidArgumentError: the list cannot be read, or written.
    """
    known = _known(state_folder)
    every = known | {_key(route): route.source.entity for route in _subscribed(routes, namespaces)}
    if every == known:
        return
    path = state_folder / _FILE
    try:
        write_file(path, json.dumps(every, indent=1).encode())
    except OSError as error:
        raise InvalidArgumentError(
            f"{path}, which names the topics of durable subscriptions, cannot be written: {error.strerror or error}"
        ) from None


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
