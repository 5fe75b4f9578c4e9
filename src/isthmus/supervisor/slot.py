"""A route in the supervisor, and the object that runs it.

What it is: the state of one route between iterations. What it is not: the decisions about it (`supervisor`).
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
    """A route and the object that runs it."""

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
    is_leaving: bool = False  # it finishes its messages in flight, to be paused
    leaving_since: float = 0.0  # without a message settled meanwhile
    retry_seconds: float | None = None  # after which it starts again by itself, as last reported
    is_seen: bool = False  # its backlog is known
    settled_at_failure: int = 0
    failing_since: float = 0.0  # by itself, without a message settled meanwhile
    is_noted: bool = False  # the note of its source is in the log
