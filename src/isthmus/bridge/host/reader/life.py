"""When a lease as a whole ends.

What it is: the decision, from the time and the states of the sink, the driver, Spark's thread and the routes. What it is not: the end
of one route (`isthmus.bridge.lease.lease`), or its execution (`reader`).

Invariants:
    I1. A sink that disconnected or failed ends the lease with an error, with priority over all other reasons.
    I2. A lease whose sink has not connected does not end by time or by the driver's request: it waits for the sink, for SINK_SECONDS.
"""

from __future__ import annotations

import enum
import math
import threading
from dataclasses import dataclass
from typing import Protocol

__all__ = ["ReaderLife", "Verdict"]

# A sink is a process that Spark starts with the reader.
SINK_SECONDS = 60.0
ASSIGN_SECONDS = 15.0
# A sink sends a frame every 2 s; five times that counts as silence.
SILENCE_SECONDS = 10.0


class Verdict(enum.Enum):
    """The decision about the lease."""

    GO_ON = "go on"
    END = "end"
    """End all routes."""
    OVER = "over"
    """All routes have ended."""


class _Routes(Protocol):
    @property
    def is_empty(self) -> bool: ...

    def has_ended(self) -> bool: ...


class _Sink(Protocol):
    has_come: bool
    is_gone: bool
    has_ended: bool
    received_at: float


class _Driver(Protocol):
    @property
    def is_gone(self) -> bool: ...


@dataclass(slots=True)
class ReaderLife:
    """The state that decides about a lease.

    Attributes:
        lease_seconds: how long it lasts.
        needs_assignment: whether the driver assigns the routes.
        owner: Spark's thread.
        stop_wish: why its end was requested; empty: it was not.
        is_driver_wish: whether the driver requested it; else Spark's thread, which takes nothing more.
        sink_error: the sink's error; empty: it did not fail.
        has_sink_died: whether a message may have killed the sink.
        ended_by: why it ends; empty until it does.
    """

    lease_seconds: float
    needs_assignment: bool = False
    owner: threading.Thread | None = None
    stop_wish: str = ""
    is_driver_wish: bool = False
    sink_error: str = ""
    has_sink_died: bool = False
    ended_by: str = ""
    _begun_at: float = math.inf
    _assigned_at: float = math.inf

    def begin(self, now: float) -> None:
        """The loop begins."""
        self._begun_at = now
        if not self.needs_assignment:
            self._assigned_at = now

    def assigned(self, lease_seconds: float | None, now: float) -> None:
        """The driver assigned routes."""
        self._assigned_at = min(now, self._assigned_at)
        if lease_seconds is not None:
            self.lease_seconds = lease_seconds

    @property
    def is_ending(self) -> bool:
        """Whether the routes were asked to end."""
        return bool(self.ended_by)

    def deadline(self, now: float) -> float:
        """When the verdict may change even without events."""
        due = self._assigned_at + self.lease_seconds
        return due if due > now and not self.is_ending else math.inf

    def verdict(self, now: float, routes: _Routes, sink: _Sink, driver: _Driver | None) -> Verdict | str:
        """The verdict; a text: the lease failed."""
        failure = self._failure(now, sink)
        if failure:
            return failure
        if not self.is_ending:
            self.ended_by = self._reason(now, routes, sink, driver)
            return Verdict.END if self.ended_by else Verdict.GO_ON
        is_waited_for = not sink.has_come and not self._is_abandoned
        return Verdict.GO_ON if is_waited_for or not routes.has_ended() else Verdict.OVER

    @property
    def _is_abandoned(self) -> bool:
        return bool(self.stop_wish) and not self.is_driver_wish

    def _failure(self, now: float, sink: _Sink) -> str:
        if self.sink_error:
            return f"the sink failed: {self.sink_error}"
        if sink.has_ended:
            return "the sink's input ended before the lease did"
        if sink.is_gone:
            self.has_sink_died = True
            return "the sink ended without notice"
        if sink.has_come and now - sink.received_at >= SILENCE_SECONDS:
            return f"the sink has been silent for {SILENCE_SECONDS:g} s"
        if self.owner is not None and not self.owner.is_alive():
            return "the thread that takes rows is gone"
        if not sink.has_come and not self._is_abandoned and now - self._begun_at >= SINK_SECONDS:
            return "no isthmus sink in this task settles; write to format isthmus without a shuffle between"
        if self._assigned_at == math.inf and now - self._begun_at >= ASSIGN_SECONDS:
            return f"the driver did not say within {ASSIGN_SECONDS:g} s what to carry"
        return ""

    def _reason(self, now: float, routes: _Routes, sink: _Sink, driver: _Driver | None) -> str:
        if self.stop_wish:
            return self.stop_wish
        if driver is not None and driver.is_gone:
            return "the driver is gone"
        if now - self._assigned_at >= self.lease_seconds and sink.has_come:
            return "time"
        if not self.needs_assignment and not routes.is_empty and routes.has_ended():
            return "exhausted"
        return ""
