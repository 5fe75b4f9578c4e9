"""The kind `iothub`: an IoT hub of Azure.

What it is: the settings of a hub and the faults of their combination. What it is not: the connector's other options
(`isthmus.connectors.iothub.option`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind.base import PASSWORD_EXAMPLE, REFERENCE, NamespaceKind, SettingFault, Shape
from isthmus.topology.kind.eventhubs import CHECKPOINTS, CONNECTION, checkpoint_faults

__all__ = ["IOT_HUB"]

_SHARED = tuple(each for each in CONNECTION if each.name in ("ca_file", "transport_type"))


def _faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    yield from checkpoint_faults(values, write)


IOT_HUB = NamespaceKind(
    name="iothub",
    title="an IoT hub",
    shape=Shape.LOG,
    dead_letters=False,
    fans_out=False,
    address="connection",
    faults=_faults,
    granted_by={
        "listen": "a shared access policy with ServiceConnect, e.g. `service`",
        "send": "a shared access policy with ServiceConnect, e.g. `service`",
        "manage": "a shared access policy with ServiceConnect, e.g. `service`; consumer groups are created in the portal",
    },
    settings=(
        Setting(
            name="connection",
            kind=Kind.REFERENCE,
            secret=True,
            required=True,
            example=PASSWORD_EXAMPLE,
            description="The connection string of the IoT hub, `HostName=…;SharedAccessKeyName=…;SharedAccessKey=…`, of a policy with the "
            f"right ServiceConnect. {REFERENCE}",
        ),
        *_SHARED,
        *CHECKPOINTS,
    ),
)
