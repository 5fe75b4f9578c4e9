"""A receiver of HTTP requests as a target of the conformance suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.server.http_server import HttpReceiver
from isthmus.connectors.http.mapping import to_messages
from isthmus.testing.bridge.message import key_of
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.proxy import Proxy

__all__ = ["HttpEnd"]

LIMIT_BYTES = 100_000


class HttpEnd:
    """A receiver, of which each target has a path.

    Args:
        server: which runs.
    """

    kind = "http"
    source_abilities: frozenset[Ability] = frozenset()
    target_abilities = frozenset({Ability.DEDUPLICATES, Ability.LIMITS_SIZE, Ability.REFUSES, Ability.RESTARTS})
    too_large = 2 * LIMIT_BYTES
    lanes = 1
    lock_seconds = 0.0
    wait_seconds = 120.0

    def __init__(self, server: HttpReceiver) -> None:
        self._server = server
        self._looks: dict[str, list[str]] = {}
        self._behaviour: dict[str, dict[str, Any]] = {}

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Sets what a path does."""
        assert side == "target"
        self._behaviour[entity] = {"once": bool(settings.get("detects_duplicates"))}
        if settings.get("limits_size"):
            self._behaviour[entity]["limit"] = LIMIT_BYTES
        self._server.set(f"/{entity}", **self._behaviour[entity])
        return {"entity": entity}

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before the receiver."""
        made = Proxy(self._server.port)
        return made, {"url": f"http://127.0.0.1:{made.port}"}

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """A receiver is no source."""
        raise NotImplementedError

    def arrived(self, entity: str) -> Sequence[str]:
        """The requests that it keeps."""
        found = self._looks.setdefault(entity, [])
        try:
            more = self._server.requests(f"/{entity}", len(found))
        except OSError:  # it was restarted
            return found
        found += [key_of(each) for request in more for each in to_messages(request["headers"], request["body"])]
        return found

    def left(self, entity: str) -> int:
        """A receiver is no source."""
        raise NotImplementedError

    def dead(self, entity: str) -> dict[str, str]:
        """A receiver is no source."""
        raise NotImplementedError

    def refuse(self, entity: str, refuses: bool) -> None:
        """It answers 503."""
        self._server.set(f"/{entity}", **self._behaviour[entity], status=503 if refuses else 200)

    def restart(self) -> None:
        """Kills the receiver, and starts it again."""
        self._server.restart()

    def release(self, entity: str) -> None:
        """Nothing is open."""
