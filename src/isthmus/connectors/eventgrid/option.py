"""The options of an Event Grid source and target.

What it is: the options of a read and a write, each declared once, and their parsing. What it is not: a client.

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. No option contains a secret: references are resolved by the process that connects, at each connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isthmus.connectors.copier import COPY_SETTINGS, CopyOptions, copy_options
from isthmus.connectors.listen.option import ListenOptions, listen_options
from isthmus.connectors.spec import Kind, Setting, Spec, parse_options
from isthmus.errors import ConfigError, Fault
from isthmus.topology.identity import IdentityReference
from isthmus.topology.kind.eventgrid import EVENT_GRID

__all__ = [
    "SOURCE",
    "TARGET",
    "PullOptions",
    "ServiceOptions",
    "TargetOptions",
    "read_source",
    "read_target",
]

_IGNORED = ("entity_type", "dead_letters", "duplicates")

_ENTITY = Setting(name="entity", kind=Kind.TEXT, required=True, example="flights", description="The topic.")
_SUBSCRIPTION = Setting(
    name="subscription", kind=Kind.TEXT, default="", example="isthmus", description="With pull: the event subscription."
)
SOURCE = Spec("eventgrid source", "Options of an Event Grid source.", (*EVENT_GRID.settings, _ENTITY, _SUBSCRIPTION))
TARGET = Spec("eventgrid target", "Options of an Event Grid target.", (*EVENT_GRID.settings, _ENTITY, *COPY_SETTINGS))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """How to reach the service; see `isthmus.topology.kind.eventgrid`."""

    endpoint: str
    tier: str
    key: str
    identity: str
    timeout_seconds: float
    ca_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """A subscription that a route reads."""

    service: ServiceOptions
    entity: str
    subscription: str
    lock_seconds: int
    rejects: bool
    in_flight: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOptions:
    """A topic that a route writes; see `TARGET`."""

    service: ServiceOptions
    entity: str
    schema: str
    parallel: int
    copying: CopyOptions


def read_source(options: Mapping[str, str]) -> PullOptions | ListenOptions:
    """The options of a source: of a subscription, or of a listener.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(SOURCE, options, ignore=_IGNORED)
    if values["delivery"] == "push":
        return listen_options("eventgrid source", values)
    faults = _service_faults("eventgrid source", values)
    if not values["endpoint"]:
        faults.append(Fault("eventgrid source needs endpoint", "write endpoint: https://…, or delivery: push"))
    if not values["subscription"]:
        faults.append(Fault("eventgrid source needs subscription", "write the event subscription, or delivery: push"))
    if values["tier"] != "namespace":
        faults.append(Fault("eventgrid source: a custom topic has no pull delivery", "write delivery: push"))
    if faults:
        raise ConfigError(faults)
    names = ("entity", "subscription", "lock_seconds", "rejects", "in_flight")
    return PullOptions(service=_service(values), **{name: values[name] for name in names})


def read_target(options: Mapping[str, str]) -> TargetOptions:
    """The options of a target.

    Raises:
        ConfigError: an option is invalid.
    """
    values = parse_options(TARGET, options, ignore=(*_IGNORED, "subscription"))
    faults = _service_faults("eventgrid target", values)
    if not values["endpoint"]:
        faults.append(Fault("eventgrid target needs endpoint", "write endpoint: https://…"))
    if values["tier"] == "namespace" and values["schema"] != "cloudevents":
        faults.append(Fault("eventgrid target: a namespace accepts only CloudEvents", "write schema: cloudevents"))
    if faults:
        raise ConfigError(faults)
    names = ("entity", "schema", "parallel")
    service = _service(values)
    return TargetOptions(service=service, copying=copy_options(values), **{name: values[name] for name in names})


def _service_faults(what: str, values: Mapping[str, Any]) -> list[Fault]:
    found = EVENT_GRID.faults(values, lambda name, value: f"{name}: {value}")
    return [Fault(f"{what}: {message}", hint) for _, message, hint in found]


def _service(values: Mapping[str, Any]) -> ServiceOptions:
    return ServiceOptions(
        endpoint=str(values["endpoint"]),
        tier=str(values["tier"]),
        key=str(values["key"] or ""),
        identity=str(IdentityReference.of(values)),
        timeout_seconds=values["timeout_seconds"],
        ca_file=str(values["ca_file"] or ""),
    )
