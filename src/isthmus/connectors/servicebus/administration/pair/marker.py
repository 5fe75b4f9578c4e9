"""The marker of the active member of a pair.

What it is: a JSON document in the metadata of a queue without messages. What it is not: its contents (`isthmus.pairing`).
Specification: docs/how-to/recover-from-a-disaster.md.

Invariants:
    I1. The queue of a marker accepts and delivers no messages.
    I2. A value that was written meanwhile is kept if the writer decides so: it is asked just before the value is replaced.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from azure.core.exceptions import ResourceNotFoundError

from isthmus.connectors.servicebus.administration.client import administration_errors
from isthmus.connectors.servicebus.administration.pair.client import PairClients
from isthmus.topology.pair.description import CLOSED, MARKER

__all__ = ["PairMarker"]


class PairMarker:
    """Markers in one namespace.

    Args:
        clients: the clients of the namespace.
    """

    def __init__(self, clients: PairClients) -> None:
        self._clients = clients

    def read(self, pair: str) -> Mapping[str, Any]:
        """The namespace's marker of a pair; empty where there is none.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self._clients.endpoint):
            try:
                return _read(self._clients.open().client.get_queue(_marker(pair)).user_metadata)
            except ResourceNotFoundError:
                return {}

    def write(
        self, pair: str, value: Mapping[str, Any], *, unless: Callable[[Mapping[str, Any]], bool] = lambda marker: False
    ) -> bool:
        """Writes the marker of a pair in the namespace: in the metadata of a queue without messages.

        Args:
            pair: its name.
            value: the marker.
            unless: called with the present marker, or an empty one, just before it is replaced; True keeps it.

        Returns:
            Whether the marker was written; False where `unless` kept the present one.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        text = json.dumps(dict(value))
        with administration_errors(self._clients.endpoint):
            client = self._clients.open().client
            try:
                existing = client.get_queue(_marker(pair))
            except ResourceNotFoundError:
                if unless({}):
                    return False
                client.create_queue(_marker(pair), user_metadata=text)
                existing = client.get_queue(_marker(pair))
            if existing.user_metadata != text and unless(_read(existing.user_metadata)):
                return False
            if (
                existing.user_metadata != text
                or str(getattr(existing.status, "value", existing.status)) != CLOSED["queue"]
            ):
                existing.user_metadata, existing.status = text, CLOSED["queue"]
                client.update_queue(existing)
        return True

    def delete(self, pair: str) -> None:
        """Deletes the marker of a pair.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        with administration_errors(self._clients.endpoint), contextlib.suppress(ResourceNotFoundError):
            self._clients.open().client.delete_queue(_marker(pair))


def _read(text: str | None) -> Mapping[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _marker(pair: str) -> str:
    return f"{MARKER}{pair}"
