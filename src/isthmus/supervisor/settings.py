"""The settings of a supervisor.

What it is: times and limits, each with its default. What it is not: the options of `isthmus run`, a few of which set some of these.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a supervisor.

    Attributes:
        retry_first_seconds: the first delay after a failure.
        retry_limit_seconds: no delay is longer.
        step_seconds: time between two iterations.
        drain_seconds: how long routes may take to finish at the end.
        stalled_after_seconds: see `Condition`.
        stuck_after_seconds: a route that has moved nothing for so long, though messages wait and it reports no reason, is
            stopped and started again; one that is to be paused and settles nothing for so long is stopped.
        steady_seconds: a route that ran this long before it failed starts from the first delay again, unless it failed because it moved
            nothing, or the run has an end.
        available_now: routes end when the messages that waited at their start are moved.
        starts_at_once: how many routes may be starting at the same time. A start costs seconds of CPU, and Spark gives up
            on a Python process that takes ten to connect.
        start_seconds: after so long a route that is still starting no longer delays the next.
        claim_seconds: with `available_now`, how long a route waits for its claim before it is given up.
        attempts_limit: with `available_now`, how many failures in a row without a moved message end a route permanently; more than
            are needed to find a message that kills its worker (`isthmus.bridge.lease.crash_search`).
    """

    retry_first_seconds: float = 5.0
    retry_limit_seconds: float = 300.0
    step_seconds: float = 0.5
    drain_seconds: float = 20.0
    stalled_after_seconds: float = 15.0
    stuck_after_seconds: float = 60.0
    steady_seconds: float = 60.0
    available_now: bool = False
    attempts_limit: int = 8
    starts_at_once: int = 2
    start_seconds: float = 10.0
    claim_seconds: float = 60.0
