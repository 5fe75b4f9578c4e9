"""The namespace that a command names, in one of the three forms of a command line.

What it is: an alias of a federation file, a reference to a connection string, or the data folder of a namespace that runs on
this machine, resolved to connections and the administration client. What it is not: a store of secrets.

Invariants:
    I1. Neither an error nor a repr contains a key or a token.
    I2. Two forms together are refused: it is unknown which one is meant.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from isthmus.broker.running import read_running
from isthmus.broker.security.keyring import KEY_FILE, Keyring
from isthmus.clock import SystemClock
from isthmus.connectors.identity import shared_credential
from isthmus.connectors.secret import resolve
from isthmus.connectors.servicebus.administration.client import (
    CA_FILE_VARIABLE,
    OpenClient,
    ca_file,
    client_of_host,
    client_of_string,
)
from isthmus.connectors.servicebus.connect import endpoint_of_string
from isthmus.connectors.servicebus.connection_string import (
    AMQPS_PORT,
    WEBSOCKET_PORT,
    ConnectionString,
    ConnectionStringError,
)
from isthmus.errors import InvalidArgumentError
from isthmus.operations.server.target import HTTPS_PORT, Target, http_root
from isthmus.topology import NamespaceRef
from isthmus.topology.file.document import suggest
from isthmus.topology.file.name import DEFAULT_FILE
from isthmus.topology.file.source import load
from isthmus.transport import Endpoint, IdentityCredential

__all__ = ["CONNECTION_VARIABLE", "Address", "find_address"]

CONNECTION_VARIABLE = "ISTHMUS_CONNECTION"
"""The variable with the connection string where no option names a namespace."""


@dataclass(frozen=True, slots=True)
class Address:
    """One namespace: by connection string, or by host and identity.

    Attributes:
        connection: the connection string, or None with `host`.
        host: `name[:port]`; empty with `connection`.
        identity: the Microsoft Entra identity for `host`.
        ca_file: PEM file of the authority to trust; empty for the system's own.
        websocket: whether AMQP goes over WebSocket.
    """

    connection: ConnectionString | None = None
    host: str = ""
    identity: str = ""
    ca_file: str = ""
    websocket: bool = False

    def target(self) -> Target:
        """Its endpoints for AMQP and HTTP.

        Raises:
            PlainConnectionError: it would be connected to another machine without TLS.
        """
        if self.connection is not None:
            endpoint = endpoint_of_string(self.connection, self.ca_file, websocket=self.websocket)
            return Target(endpoint, http_root(self.connection, endpoint))
        host, _, port = self.host.partition(":")
        endpoint = Endpoint(
            host,
            int(port) if port else WEBSOCKET_PORT if self.websocket else AMQPS_PORT,
            authority=self.host,
            credential=IdentityCredential(shared_credential(self.identity)),
            ca_file=self.ca_file,
            websocket=self.websocket,
        )
        return Target(endpoint, f"https://{host}:{port or HTTPS_PORT}")

    def administration(self) -> OpenClient:
        """A client of its administration; it connects at the first call."""
        if self.connection is not None:
            return client_of_string(self.connection, self.ca_file)
        return client_of_host(self.host, self.identity, self.ca_file)


def find_address(
    *,
    connection: str = "",
    alias: str = "",
    federation: str = DEFAULT_FILE,
    data: Path | None = None,
    authority: str = "",
) -> Address:
    """The namespace that a command line names.

    Args:
        connection: reference to a connection string (`env:NAME`, `file:/path#key`, `keyvault:vault/name`).
        alias: of a namespace in a federation file.
        federation: that file.
        data: data folder of a namespace that runs on this machine.
        authority: PEM file of the authority to trust; empty for ISTHMUS_CA_FILE, the file's own, or the namespace's.

    Raises:
        InvalidArgumentError: no form is given, or more than one; there is no such alias; or it is not a Service Bus namespace.
        ConfigError: the federation file cannot be read, or has faults.
        SecretError: the reference cannot be resolved.
        ConnectionStringError: the secret is not a connection string.
    """
    given = [name for name, value in (("--namespace", alias), ("--connection", connection), ("--data", data)) if value]
    if len(given) > 1:
        raise InvalidArgumentError(f"{' and '.join(given)} each name a namespace; write only one of them")
    if alias:
        return _of_alias(alias, federation, authority)
    if data is not None:
        return _of_folder(data, authority)
    if not connection and not os.environ.get(CONNECTION_VARIABLE):
        raise InvalidArgumentError(
            f"no namespace is named; write --connection env:NAME, --namespace ALIAS (of {DEFAULT_FILE}) or --data FOLDER, "
            f"or export {CONNECTION_VARIABLE}=…"
        )
    parsed = ConnectionString.parse(resolve(connection or f"env:{CONNECTION_VARIABLE}"))
    return Address(parsed, ca_file=authority or os.environ.get(CA_FILE_VARIABLE, ""))


def _of_alias(alias: str, file: str, authority: str) -> Address:
    namespaces = load(file).namespaces
    found: NamespaceRef | None = namespaces.get(alias)
    if found is None:
        hint = suggest(alias, sorted(namespaces))
        raise InvalidArgumentError(f"{file} has no namespace {alias!r}; {hint}")
    if not found.is_service_bus:
        raise InvalidArgumentError(
            f"namespace {alias} is of kind {found.kind}; this command is for Service Bus namespaces, use the tools of {found.kind}"
        )
    trusted = authority or ca_file(found)
    websocket = found.transport_type == "websockets"
    if found.connection is None:
        return Address(host=found.host, identity=found.identity, ca_file=trusted, websocket=websocket)
    return Address(ConnectionString.parse(resolve(found.connection)), ca_file=trusted, websocket=websocket)


def _of_folder(data: Path, authority: str) -> Address:
    running = read_running(data)
    if running is None:
        raise InvalidArgumentError(
            f"no namespace runs on '{data}'; start it with: isthmus namespace serve --data {data}"
        )
    rules = Keyring.open(data / KEY_FILE, SystemClock()).rules
    rule = next((rule for rule in rules if "Manage" in rule.rights), None)
    if rule is None:
        raise InvalidArgumentError(f"no key of '{data}' has Manage; name a connection string with --connection")
    host = running["host"]
    port = running["ports"]["amqp" if running["plain"] else "tls"]
    shown = f"[{host}]" if ":" in host else host
    text = f"Endpoint=sb://{shown}:{port};SharedAccessKeyName={rule.key_name};SharedAccessKey={rule.primary_key}"
    try:
        parsed = ConnectionString.parse(text + (";UseDevelopmentEmulator=true" if running["plain"] else ""))
    except ConnectionStringError:
        raise InvalidArgumentError(f"the record of the process in '{data}' is invalid; restart the namespace") from None
    return Address(parsed, ca_file=authority or ("" if running["plain"] else running.get("ca_file", "")))
