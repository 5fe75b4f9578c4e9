"""The marker that tells which member of a pair is active.

What it is: a JSON document in the metadata of a queue that holds no message. What it is not: what it says (`isthmus.pairing`).
Specification: docs/how-to/recover-from-a-disaster.md.

Invariants:
    I1. The queue of a marker takes and gives no messages.
    I2. What was written meanwhile is kept where the writer says so: it is asked just before it is replaced.
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
        clients: of the namespace.
    """

    def __init__(self, clients: PairClients) -> None:
        self._clients = clients

    def read(self, pair: str) -> Mapping[str, Any]:
        """What the namespace says of a pair; empty where it says nothing.

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
        """Say something of a pair in the namespace: in the metadata of a queue that holds no message.

        Args:
            pair: its name.
            value: what to say.
            unless: is asked about what the namespace says now, just before that is replaced; where it says nothing, about nothing.

        Returns:
            Whether the namespace says it; False where `unless` kept what was there.

        Raises:
            AdministrationError: no answer, or a refusal.
        """
        text = json.dumps(dict(value))
        with administration_errors(self._clients.endpoint):
            client = self._clients.open().client
            try:
                stands = client.get_queue(_marker(pair))
            except ResourceNotFoundError:
                if unless({}):
                    return False
                client.create_queue(_marker(pair), user_metadata=text)
                stands = client.get_queue(_marker(pair))
            if stands.user_metadata != text and unless(_read(stands.user_metadata)):
                return False
            if stands.user_metadata != text or str(getattr(stands.status, "value", stands.status)) != CLOSED["queue"]:
                stands.user_metadata, stands.status = text, CLOSED["queue"]
                client.update_queue(stands)
        return True

    def delete(self, pair: str) -> None:
        """Say nothing of a pair any more.

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
