"""A reader's reports of its routes.

What it is: the report of one route, typed, and its JSON form. What it is not: the connection that carries it
(`isthmus.bridge.host`).

Invariants:
    I1. Counts are totals since the lease began; none falls within a lease.
    I2. `moved` counts only messages that were settled because the target acknowledged them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

__all__ = ["RouteReport", "RouteState"]


class RouteState(StrEnum):
    """The state of a route of a lease."""

    OPENING = "opening"
    RUNNING = "running"
    PAUSED = "paused"
    """Its target accepts nothing for now, or its claim is not confirmed."""
    RETRYING = "retrying"
    """Its source or target failed; it begins again at `retry_in_seconds`."""
    ENDING = "ending"
    ENDED = "ended"
    """All delivered messages are settled or released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReport:
    """One route of a lease.

    Attributes:
        state: its state.
        settled: messages settled at the source, for any reason.
        moved: settled because the target acknowledged them.
        dead_lettered: dead-lettered at the source.
        discarded: completed at the source without being sent.
        diverted: completed at the source because the entity that they were diverted to acknowledged them.
        resent: sent again after a refusal or a lost connection.
        outstanding: delivered and not settled now.
        is_awaited: whether the target has some of those, and its own time-outs apply to their outcomes.
        head: the first position of those, or the content name of that message where a system keeps no positions; 0 where there is none.
        window: messages that may be outstanding now; where it was narrowed, those that still are.
        lag_ms: age of the last message; 0 where none came recently.
        received_bytes: of messages delivered.
        paused: why nothing is taken from the source; empty where it is.
        blocked_by: the position of an earlier message that another receiver has locked; 0 for none.
        note: its source's note for the operator about something that delays no message; empty for none.
        error: why it is retrying; empty where it is not.
        retry_in_seconds: until it begins again.
        set_aside: positions that were dead-lettered because they crashed workers.
        is_exhausted: whether all messages that were present at the beginning (`only_present`) are settled.
        limit: the present rate limit, e.g. `100/s until 18:00 UTC`; empty for none.
        limit_per_second: the same in messages per second; negative for none.
    """

    state: RouteState = RouteState.OPENING
    settled: int = 0
    moved: int = 0
    dead_lettered: int = 0
    discarded: int = 0
    diverted: int = 0
    resent: int = 0
    outstanding: int = 0
    is_awaited: bool = False
    head: int = 0
    window: int = 0
    lag_ms: int = 0
    received_bytes: int = 0
    paused: str = ""
    blocked_by: int = 0
    note: str = ""
    error: str = ""
    retry_in_seconds: float = 0.0
    set_aside: tuple[int, ...] = ()
    is_exhausted: bool = False
    limit: str = ""
    limit_per_second: float = -1.0

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without fields that have their defaults."""
        return {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> RouteReport:
        """From a JSON object.

        Raises:
            TypeError: a field is unknown.
            ValueError: the state is unknown.
        """
        values = dict(document)
        values["state"] = RouteState(values.get("state", RouteState.OPENING))
        values["set_aside"] = tuple(values.get("set_aside", ()))
        return cls(**values)


_DEFAULTS = {each.name: each.default for each in fields(RouteReport)}
