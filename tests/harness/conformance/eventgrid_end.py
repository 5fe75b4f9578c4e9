"""Event Grid as an end of the conformance suite: the server of `eventgrid_server`, with a new topic for each scenario."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any

from harness.server.eventgrid_server import KEY, LOCK_SECONDS, EventGridServer
from isthmus.connectors.eventgrid.mapping import message_of
from isthmus.connectors.wrap.cloud_event_message import to_event
from isthmus.testing.bridge.message import key_of, message
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.proxy import Proxy

__all__ = ["EventGridEnd"]

LIMIT_BYTES = 100_000
# Rejected events carry no reason from the client that rejected them: it is derived from their size, as far as the suite makes large ones.
TOO_LARGE, REFUSED = "MessageTooLarge", "RefusedByTarget"


class EventGridEnd:
    """A namespace. It promises no order, so that each message is a lane of its own.

    Args:
        server: which runs.
    """

    kind = "eventgrid"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.LOCKS, Ability.RESTARTS})
    target_abilities = frozenset({Ability.LIMITS_SIZE, Ability.REFUSES, Ability.RESTARTS})
    too_large = 2 * LIMIT_BYTES
    lanes = 1 << 30
    lock_seconds = LOCK_SECONDS
    wait_seconds = 120.0

    def __init__(self, server: EventGridServer) -> None:
        self._server = server
        self._looks: dict[str, list[str]] = {}
        self._reported: dict[str, dict[str, Any]] = {}
        os.environ["EVENT_GRID_CONFORMANCE"] = KEY

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a topic."""
        name = _name(entity)
        self._reported[name] = {"limit": LIMIT_BYTES} if settings.get("limits_size") else {}
        self._server.ask("PUT", f"/{name}", self._reported[name])
        options = {"entity": name, "key": "env:EVENT_GRID_CONFORMANCE"}
        if side == "source":
            options |= {"subscription": "sub", "lock_seconds": f"{LOCK_SECONDS:g}", "rejects": "true"}
        return options

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before the server."""
        made = Proxy(self._server.port)
        return made, {"endpoint": f"http://127.0.0.1:{made.port}"}

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Publishes events."""
        batch = 50 if len(body) < 10_000 else 1
        for start in range(0, len(keys), batch):
            events = [to_event(message(key, body), "publisher") for key in keys[start : start + batch]]
            assert self._server.ask("POST", f"/topics/{_name(entity)}:publish?api-version=2024-06-01", events) == {}

    def arrived(self, entity: str) -> Sequence[str]:
        """The events of the topic."""
        found = self._looks.setdefault(entity, [])
        try:
            reported = self._server.ask("GET", f"/{_name(entity)}?{len(found)}")
        except OSError:  # it was restarted
            return found
        found += [key_of(message_of(each)) for each in reported["events"]]
        return found

    def left(self, entity: str) -> int:
        """What the subscription has."""
        return int(self._server.ask("GET", f"/{_name(entity)}")["left"])

    def dead(self, entity: str) -> dict[str, str]:
        """What was rejected."""
        return {
            key_of(message_of(each)): TOO_LARGE if len(json.dumps(each)) > LIMIT_BYTES else REFUSED
            for each in self._server.ask("GET", f"/{_name(entity)}")["dead"]
        }

    def refuse(self, entity: str, refuses: bool) -> None:
        """It answers 503."""
        name = _name(entity)
        self._server.ask("PUT", f"/{name}", {**self._reported[name], "status": 503 if refuses else 200})

    def restart(self) -> None:
        """Kills the server, and starts it again."""
        self._server.restart()

    def release(self, entity: str) -> None:
        """Nothing is open."""


def _name(entity: str) -> str:
    """The name of a topic: 3 to 50 letters, digits and hyphens."""
    return f"t-{sha1(entity.encode(), usedforsecurity=False).hexdigest()}"
