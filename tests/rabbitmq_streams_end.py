"""Streams of RabbitMQ as an end of the conformance suite: one real node, with a new stream for each scenario. It is a source only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.connectors.eventhubs.checkpoint.folder_store import FolderStore
from isthmus.connectors.rabbitmq_streams.option import read_place
from isthmus.connectors.rabbitmq_streams.system import SYSTEM
from isthmus.errors import IsthmusError
from isthmus.testing.bridge.pair import Ability
from isthmus.testing.proxy import Proxy
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
        self._hosts: dict[str, str] = {}

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

    def proxy(self, entity: str) -> tuple[Proxy, dict[str, str]]:
        """A proxy before the node."""
        made, changed = super().proxy(entity)
        self._hosts[entity] = changed["host"]
        return made, changed

    def left(self, entity: str) -> int:
        """What stands behind the checkpoint."""
        reached = {"host": f"127.0.0.1:{self._server.port}", "username": USER, "password": f"env:{PASSWORD_NAME}"}
        options = reached | {"checkpoints": str(self._checkpoints)}
        key = read_place(options | {"host": self._hosts[entity]}).key(entity, GROUP)
        try:
            waits = SYSTEM.waiting(options, entity, GROUP).messages
        except IsthmusError:  # the node was restarted
            return 1
        kept = FolderStore(str(self._checkpoints)).load(key).get(0)
        return waits - (kept.sequence + 1 if kept is not None else 0)
