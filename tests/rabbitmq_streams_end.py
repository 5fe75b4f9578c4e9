"""Streams of RabbitMQ as an end of the conformance suite: one real node, with a new stream for each scenario. It is a source only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.connectors.rabbitmq_streams.system import SYSTEM
from isthmus.errors import IsthmusError
from isthmus.testing.bridge.pair import Ability
from rabbitmq_end import PASSWORD_NAME, RabbitEnd
from rabbitmq_server import USER, RabbitServer

__all__ = ["RabbitStreamsEnd"]

GROUP = "isthmus"


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
        return {
            "topic": entity,
            "host": "none:1",
            "username": USER,
            "password": f"env:{PASSWORD_NAME}",
            "checkpoints": str(self._checkpoints),
            "checkpoint_seconds": "0.1",
            "dead_letter_topic": self._server.queue(f"{entity}.dead"),
        }

    def left(self, entity: str) -> int:
        """What stands behind the checkpoint."""
        options = {"host": f"127.0.0.1:{self._server.port}", "username": USER, "password": f"env:{PASSWORD_NAME}"}
        try:
            return SYSTEM.waiting(options | {"checkpoints": str(self._checkpoints)}, entity, GROUP).messages
        except IsthmusError:  # the node was restarted
            return 1
