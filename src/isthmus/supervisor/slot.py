"""A route in the supervisor's account, and what runs for it.

What it is: the state of one route between the rounds. What it is not: what is done about it (`supervisor`).
"""

from __future__ import annotations

from dataclasses import dataclass

from isthmus.supervisor.condition import Condition
from isthmus.supervisor.running_route import RunningRoute
from isthmus.topology.model import Route
from isthmus.transport.backoff import Backoff

__all__ = ["Slot"]


@dataclass(slots=True)
class Slot:
    """A route and what runs for it."""

    route: Route
    condition: Condition
    backoff: Backoff
    running: RunningRoute | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    failures_in_a_row: int = 0
    given_up: bool = False
    unclaimed_since: float | None = None
    is_faulty: bool = False
    is_leaving: bool = False  # it finishes what it has begun, to be paused
    leaving_since: float = 0.0  # without a message settled meanwhile
    retry_seconds: float | None = None  # after which it begins again by itself, as last told
    is_seen: bool = False  # what waits in its source is known
    settled_at_failure: int = 0
    failing_since: float = 0.0  # by itself, without a message settled meanwhile
    is_noted: bool = False  # what its source wants to be known is in the log
