"""The driver's connections to the namespaces of a federation.

What it is: connections for the driver's own work besides the routes: claims, browsing, reconciliation. What it is not:
the routes' own connections, which their workers open.

Invariants:
    I1. A browse is repeated after the loss of its connection or links according to `isthmus.replication.browse_retry`.
    I2. A connection whose key was refused is not used again: the key may have been replaced.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self, cast

from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.connect import endpoint_of, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.system import BindingSystem, CountingSystem, LogSystem, Waits, system_of
from isthmus.errors import IsthmusError, UnauthorizedError
from isthmus.replication.browse_retry import BrowseRetry
from isthmus.replication.verification.audit.audit import Peek
from isthmus.topology.model import Endpoint, Federation, NamespaceRef
from isthmus.topology.route import routes
from isthmus.transport import Client, Management

__all__ = ["NamespaceClients", "name_places", "namespace_options"]

CA_FILE_VARIABLE = "ISTHMUS_CA_FILE"
CONNECT_TIMEOUT_SECONDS = 10.0


def namespace_options(namespace: NamespaceRef) -> dict[str, str]:
    """The data source's options that address a namespace; references, never secrets."""
    options = namespace.options()
    if not namespace.is_service_bus:
        return options
    ca_file = os.environ.get(CA_FILE_VARIABLE, "")
    return options if "ca_file" in options or not ca_file else options | {"ca_file": ca_file}


def name_places(text: str, federation: Federation, aliases: Iterable[str]) -> str:
    """A text about connections, with the alias of a namespace before its host and port: ``jfk (10.0.0.7:5671): refused``.

    Args:
        text: the text.
        federation: the federation of the namespaces.
        aliases: aliases of the namespaces that the text may concern.
    """
    for alias in aliases:
        for address in _addresses(federation.namespaces[alias]):
            if address in text:
                return text.replace(address, f"{alias} ({address})", 1)
    return text


def _addresses(namespace: NamespaceRef) -> Sequence[str]:
    """The addresses by which texts about connections name a namespace."""
    options = namespace.options()
    if not namespace.is_service_bus:
        return system_of(namespace.kind).addresses(options)
    if options.get("host"):
        return [options["host"]]
    try:
        parsed = ConnectionString.parse(resolve(options["connection"]))
    except IsthmusError:
        return ()
    return [f"{parsed.host}:{parsed.data_port}"]


class NamespaceClients:
    """Connections to a federation's namespaces.

    Args:
        federation: the federation.
        name: client name for the namespaces' logs.
        patience_seconds: how long a browse is repeated at a namespace that was reached before; 0: only once, over a new connection.
    """

    def __init__(self, federation: Federation, name: str = "isthmus", *, patience_seconds: float = 0.0) -> None:
        self._federation = federation
        self._name = name
        self._patience_seconds = patience_seconds
        self._reached: set[str] = set()
        self._clients: dict[str, Client] = {}
        self._managements: dict[Endpoint, Management] = {}
        self._peeks: dict[tuple[Endpoint, bool], Peek] = {}

    def waiting(self, endpoint: Endpoint, group: str) -> Waits | None:
        """The waiting messages of an entity of a system that is not Service Bus; of a log for a group. None if the system does not report them.

        Raises:
            IsthmusError: the system cannot be reached, or refuses.
        """
        namespace = self._federation.namespaces[endpoint.alias]
        return system_of(namespace.kind).waiting(namespace_options(namespace), endpoint.entity, group)

    def is_bound(self, endpoint: Endpoint, group: str) -> bool | None:
        """Whether what is published to a topic of a system that is not Service Bus reaches a route's queue there; None where that is not known.

        Raises:
            IsthmusError: the system cannot be reached, or refuses.
        """
        namespace = self._federation.namespaces[endpoint.alias]
        system = system_of(namespace.kind)
        if not isinstance(system, BindingSystem):
            return None
        return system.is_bound(namespace_options(namespace), endpoint.entity, group)

    def unsettled(self, endpoint: Endpoint, group: str) -> int:
        """The number of messages of a queue without browsing that are ready or with a consumer, by the last count of the system.

        Raises:
            IsthmusError: the system cannot be reached, or refuses.
        """
        namespace = self._federation.namespaces[endpoint.alias]
        system = cast(CountingSystem, system_of(namespace.kind))
        return system.unsettled(namespace_options(namespace), endpoint.entity, group)

    def check(self, endpoint: Endpoint, *, reads: bool) -> None:
        """Tests the access that a route needs to an entity of a system that is not Service Bus.

        Raises:
            IsthmusError: the system cannot be reached, or refuses.
        """
        namespace = self._federation.namespaces[endpoint.alias]
        system_of(namespace.kind).check(namespace_options(namespace), endpoint.entity, reads=reads)

    def open(self, endpoint: Endpoint) -> Client:
        """A new connection, authorized for the entity; the caller closes it.

        Raises:
            IsthmusError: the namespace cannot be reached, or refuses.
        """
        namespace = self._federation.namespaces[endpoint.alias]
        options = SourceOptions.read(namespace_options(namespace) | {"entity": endpoint.entity})
        return open_client(endpoint_of(options), endpoint.entity, self._name, CONNECT_TIMEOUT_SECONDS)

    def uncommitted(self, endpoint: Endpoint, group: str) -> Peek:
        """Opens a log for browsing from the position of a group.

        Raises:
            IsthmusError: the cluster cannot be reached, or refuses.
        """
        namespace = self._federation.namespaces[endpoint.alias]
        system, options = cast(LogSystem, system_of(namespace.kind)), namespace_options(namespace)
        return system.uncommitted(options, endpoint.entity, group, self._peek_other(endpoint))

    def is_placed(self, endpoint: Endpoint, group: str) -> bool:
        """Whether the position of a group in a log is known.

        Raises:
            IsthmusError: the cluster cannot be reached, or refuses.
        """
        namespace = self._federation.namespaces[endpoint.alias]
        system, options = cast(LogSystem, system_of(namespace.kind)), namespace_options(namespace)
        return system.is_placed(options, endpoint.entity, group)

    def peek(self, endpoint: Endpoint, *, names_partition: bool = False) -> Peek:
        """Opens an entity for browsing, over one connection for each namespace.

        Args:
            endpoint: the entity.
            names_partition: of a log: whether records without key get one with the name of their partition, as in their route.

        Raises:
            IsthmusError: the namespace cannot be reached, or refuses.
        """
        if endpoint.is_table:
            return self._peek_table(endpoint)
        if not self._federation.namespaces[endpoint.alias].is_service_bus:
            return self._peek_other(endpoint, names_partition=names_partition)

        def browse(from_sequence: int, count: int) -> Sequence[bytes]:
            return self._repeated(endpoint, lambda management: management.peek(from_sequence, count))

        self._repeated(endpoint, lambda _: ())
        return browse

    def identity(self, alias: str) -> str:
        """The identity of a Service Bus namespace that `peek` has reached; empty if it has not."""
        client = self._clients.get(alias)
        return client.namespace_id if client is not None else ""

    def identities(self, aliases: Iterable[str]) -> dict[str, str]:
        """Alias by identity of the namespace; also by alias, for copies of a sink that did not know an identity.

        Raises:
            IsthmusError: a namespace cannot be reached.
        """
        found: dict[str, str] = {}
        for alias in aliases:
            namespace = self._federation.namespaces[alias]
            if not namespace.is_service_bus:
                identity = system_of(namespace.kind).identity(namespace_options(namespace))
                found |= {alias: alias, **({identity: alias} if identity else {})}
                continue
            options = SourceOptions.read(namespace_options(namespace) | {"entity": "$cbs"})
            client = Client(endpoint_of(options), name=self._name).open(CONNECT_TIMEOUT_SECONDS)
            client.close(1.0)
            found |= {alias: alias, client.namespace_id: alias}
        return found

    def _peek_other(self, endpoint: Endpoint, *, names_partition: bool = False) -> Peek:
        """Browses a system other than Service Bus."""
        found = self._peeks.get((endpoint, names_partition))
        if found is None:
            namespace = self._federation.namespaces[endpoint.alias]
            found = system_of(namespace.kind).peek(
                namespace_options(namespace), endpoint.entity, names_partition=names_partition
            )
            self._peeks[endpoint, names_partition] = found
        return found

    def _peek_table(self, endpoint: Endpoint) -> Peek:
        from isthmus.replication.archive.peek import ArchivePeek

        archives = (
            (route.options.table.spool, route.entered)
            for route in routes(self._federation)
            if route.target == endpoint and route.options.table is not None
        )
        spool, entered = next(archives)
        return ArchivePeek(Path(endpoint.entity), Path(spool), entered)

    def _repeated(self, endpoint: Endpoint, browse: Callable[[Management], Sequence[bytes]]) -> Sequence[bytes]:
        """Browse, and repeat according to I1."""
        retry = BrowseRetry(self._patience_seconds)
        while True:
            was_open = endpoint.alias in self._clients
            try:
                return browse(self._management(endpoint))
            except IsthmusError as error:
                delay = retry.delay_seconds(
                    error, was_open=was_open, was_reached=endpoint.alias in self._reached, now=time.monotonic()
                )
                if delay is None:
                    if isinstance(error, UnauthorizedError):
                        self._forget(endpoint.alias)
                    raise
                self._forget(endpoint.alias)
                time.sleep(delay)

    def _management(self, endpoint: Endpoint) -> Management:
        client = self._clients.get(endpoint.alias)
        if client is not None and client.error is not None:
            self._forget(endpoint.alias)
            client = None
        if client is None:
            client = self._clients[endpoint.alias] = self.open(endpoint)
            self._reached.add(endpoint.alias)
        management = self._managements.get(endpoint)
        if management is None or management.error is not None:
            client.authorize(endpoint.entity)
            management = self._managements[endpoint] = Management(client, endpoint.entity)
        return management

    def _forget(self, alias: str) -> None:
        self._managements = {each: node for each, node in self._managements.items() if each.alias != alias}
        client = self._clients.pop(alias, None)
        if client is not None:
            client.abandon()

    def close(self) -> None:
        """Closes all connections."""
        for client in self._clients.values():
            client.close(1.0)
        for peek in self._peeks.values():
            if (close := getattr(peek, "close", None)) is not None:
                close()
        self._clients.clear()
        self._managements.clear()
        self._peeks.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
