"""The options of a source and a target at an IoT hub.

What it is: the options of a read and a write, each declared once, and their parsing. What it is not: a client.

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from isthmus.connectors.eventhubs.option import READING, WRITING, HubOptions, SourceOptions, TargetOptions, read_as
from isthmus.connectors.spec import Kind, Setting, Spec
from isthmus.topology.kind.iothub import IOT_HUB

__all__ = ["ADMINISTRATION", "SOURCE", "TARGET", "IotTargetOptions", "read_hub", "read_source", "read_target"]

PLACE = tuple(replace(each, name=IOT_HUB.option(each.name)) for each in IOT_HUB.settings)
_EVENTS = Setting(
    name="topic",
    kind=Kind.TEXT,
    default="events",
    example="events",
    description="What to read: `events`, the built-in endpoint for device-to-cloud messages.",
)
_DEVICES = Setting(
    name="topic",
    kind=Kind.TEXT,
    default="devicebound",
    example="devicebound",
    description="What to write: `devicebound`, cloud-to-device messages.",
)
_SENDING = (
    Setting(
        name="device",
        kind=Kind.TEXT,
        default="",
        example="iothub-connection-device-id",
        description="The application property with the device of a message whose property To has none. Empty: SessionId, then "
        "PartitionKey.",
    ),
    Setting(
        name="acknowledged_by",
        kind=Kind.CHOICE,
        choices=("hub", "device"),
        default="hub",
        description="When a message counts as delivered. `hub`: the IoT hub has queued it for the device. `device`: the hub's feedback reports "
        "that the device has completed it; a message that expires there, or that the device rejects, is refused individually, with the text of the "
        "feedback. Only one route may read the feedback of an IoT hub.",
    ),
)

# The built-in endpoint accepts no messages.
_READING = tuple(each for each in READING if each.name != "dead_letter_topic")

SOURCE = Spec(
    "iothub source", "Options of a source at an IoT hub: device-to-cloud messages.", (*PLACE, _EVENTS, *_READING)
)
TARGET = Spec(
    "iothub target",
    "Options of a target at an IoT hub: cloud-to-device messages.",
    (*PLACE, _DEVICES, *_SENDING, *WRITING),
)
ADMINISTRATION = Spec("iothub", "Options of an IoT hub's administration.", PLACE)


@dataclass(frozen=True, slots=True, kw_only=True)
class IotTargetOptions(TargetOptions):
    """Options of a target."""

    device: str = ""
    acknowledged_by: str = "hub"


def read_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a source.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(SOURCE, SourceOptions, options, IOT_HUB)


def read_target(options: Mapping[str, str]) -> IotTargetOptions:
    """The options of a target.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(TARGET, IotTargetOptions, options, IOT_HUB)


def read_hub(options: Mapping[str, str]) -> HubOptions:
    """The options of an administration.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    return read_as(ADMINISTRATION, HubOptions, options, IOT_HUB)
