"""Streams of RabbitMQ for the driver (`isthmus.connectors.system`).

What it is: administration, browsing, and the messages that wait for a group. What it is not: the reading of a route (`source`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.checkpoint.folder_store import FolderStore
from isthmus.connectors.rabbitmq.port.probe import Probe
from isthmus.connectors.rabbitmq.port.stream import StreamPeek
from isthmus.connectors.rabbitmq_streams.look import broker_options, count_from, last_of
from isthmus.connectors.rabbitmq_streams.option import read_namespace
from isthmus.connectors.rabbitmq_streams.record import StreamReader
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.connectors.system import Peek, Waits, removed_before
from isthmus.errors import ConnectionLostError

if TYPE_CHECKING:
    from isthmus.connectors.administration import Administration
    from isthmus.topology.model import NamespaceRef

__all__ = ["SYSTEM", "StreamSystem"]


class StreamSystem:
    """The kind `rabbitmq-streams`."""

    def administration(self, namespace: NamespaceRef) -> Administration:
        """The streams and groups of a virtual host."""
        from isthmus.connectors.rabbitmq_streams.administration import StreamAdministration

        return StreamAdministration.open(namespace)

    def identity(self, options: Mapping[str, str]) -> str:
        """Empty: the name of a cluster is not an identity, because two may have the same."""
        with Probe(read_namespace(options)):
            return ""

    def addresses(self, options: Mapping[str, str]) -> Sequence[str]:
        """The nodes in the namespace's settings."""
        hosts = options.get("host", "")
        return [each.strip() for each in (hosts, *hosts.split(",")) if each.strip()]

    def check(self, options: Mapping[str, str], entity: str, *, reads: bool) -> None:
        """Queries the stream."""
        with Probe(read_namespace(options)) as probe:
            probe.queue(entity)

    def waiting(self, options: Mapping[str, str], entity: str, group: str) -> Waits:
        """The offsets after a group's checkpoint that the retention has not removed.

        Raises:
            ConnectionLostError: no message arrived of a stream that was read before, which is no evidence.
            IsthmusError: no answer, or a refusal.
        """
        kept = _kept(options, entity, group)
        start = kept.sequence + 1 if kept is not None else 0
        last, _ = last_of(options, entity)
        if last < 0 < start:
            raise ConnectionLostError(
                f"stream '{entity}' returns nothing, although it was read up to offset {start - 1}"
            )
        return Waits(count_from(options, entity, start, last), are_ready=True)

    def peek(self, options: Mapping[str, str], entity: str, *, names_partition: bool = False) -> Peek:
        """Browses a stream, with the MessageIds that a route gives; it has no partition that could be named."""
        reader = StreamReader(entity, gives_ids=True)
        return StreamPeek(
            broker_options(options), entity, lambda record, offset: reader.read(0, (offset, record)).message
        )

    def uncommitted(self, options: Mapping[str, str], entity: str, group: str, peek: Peek) -> Peek:
        """The messages after a group's checkpoint."""
        first = next((peeked_message(message).sequence for message in peek(0, 1)), 0)
        kept = _kept(options, entity, group)
        start = kept.sequence + 1 if kept is not None else 0
        return _PeekFrom(peek, start, removed_before({0: first}, {0: start}))

    def is_placed(self, options: Mapping[str, str], entity: str, group: str) -> bool:
        """Whether the group has a checkpoint."""
        return _kept(options, entity, group) is not None


class _PeekFrom:
    """Browses from an offset on."""

    def __init__(self, peek: Peek, start: int, removed: Mapping[int, tuple[int, int]]) -> None:
        self._peek, self._start, self.removed = peek, start, removed

    def __call__(self, from_position: int, count: int) -> Sequence[bytes]:
        return self._peek(max(from_position, self._start), count)


def _kept(options: Mapping[str, str], entity: str, group: str) -> Checkpoint | None:
    """The last settled offset."""
    namespace = read_namespace(options)
    with Probe(namespace) as probe:
        key = namespace.key(probe.cluster_name, entity, group)
    return FolderStore(namespace.checkpoints).load(key).get(0)


SYSTEM = StreamSystem()
