"""The options of a source and a target on the ports.

What it is: the options of a read and a write (`isthmus.connectors.servicebus.option`) that apply here, where the route's own
description has the rest (window, order, envelopes, refusals). What it is not: another declaration of them.

Invariants:
    I1. Every unknown or malformed option is refused by name before anything connects, all in one error.
    I2. Options that only the Spark data source needs are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from isthmus.connectors.servicebus.option import (
    SPARK_OPTIONS,
    SinkOptions,
    SourceOptions,
    copy_faults,
    endpoint_faults,
    spec_of,
)
from isthmus.connectors.spec import Kind, Spec, parse_options
from isthmus.errors import ConfigError, Fault

__all__ = ["SOURCE", "TARGET", "PortSourceOptions", "read_source", "read_target"]

_PLACE = ("connection", "host", "identity", "ca_file", "transport_type", "entity")
_STATE = tuple(f"state_{name}" for name in (*_PLACE, "file"))
_SOURCE = (*_PLACE, "lock_seconds", "sessions", *_STATE)
_REFERENCES = ("connection", "state_connection")
_TARGET = (
    *_PLACE,
    "origin",
    "target",
    "hop_budget",
    "mark",
    "mark_value",
    "duplicates",
    "trusts_provenance",
    "policy",
    "compression",
)


def _option(description: str, default: Any = "", **declared: Any) -> Any:
    return field(default=default, metadata={"setting": {"description": description, **declared}})


@dataclass(frozen=True, slots=True)
class PortSourceOptions(SourceOptions):
    """Options of a source on the port."""

    sessions: int = _option(
        "Maximum number of concurrent sessions, for an entity that requires sessions; 0: it has none.",
        0,
        minimum=0,
        maximum=500,
    )
    state_entity: str = _option(
        "With sessions: the queue to which their states are copied; empty: they are not copied."
    )
    state_connection: str = _option("With state_entity: as `connection`.", kind=Kind.REFERENCE, secret=True)
    state_host: str = _option("With state_entity: as `host`.", kind=Kind.HOST)
    state_identity: str = _option("With state_entity: as `identity`.", "default")
    state_ca_file: str = _option("With state_entity: as `ca_file`.", kind=Kind.PATH)
    state_transport_type: str = _option(
        "With state_entity: as `transport_type`.", "amqp", kind=Kind.CHOICE, choices=("amqp", "websockets")
    )
    state_file: str = _option("With state_entity: file that records the copied states.", kind=Kind.PATH)

    def state_target(self) -> SinkOptions:
        """The target of session states."""
        return SinkOptions(**{name: getattr(self, f"state_{name}") for name in _PLACE})


def _part(whole: Spec, title: str, names: tuple[str, ...]) -> Spec:
    return Spec(title, whole.description, tuple(each for each in whole.settings if each.name in names))


SOURCE = _part(spec_of(PortSourceOptions), "servicebus source", _SOURCE)
TARGET = _part(spec_of(SinkOptions), "servicebus target", _TARGET)


def read_source(options: Mapping[str, str]) -> PortSourceOptions:
    """The options of a source.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    values = _values(SOURCE, PortSourceOptions, options)
    made = PortSourceOptions(**values)
    faults = list(endpoint_faults(made))
    if made.state_entity:
        faults += [(f"session states: {message}", hint) for message, hint in endpoint_faults(made.state_target())]
        if not made.state_file or not made.sessions:
            faults.append(("state_entity needs sessions and state_file", "write both, or remove it"))
    _check(SOURCE, faults)
    return made


def read_target(options: Mapping[str, str]) -> SinkOptions:
    """The options of a target.

    Raises:
        ConfigError: with a fault for each option that is unknown, malformed or missing.
    """
    values = _values(TARGET, SinkOptions, options)
    made = SinkOptions(**values)
    _check(TARGET, [*endpoint_faults(made), *copy_faults(made)])
    return made


def _values(spec: Spec, whole: type[SourceOptions | SinkOptions], options: Mapping[str, str]) -> dict[str, Any]:
    passed_over = tuple(name for name in spec_of(whole).names() if name not in spec.names())
    values = parse_options(spec, options, ignore=SPARK_OPTIONS + passed_over)
    return values | {name: str(values[name]) for name in _REFERENCES if name in values}


def _check(spec: Spec, faults: list[tuple[str, str]]) -> None:
    if faults:
        raise ConfigError([Fault(f"{spec.name}: {message}", hint) for message, hint in faults])
