"""Words that a shell offers for an incomplete command line.

What it is: aliases and tasks of the federation file in the folder, and entities of the namespace that the line names. What it is
not: a source of errors; if a query fails, no word is offered.

Invariants:
    I1. A completion ends within seconds, prints nothing but words, and changes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import Any

__all__ = ["aliases", "entities", "patterns", "tasks"]

_SECONDS = 5.0


def tasks(ctx: Any, incomplete: str) -> list[str]:
    """Tasks of the federation file that the line names, or of isthmus.yaml."""
    found = _federation(ctx)
    return _begun(found.tasks if found is not None else (), incomplete)


def aliases(ctx: Any, incomplete: str) -> list[str]:
    """Aliases of the federation file's namespaces."""
    found = _federation(ctx)
    return _begun(found.namespaces if found is not None else (), incomplete)


def patterns(incomplete: str) -> list[str]:
    """Patterns of tasks."""
    from isthmus.topology.pattern import PATTERNS

    return _begun(PATTERNS, incomplete)


def entities(ctx: Any, incomplete: str) -> list[str]:
    """Queues, topics and subscriptions of the namespace that the line names."""
    import isthmus.connectors.servicebus.entity
    import isthmus.operations.address  # noqa: F401 - both take time, which does not count as the namespace's

    found: list[str] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            found.extend(_paths(ctx.params))

    # A thread, because the client of the administration waits for much longer than a user at a terminal.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return _begun(list(found), incomplete)


def _paths(given: dict[str, Any]) -> list[str]:
    from isthmus.connectors.servicebus.entity import Entities
    from isthmus.operations.address import find_address
    from isthmus.topology.file.name import DEFAULT_FILE

    logging.disable(logging.CRITICAL)
    address = find_address(
        connection=given.get("connection") or "",
        alias=given.get("alias") or "",
        federation=given.get("federation") or DEFAULT_FILE,
        data=given.get("data"),
        authority=given.get("ca_file") or "",
    )
    with Entities(address.administration()) as namespace:
        return namespace.paths()


def _federation(ctx: Any) -> Any:
    from isthmus.errors import IsthmusError
    from isthmus.topology.file.name import DEFAULT_FILE
    from isthmus.topology.file.source import load

    given = ctx.params
    try:
        return load(given.get("federation") or given.get("file") or DEFAULT_FILE)
    except IsthmusError:
        return None


def _begun(names: Any, incomplete: str) -> list[str]:
    return sorted(str(name) for name in names if str(name).lower().startswith(incomplete.lower()))
