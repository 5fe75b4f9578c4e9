"""The kind `http`: addresses that messages are posted to, and a listener that takes them.

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
        "listen": "who sends has the listener's secret",
        "send": "the receiver's token or key",
        "manage": "nothing is made there",
    },
    settings=(
        Setting(
            name="url",
            kind=Kind.TEXT,
            default="",
            example=_URL,
            description="Where messages are posted to: this address and the entity's name as path.",
        ),
        Setting(
            name="mode",
            kind=Kind.CHOICE,
            choices=("structured", "binary", "body"),
            default="structured",
            description="What a message becomes: a CloudEvent in `structured` or `binary` mode, or its `body` with its properties as headers.",
        ),
        Setting(
            name="parallel",
            kind=Kind.INTEGER,
            default=1,
            minimum=1,
            maximum=64,
            description="Requests at a time. With more than one, messages do not keep their order.",
        ),
        Setting(
            name="timeout_seconds",
            kind=Kind.NUMBER,
            default=30.0,
            minimum=0.1,
            maximum=600,
            description="How long one request may take; then nobody knows what became of it, and it is made again with the same id.",
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
