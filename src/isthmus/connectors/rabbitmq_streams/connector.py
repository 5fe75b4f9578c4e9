"""Streams of RabbitMQ as a connector of the bridge.

What it is: the pool of sources, and what the kind can do. What it is not: a target: what writes to a stream is a target of kind `rabbitmq`.
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
        """A source that is not open yet; the order is kept whether it is `ordered` or not.

        Raises:
            ConfigError: an option is of no use.
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
        """There is none.

        Raises:
            InvalidArgumentError: always.
        """
        raise InvalidArgumentError("kind 'rabbitmq-streams' is read only; write with kind 'rabbitmq'")

    def refusal_of(self, error: Exception) -> Refusal:
        """What an error means for a message."""
        return refusal_of(error)


def dispositions_of(options: Mapping[str, str]) -> frozenset[str]:
    """What a message of this source may become beside `complete`; the kind alone can do nothing.

    Raises:
        ConfigError: an option is of no use.
    """
    return frozenset({"dead-letter", "abandon"} if read_source(options).dead_letter_topic else {"abandon"})


CONNECTOR = StreamConnector()
