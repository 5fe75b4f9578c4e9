"""Streams of RabbitMQ as an end of the conformance suite: one real node, with a new stream for each scenario. It is a source only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.conformance.rabbitmq_end import PASSWORD_NAME, RabbitEnd
from harness.server.rabbitmq_server import USER, RabbitServer
from isthmus.connectors.rabbitmq.port.probe import Probe
from isthmus.connectors.rabbitmq_streams.option import read_namespace
from isthmus.connectors.rabbitmq_streams.system import SYSTEM
from isthmus.errors import IsthmusError
from isthmus.testing.bridge.pair import Ability

__all__ = ["RabbitStreamsEnd"]

GROUP = "isthmus"
READY_SECONDS = 120.0


class RabbitStreamsEnd(RabbitEnd):
    """A node.

    Args:
        server: which runs.
        folder: of checkpoints.
    """

    kind = "rabbitmq-streams"
    source_abilities = frozenset({Ability.DEAD_LETTERS, Ability.RESTARTS})
    target_abilities: frozenset[Ability] = frozenset()

    def __init__(self, server: RabbitServer, folder: Path) -> None:
        super().__init__(server)
        self._checkpoints = folder / "checkpoints"

    def make(self, entity: str, side: str, settings: Mapping[str, Any]) -> dict[str, str]:
        """Makes a stream, and a queue for its dead letters."""
        assert side == "source"
        self._server.queue(entity, "stream")
        self._made_at = time.monotonic()
        return {
            "topic": entity,
            "host": "none:1",
            "username": USER,
            "password": f"env:{PASSWORD_NAME}",
            "checkpoints": str(self._checkpoints),
            "checkpoint_seconds": "0.1",
            "dead_letter_topic": self._server.queue(f"{entity}.dead"),
        }

    def publish(self, entity: str, keys: Sequence[str], body: bytes, ttl_ms: int) -> None:
        """Publishes messages once the stream is there: a node that has just started confirms, and drops, what it cannot route yet."""
        limit = time.monotonic() + READY_SECONDS
        while True:
            try:
                with Probe(read_namespace(self._reached())) as probe:
                    probe.queue(entity)
                break
            except IsthmusError:
                assert time.monotonic() < limit, f"stream {entity} does not come back"
                time.sleep(0.1)
        super().publish(entity, keys, body, ttl_ms)

    def _reached(self) -> dict[str, str]:
        options = {"host": f"127.0.0.1:{self._server.port}", "username": USER, "password": f"env:{PASSWORD_NAME}"}
        return options | {"checkpoints": str(self._checkpoints)}

    def left(self, entity: str) -> int:
        """What comes after the checkpoint."""
        try:
            return SYSTEM.waiting(self._reached(), entity, GROUP).messages
        except IsthmusError:  # the node was restarted
            return 1
