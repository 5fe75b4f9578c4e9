"""Queue Storage as a connector of the bridge.

What it is: the pools of sources and targets, and the capabilities of the kind. The order of a queue is kept as far as the service keeps it: it
guarantees none, and a redelivered message follows others.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.bridge.port import Capabilities, Source, SourcePool, Target, TargetPool
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.end_pool import EndPool
from isthmus.connectors.pull.source import PullSource
from isthmus.connectors.queuestorage.option import read_source, read_target
from isthmus.connectors.request.target import RequestPool, RequestTarget
from isthmus.extra import require

__all__ = ["CONNECTOR", "QueueStorageConnector", "QueueStorageSources", "QueueStorageTargets"]


class QueueStorageSources(EndPool):
    """The sources of one process."""

    def source(
        self, key: int, options: Mapping[str, str], *, ordered: bool = True, only_present: bool = False
    ) -> Source:
        """A source that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        from isthmus.connectors.queuestorage.source import QueuePuller

        read = read_source(options)
        return PullSource(
            self,
            key,
            QueuePuller(read),
            parallel=read.settling,
            most=read.in_flight,
            pause_seconds=read.poll_seconds,
            only_present=only_present,
        )


class QueueStorageTargets(RequestPool):
    """The targets of one process."""

    def target(self, key: int, options: Mapping[str, str], *, origin_identity: str = "") -> Target:
        """A target that is not open yet.

        Raises:
            ConfigError: an option is invalid.
        """
        from isthmus.connectors.queuestorage.target import QueueRequester

        read = read_target(options)
        return RequestTarget(
            self,
            key,
            lambda: QueueRequester(read),
            copying=read.copying,
            origin_identity=origin_identity,
            parallel=read.parallel,
            stall_seconds=read.timeout_seconds * 2,
        )


class QueueStorageConnector:
    """The kind `queuestorage`."""

    kind = "queuestorage"
    capabilities = Capabilities(dispositions=frozenset({"dead-letter", "abandon"}), keeps_positions=False)

    def sources(self) -> SourcePool:
        """A new pool.

        Raises:
            MissingExtraError: azure-storage-queue is not installed.
        """
        require("queuestorage", "a Queue Storage source")
        return QueueStorageSources()

    def targets(self) -> TargetPool:
        """A new pool.

        Raises:
            MissingExtraError: azure-storage-queue is not installed.
        """
        require("queuestorage", "a Queue Storage target")
        return QueueStorageTargets()

    def refusal_of(self, error: Exception) -> Refusal:
        """The refusal that an error means for a message."""
        return Refusal(RefusalKind.UNCLEAR, "", f"{type(error).__name__}: {error}")


CONNECTOR = QueueStorageConnector()
