"""The kind `http`: addresses to which messages are posted, and a listener that receives them.

What it is: the settings of an address and of a listener. What it is not: the connector's other options (`isthmus.connectors.http.option`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind.base import NamespaceKind, SettingFault, Shape, address_faults
from isthmus.topology.kind.listener import LISTENER

__all__ = ["HTTP"]

_URL = "https://api.example.com/hooks"


def _faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    return address_faults(values, "url", _URL, "secret", write)


HTTP = NamespaceKind(
    name="http",
    title="HTTP",
    shape=Shape.QUEUE,
    address="url",
    faults=_faults,
    fans_out=False,
    granted_by={
        "listen": "the sender has the listener's secret",
        "send": "the receiver's token or key",
        "manage": "nothing is created there",
    },
    settings=(
        Setting(
            name="url",
            kind=Kind.TEXT,
            default="",
            example=_URL,
            description="The address to which messages are posted; the entity's name is added as path.",
        ),
        Setting(
            name="mode",
            kind=Kind.CHOICE,
            choices=("structured", "binary", "body"),
            default="structured",
            description="The format of a request: a CloudEvent in `structured` or `binary` mode, or its `body` with its "
            "properties as headers.",
        ),
        Setting(
            name="parallel",
            kind=Kind.INTEGER,
            default=1,
            minimum=1,
            maximum=64,
            description="Concurrent requests. With more than one, messages do not keep their order.",
        ),
        Setting(
            name="timeout_seconds",
            kind=Kind.NUMBER,
            default=30.0,
            minimum=0.1,
            maximum=600,
            description="Time limit of one request; after it the outcome is unknown, and the request is repeated with the same id.",
        ),
        Setting(
            name="ca_file",
            kind=Kind.PATH,
            default="",
            example="hook/ca.pem",
            description="Certificates to trust instead of the system's.",
        ),
        Setting(
            name="client_certificate_file",
            kind=Kind.PATH,
            default="",
            example="hook/client.pem",
            description="With mutual TLS: this client's certificate, PEM.",
        ),
        Setting(
            name="client_key_file",
            kind=Kind.PATH,
            default="",
            example="hook/client-key.pem",
            description="With mutual TLS: its private key, PEM.",
        ),
        *LISTENER,
    ),
)
