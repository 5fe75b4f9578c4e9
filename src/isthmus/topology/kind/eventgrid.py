"""The kind `eventgrid`: a namespace, or a custom topic, of Azure Event Grid.

What it is: the settings of the service and of a listener that events are pushed to. What it is not: the connector's other options
(`isthmus.connectors.eventgrid.option`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.identity import IDENTITY, IDENTITY_SETTINGS
from isthmus.topology.kind.base import REFERENCE, NamespaceKind, SettingFault, Shape, address_faults
from isthmus.topology.kind.listener import LISTENER

__all__ = ["EVENT_GRID"]

_ENDPOINT = "https://flights.westeurope-1.eventgrid.azure.net"


def _faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    return address_faults(values, "endpoint", _ENDPOINT, "key", write)


EVENT_GRID = NamespaceKind(
    name="eventgrid",
    title="Azure Event Grid",
    shape=Shape.QUEUE,
    dead_letters=False,
    dead_letters_by="rejects",
    address="endpoint",
    faults=_faults,
    fans_out=False,
    granted_by={
        "listen": "role EventGrid Data Receiver on the subscription's topic, or a key of the namespace",
        "send": "role EventGrid Data Sender on the topic, or a key",
        "manage": "nothing is created there",
    },
    settings=(
        Setting(
            name="endpoint",
            kind=Kind.TEXT,
            default="",
            example=_ENDPOINT,
            description="The endpoint of the namespace, or of a custom topic.",
        ),
        Setting(
            name="tier",
            kind=Kind.CHOICE,
            choices=("namespace", "topic"),
            default="namespace",
            description="The kind of endpoint: that of a `namespace`, whose topics are entities, or of one custom `topic`.",
        ),
        Setting(
            name="key",
            kind=Kind.REFERENCE,
            secret=True,
            default="",
            example="env:EVENT_GRID_KEY",
            description=f"An access key; without it, the `identity` is used. {REFERENCE}",
        ),
        Setting(
            name="schema",
            kind=Kind.CHOICE,
            choices=("cloudevents", "eventgrid"),
            default="cloudevents",
            description="The format of an event. Namespaces accept CloudEvents only.",
        ),
        Setting(
            name="delivery",
            kind=Kind.CHOICE,
            choices=("pull", "push"),
            default="pull",
            description="How a source gets its events: it pulls them from a subscription of a namespace, or they are pushed to its listener.",
        ),
        Setting(
            name="lock_seconds",
            kind=Kind.INTEGER,
            default=60,
            minimum=2,
            maximum=300,
            description="With pull: how long the subscription locks an event that was received (its receiveLockDuration).",
        ),
        Setting(
            name="rejects",
            kind=Kind.BOOLEAN,
            default=False,
            description="With pull: whether the subscription has a dead-letter destination, so that an event can be set aside by rejecting it. "
            "Without one Event Grid would drop it; then the route stops instead.",
        ),
        Setting(
            name="in_flight",
            kind=Kind.INTEGER,
            default=5000,
            minimum=1,
            maximum=100_000,
            description="With pull: events that are locked for this reader at once.",
        ),
        Setting(
            name="parallel",
            kind=Kind.INTEGER,
            default=1,
            minimum=1,
            maximum=64,
            description="Concurrent requests that publish. With more than one, events do not keep their order.",
        ),
        Setting(
            name="timeout_seconds",
            kind=Kind.NUMBER,
            default=30.0,
            minimum=1,
            maximum=300,
            description="Time limit of one request.",
        ),
        Setting(
            name="ca_file",
            kind=Kind.PATH,
            default="",
            example="grid/ca.pem",
            description="Certificates to trust instead of the system's.",
        ),
        IDENTITY,
        *IDENTITY_SETTINGS,
        *LISTENER,
    ),
)
