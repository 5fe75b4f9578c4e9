"""Routes as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from isthmus.supervisor.fitting_table import FittingTable
from isthmus.supervisor.watch.fill import Fill

__all__ = ["fill_lines", "route_table"]

_STYLES = {
    "moving": "green",
    "waiting": "cyan",
    "stalled": "bold red",
    "failed": "bold red",
    "claimed elsewhere": "yellow",
    "paused": "yellow",
    "draining": "yellow",
    "done": "green",
}

# Shown if any route has a value.
_FURTHER = ("dead_lettered", "diverted", "discarded", "dropped")

# How long a failure is shown after the route has recovered.
RECENT_SECONDS = 600


def route_table(routes: Sequence[dict[str, Any]], title: str = "") -> FittingTable:
    """The routes of a status document."""
    table = FittingTable(
        "route",
        "state",
        ">moved",
        *(f">{name.replace('_', '-')}" for name in _FURTHER),
        ">per second",
        ">waiting",
        ">oldest",
        ">in spool",
        ">canary",
        ">memory",
        title=title,
    )
    for route in routes:
        table.add_row(
            route["name"],
            Text(route["state"], style=_STYLES.get(route["phase"], "")),
            f"{route['moved']:,}",
            *(f"{route[name]:,}" if route.get(name) else "" for name in _FURTHER),
            f"{route['rate_per_second']:,.0f}",
            "?" if route["waiting"] is None else f"{route['waiting']:,}",
            _age(route["oldest_age_seconds"]),
            _spool(route.get("spool")),
            _canary(route),
            f"{route['memory_bytes'] / 1048576:,.0f} MiB" if route["memory_bytes"] else "",
            notes=_notes(route),
        )
    return table


def _notes(route: dict[str, Any]) -> tuple[Text, ...]:
    """The note of its source, and the latest failure while it is recent."""
    notes = (Text(route["note"], style="dim"),) if route.get("note") else ()
    if not route["last_error"]:
        return notes
    if route["phase"] in {"failed", "starting", "pending"}:
        return (*notes, Text(route["last_error"], style="dim"))
    if (route["last_error_seconds_ago"] or 0) <= RECENT_SECONDS and route["phase"] not in {"stopped", "paused"}:
        return (*notes, Text(f"failed {_age(route['last_error_seconds_ago'])} ago: {route['last_error']}", style="dim"))
    return notes


def _spool(spool: dict[str, Any] | None) -> str:
    """The contents of a route's spools: messages, megabytes, and how many were set aside there."""
    if not spool:
        return ""
    shown = f"{spool['waiting']:,}, {spool['bytes'] / 1048576:,.0f} MiB"
    return shown + (f", {spool['refused']:,} refused" if spool["refused"] else "")


def _canary(route: dict[str, Any]) -> str:
    """How long the last one took, and how old it is."""
    age, latency = route.get("canary_age_seconds"), route.get("canary_latency_seconds")
    if age is None or latency is None:
        return ""
    took = f"{latency * 1000:,.0f} ms" if latency < 1 else _age(latency)
    return f"{took}, {_age(age)} ago"


def fill_lines(fills: Sequence[dict[str, Any]]) -> list[Text]:
    """How full the topics are, from a status document; a line each."""
    lines = []
    for each in fills:
        fill = Fill(**{name: each[name] for name in Fill._fields if name in each})
        lines.append(Text(fill.text(), style="bold red" if fill.warns else "dim"))
    return lines


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds else "–"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
