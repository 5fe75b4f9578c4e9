"""The kind `rabbitmq-streams`: the streams of a virtual host of a RabbitMQ broker, read as logs.

What it is: the settings of a broker and of the checkpoints. What it is not: the kind of its queues and exchanges
(`rabbitmq`), or the connector's other options (`isthmus.connectors.rabbitmq_streams.option`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from isthmus.topology.file.setting import Kind, Setting
from isthmus.topology.kind.base import NamespaceKind, SettingFault, Shape
from isthmus.topology.kind.rabbitmq import RABBITMQ, plain_places, rabbitmq_faults

__all__ = ["BROKER", "RABBITMQ_STREAMS"]

_OF_QUEUES = ("queue_type", "exchange_type", "dead_letter_exchange")
BROKER = tuple(each for each in RABBITMQ.settings if each.name not in _OF_QUEUES)
"""The settings that address the broker."""
_CHECKPOINTS = (
    Setting(
        name="checkpoints",
        kind=Kind.PATH,
        default="",
        example="checkpoints",
        description="A folder that stores the position of each route. All processes that may carry a route have to access the same "
        "folder.",
    ),
    Setting(
        name="checkpoint_seconds",
        kind=Kind.NUMBER,
        default=0.5,
        minimum=0.05,
        maximum=300,
        description="The shortest interval between two checkpoints.",
    ),
)


def _faults(values: Mapping[str, Any], write: Callable[[str, str], str]) -> Iterator[SettingFault]:
    yield from rabbitmq_faults(values, write)
    if not values["checkpoints"]:
        yield "checkpoints", "there is no folder for checkpoints", f"write {write('checkpoints', 'FOLDER')}"


RABBITMQ_STREAMS = NamespaceKind(
    name="rabbitmq-streams",
    title="the streams of a virtual host of a RabbitMQ broker",
    shape=Shape.LOG,
    writes=False,
    dead_letters=False,
    address="host virtual_host",
    faults=_faults,
    plain_places=plain_places,
    granted_by={
        "listen": "the permission `read` on the stream; with a dead_letter_stream `write` on the default exchange",
        "manage": "the permission `read` on the stream; with management the tag `management`, and `configure` on a dead_letter_stream",
    },
    settings=(*BROKER, *_CHECKPOINTS),
)
