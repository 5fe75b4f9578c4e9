"""The kind `eventhubs`: a namespace of Azure Event Hubs, or one of isthmus with event hubs.

What it is: the settings of a namespace and the faults of their combination. What it is not: the connector's other options
(`isthmus.connectors.eventhubs.option`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from isthmus.errors import InvalidArgumentError
from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.identity import IdentityReference
from isthmus.topology.kind.base import ADDRESS, PASSWORD_EXAMPLE, REFERENCE, NamespaceKind, SettingFault, Shape

__all__ = ["CHECKPOINTS", "CONNECTION", "EVENT_HUBS", "checkpoint_faults", "connection_faults"]

_CONTAINER = "https://ACCOUNT.blob.core.windows.net/CONTAINER"

CONNECTION = (
    Setting(
        name="connection",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example=PASSWORD_EXAMPLE,
        description=f"The connection string. {REFERENCE}",
    ),
    Setting(
        name="host",
        kind=Kind.HOST,
        default="",
        example="contoso.servicebus.windows.net",
        description="The namespace, instead of a connection string, with `identity`.",
    ),
    Setting(
        name="identity",
        kind=Kind.TEXT,
        default="default",
        example="managed",
        description="With host: the Microsoft Entra identity, as in the option `identity` of the data source: `default`, "
        "`managed` and so on, "
        "with its settings after semicolons.",
    ),
    Setting(
        name="ca_file",
        kind=Kind.PATH,
        default="",
        example="namespace/ca.pem",
        description="Certificates to trust in addition to the system's.",
    ),
    Setting(
        name="transport_type",
        kind=Kind.CHOICE,
        choices=("amqp", "websockets"),
        default="amqp",
        description="Whether AMQP uses TCP or in a WebSocket (port 443).",
    ),
)
CHECKPOINTS = (
    Setting(
        name="checkpoints",
        kind=Kind.PATH,
        default="",
        example="checkpoints",
        description="For sources: a folder that stores the position of each consumer group. All processes that may carry a "
        "route have to access "
        "the same folder.",
    ),
    Setting(
        name="checkpoint_container",
        kind=Kind.TEXT,
        default="",
        example="https://contoso.blob.core.windows.net/checkpoints",
        description="For sources, instead of a folder: the address of a container of Azure Blob Storage, with checkpoints in "
        "the format of the "
        "vendor's SDKs.",
    ),
    Setting(
        name="checkpoint_connection",
        kind=Kind.REFERENCE,
        secret=True,
        default="",
        example="env:STORAGE",
        description=f"With a container: the connection string of the storage account; without it the Microsoft Entra identity of the process. "
        f"{REFERENCE}",
    ),
    Setting(
        name="checkpoint_seconds",
        kind=Kind.NUMBER,
        default=0.5,
        minimum=0.05,
        maximum=300,
        description="The shortest interval between two checkpoints. Azure bills each write to a container.",
    ),
    Setting(
        name="owner_level",
        kind=Kind.INTEGER,
        default=0,
        minimum=-1,
        maximum=1 << 62,
        description="The owner level (epoch) of readers: each disconnects readers of the same group with the same level, a "
        "lower one, or none. "
        "-1: none, so that up to five readers read everything concurrently.",
    ),
)


def connection_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    """The faults of the settings that address a namespace."""
    if values["connection"] and values["host"]:
        yield "host", "connection and host are both given", "write one of them"
    elif not values["connection"] and not values["host"]:
        hint = f"write {write('connection', PASSWORD_EXAMPLE)}, or host and identity"
        yield "connection", "neither connection nor host is given", hint
    try:
        IdentityReference.parse(str(values["identity"]))
    except InvalidArgumentError as error:
        yield "identity", str(error).removeprefix("option "), f"write {write('identity', 'default')}"


def checkpoint_faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    """The faults of the settings for checkpoints."""
    container = str(values["checkpoint_container"] or "")
    if container and values["checkpoints"]:
        yield "checkpoint_container", "checkpoints and checkpoint_container are both given", "write one of them"
    if container and (ADDRESS.fullmatch(container) is None or not urlsplit(container).path.strip("/")):
        yield (
            "checkpoint_container",
            "checkpoint_container is no address of a container, or contains a secret",
            f"write {write('checkpoint_container', _CONTAINER)}; write a key or a SAS into checkpoint_connection",
        )
    if values["checkpoint_connection"] and not container:
        yield (
            "checkpoint_connection",
            "checkpoint_connection needs a container",
            f"write {write('checkpoint_container', _CONTAINER)}",
        )


def _faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    yield from connection_faults(values, write)
    yield from checkpoint_faults(values, write)


EVENT_HUBS = NamespaceKind(
    name="eventhubs",
    title="a namespace of Event Hubs",
    shape=Shape.LOG,
    dead_letters=False,
    address="host",
    faults=_faults,
    granted_by={
        "listen": "Listen of a shared access policy, or the role Azure Event Hubs Data Receiver; with a container of checkpoints the role "
        "Storage Blob Data Contributor there",
        "send": "Send of a shared access policy, or the role Azure Event Hubs Data Sender",
        "manage": "Manage of a shared access policy of the namespace, or the role Azure Event Hubs Data Owner; Listen is enough where event "
        "hubs and consumer groups exist",
    },
    settings=(*CONNECTION, *CHECKPOINTS),
)
