"""Streams of RabbitMQ as a connector of the bridge.

What it is: the pool of sources, and the capabilities of the kind. What it is not: a target: a target of kind `rabbitmq` writes to a stream.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, TargetPool
from isthmus.bridge.refusal import Refusal
from isthmus.connectors.rabbitmq.protocol.error import refusal_of
from isthmus.connectors.rabbitmq_streams.option import read_source
from isthmus.connectors.rabbitmq_streams.pool import StreamPool
from isthmus.connectors.rabbitmq_streams.source import StreamSource
from isthmus.errors import InvalidArgumentError

__all__ = ["CONNECTOR", "StreamConnector", "dispositions_of"]


class StreamSources(StreamPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet; the order is kept with and without `ordered`.

        Raises:
            ConfigError: an option is invalid.
        """
        return StreamSource(self, key, read_source(options), only_present=only_present)


class StreamConnector:
    """The kind `rabbitmq-streams`."""

    kind = "rabbitmq-streams"
    capabilities = Capabilities(writes=False, is_log=True, dispositions=frozenset(), reports_backlog=False)

    def sources(self) -> SourcePool:
        """A new pool."""
        return StreamSources()

    def targets(self) -> TargetPool:
        """Refuses: there are no targets of this kind.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError("kind 'rabbitmq-streams' is read only; write with kind 'rabbitmq'")

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return refusal_of(error)


def dispositions_of(options: Mapping[str, str]) -> frozenset[str]:
    """The dispositions of this source besides `complete`; the kind alone has none.

    Raises:
        ConfigError: an option is invalid.
    """
    return frozenset({"dead-letter", "abandon"} if read_source(options).dead_letter_topic else {"abandon"})


CONNECTOR = StreamConnector()
