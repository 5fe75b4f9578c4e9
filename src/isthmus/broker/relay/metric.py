"""The relay's metrics in Prometheus's format.

What it is: a row for each hybrid connection, and its lines (text exposition format 0.0.4). What it is not: the counting
(`relay`).

Invariants:
    I1. Every name begins with `isthmus_entity_`, ends with its unit, and a counter with `_total`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["RelayRow", "relay_text"]


@dataclass(frozen=True, slots=True)
class RelayRow:
    """One hybrid connection. Names that end in `_total` count since the start of the process; the others are as of now.

    Attributes:
        entity: its name, as created.
        listeners: control channels.
        connections: WebSockets that are relayed.
        requests: HTTP requests that were sent to a listener and are not answered yet.
        refused_total: requests and connections without a listener, or that were not accepted.
        unanswered_total: requests that were sent to a listener and not answered in full.
        bytes_total: of bodies and messages, both ways.
    """

    entity: str
    listeners: int = 0
    connections: int = 0
    requests: int = 0
    connections_total: int = 0
    requests_total: int = 0
    refused_total: int = 0
    unanswered_total: int = 0
    bytes_total: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The row as plain values."""
        return asdict(self)


_LINES = (
    ("listeners", "listeners", "gauge", "Listeners of a hybrid connection."),
    ("connections", "relayed_connections", "gauge", "WebSockets that are relayed."),
    ("requests", "relayed_requests", "gauge", "HTTP requests that are with a listener."),
    ("connections_total", "relayed_connections_total", "counter", "WebSockets that were relayed since the start."),
    ("requests_total", "relayed_requests_total", "counter", "HTTP requests given to listeners since the start."),
    ("refused_total", "relay_refused_total", "counter", "Requests and connections that no listener took."),
    ("unanswered_total", "relay_unanswered_total", "counter", "Requests that a listener did not answer in full."),
    ("bytes_total", "relayed_bytes_total", "counter", "Bytes of bodies and messages, both ways."),
)


def relay_text(rows: Sequence[RelayRow]) -> str:
    """The lines of all hybrid connections; "" where there are none."""
    lines: list[str] = []
    for field, name, kind, text in _LINES if rows else ():
        full = f"isthmus_entity_{name}"
        lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
        lines += [f'{full}{{entity="{row.entity}",kind="hybrid connection"}} {getattr(row, field)}' for row in rows]
    return "".join(f"{line}\n" for line in lines)
