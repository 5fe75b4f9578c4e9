"""The messages of readers to the driver, validated.

What it is: the payloads of LEASE, REPORT, DIED, ENDED and LOOK (`isthmus.bridge.frame`) as typed values. What it is not: their
effects (`control.account`).

Invariants:
    I1. Any bytes give a well-formed value or `ChannelError`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from isthmus.bridge.frame import Kind, unpack_json
from isthmus.bridge.host.channel import ChannelError
from isthmus.bridge.report import RouteReport

__all__ = ["COUNTS", "Died", "Ended", "Lease", "Look", "Message", "Report", "message_of"]

COUNTS = ("settled", "moved", "dead_lettered", "discarded", "diverted", "resent", "received_bytes")
"""The fields of a report that are totals."""
_DEFAULTS = {each.name: each.default for each in fields(RouteReport)}


@dataclass(frozen=True, slots=True)
class Lease:
    """A reader begins a lease."""

    query: str
    lease: int
    slot: int
    process: int
    slots: int = 1


@dataclass(frozen=True, slots=True)
class Report:
    """The changed reports; `asked` is the number of a question for how long claims are held, 0: none."""

    routes: Mapping[str, RouteReport] = field(default_factory=dict)
    asked: int = 0
    processes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Died:
    """The sink's connection is lost; the routes that it carried, None: all of the reader's."""

    routes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Ended:
    """The lease has ended; `error` is empty where it ended in order."""

    error: str


@dataclass(frozen=True, slots=True)
class Look:
    """The question whether a lease of this query may start."""

    query: str


Message = Lease | Report | Died | Ended | Look


def message_of(kind: int, payload: bytes) -> Message:
    """The message of a frame.

    Raises:
        ChannelError: it is not a message of a reader.
    """
    try:
        content = unpack_json(payload)
    except (ValueError, RecursionError):
        raise ChannelError(f"frame of kind {kind} is no JSON") from None
    if not isinstance(content, dict):
        raise ChannelError(f"frame of kind {kind} is no JSON object")
    match kind:
        case Kind.LEASE:
            lease, slot, process = (_number(content, name) for name in ("lease", "slot", "process"))
            return Lease(_text(content, "query"), lease, slot, process, _number(content, "slots", 1))
        case Kind.REPORT:
            routes = content.get("routes", {})
            if not isinstance(routes, dict):
                raise ChannelError("'routes' of a report is no object")
            return Report(
                {name: _report(name, values) for name, values in routes.items()},
                _number(content, "asked", 0),
                tuple(_list(content, "processes", int)),
            )
        case Kind.DIED:
            return Died(tuple(_list(content, "routes", str)) if "routes" in content else None)
        case Kind.ENDED:
            return Ended(_text(content, "error", ""))
        case Kind.LOOK:
            return Look(_text(content, "query"))
    raise ChannelError(f"frame of kind {kind} is none that a reader sends to the driver")


def _report(name: str, content: Any) -> RouteReport:
    try:
        report = RouteReport.from_json(content)
    except (TypeError, ValueError) as error:
        raise ChannelError(f"what came for route '{name}' is no report: {type(error).__name__}") from None
    for each, default in _DEFAULTS.items():
        value = getattr(report, each)
        if not _is_like(value, default) or (each in COUNTS and value < 0):
            raise ChannelError(f"'{each}' of the report of route '{name}' is of no use")
    return report


def _is_like(value: Any, default: Any) -> bool:
    match default:
        case bool():
            return isinstance(value, bool)
        case int():
            return isinstance(value, int) and not isinstance(value, bool)
        case float():
            return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        case tuple():
            return all(_is_like(each, 0) for each in value)
        case _:
            return isinstance(value, str)


def _number(content: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = content.get(name, default)
    if not _is_like(value, 0) or value < 0:
        raise ChannelError(f"'{name}' is no number from 0 on")
    return int(value)


def _text(content: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = content.get(name, default)
    if not isinstance(value, str):
        raise ChannelError(f"'{name}' is no text")
    return value


def _list(content: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    values = content.get(name, [])
    if not isinstance(values, list) or not all(_is_like(each, kind()) for each in values):
        raise ChannelError(f"'{name}' is no list of {kind.__name__}")
    return values
