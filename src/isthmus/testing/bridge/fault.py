"""Scripted faults of an entity.

What it is: which fault happens at which step, and how often. Each message (or opening) passes a step once; a plan gives how
many pass before the fault and what then happens: the connection is lost, or an action of the test runs, e.g. the kill
of a process. What it is not: random; a test that wants a random fault draws the plan.

Invariants:
    I1. A plan acts once; plans of one step act in the order in which they were made.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from isthmus.bridge.refusal import Refusal

__all__ = ["Faults", "Killed", "Step"]

Verdict = Callable[[str], Refusal | None]


class Killed(BaseException):  # no Exception: handlers for a connector's faults must not catch it
    """Raised in the I/O thread of a host that the test has killed: it ends, and what it sends while ending is dropped."""


def nothing() -> None:
    """The action of a plan that only loses the connection."""


class Step(enum.Enum):
    """A step at which a fault can happen."""

    BEFORE_DELIVERY = "before-delivery"
    """The message is locked, and its receiver does not have it yet."""
    AFTER_DELIVERY = "after-delivery"
    BEFORE_SETTLE = "before-settle"
    AFTER_SETTLE = "after-settle"
    BEFORE_RELEASE = "before-release"
    BEFORE_STORE = "before-store"
    """The target has received the message and not stored it."""
    AFTER_STORE = "after-store"
    """The message is stored, its sender has no outcome."""
    AFTER_OUTCOME = "after-outcome"


@dataclass(slots=True)
class Faults:
    """What goes wrong with one entity; attributes may be set at any time, followed by `System.touch`.

    Attributes:
        refuse_opens: so many openings fail.
        is_away: openings fail, and open connections are lost.
        attempts: openings that failed while it was away.
        is_gone: there is no such entity: openings fail fatally, and open connections are lost.
        hangs: a target answers nothing: no credit, no outcome.
        stops: a source delivers nothing.
        busy: a target refuses everything with this.
        verdict: a target's outcome for a message by its key; None accepts.
        latency_seconds: how long after a send its outcome comes.
        settle_seconds: how long after its request a settlement takes effect.
        shuffle: reorders the outcomes of what was sent together.
        duplicate_deliveries: so many messages are delivered twice to the same receiver.
        refuses_renewal: locks are not renewed.
    """

    refuse_opens: int = 0
    is_away: bool = False
    attempts: int = 0
    is_gone: bool = False
    hangs: bool = False
    stops: bool = False
    busy: Refusal | None = None
    verdict: Verdict | None = None
    latency_seconds: float = 0.0
    settle_seconds: float = 0.0
    shuffle: Callable[[list[int]], None] | None = None
    duplicate_deliveries: int = 0
    refuses_renewal: bool = False
    _plans: dict[Step, deque[list[object]]] = field(default_factory=dict)

    def lose(self, step: Step, after: int = 0, times: int = 1) -> None:
        """The connection is lost when `after` messages have passed the step, and again after as many, so many times."""
        self._plan(step, after, times, None)

    def run(self, step: Step, action: Callable[[], None], after: int = 0, times: int = 1) -> None:
        """An action runs when `after` messages have passed the step; it may raise `Killed`."""
        self._plan(step, after, times, action)

    def passes(self, step: Step) -> bool:
        """A message reaches a step; returns whether the connection stays."""
        plans = self._plans.get(step)
        if not plans:
            return True
        left, action = plans[0]
        assert isinstance(left, int)
        if left:
            plans[0][0] = left - 1
            return True
        plans.popleft()
        if action is None:
            return False
        assert callable(action)
        action()
        return True

    def due(self, step: Step, count: int) -> Callable[[], object] | None:
        """`count` messages reach a step at once: returns the action of a plan among them, `nothing` for a lost connection; None: all pass."""
        plans = self._plans.get(step)
        if not plans:
            return None
        left, action = plans[0]
        assert isinstance(left, int)
        if left >= count:
            plans[0][0] = left - count
            return None
        plans.popleft()
        assert action is None or callable(action)
        return action or nothing

    def is_next(self, step: Step) -> bool:
        """Whether a plan acts on the next message that reaches a step."""
        plans = self._plans.get(step)
        return plans is not None and len(plans) > 0 and plans[0][0] == 0

    def skip(self, step: Step, count: int) -> None:
        """Lets so many messages pass a step without regard to plans."""
        plans = self._plans.get(step)
        if plans:
            left = plans[0][0]
            assert isinstance(left, int)
            plans[0][0] = max(0, left - count)

    @property
    def is_planned(self) -> bool:
        """Whether a plan has not acted yet."""
        return any(self._plans.values())

    def clear(self) -> None:
        """Drops plans that have not acted."""
        self._plans.clear()

    def _plan(self, step: Step, after: int, times: int, action: Callable[[], None] | None) -> None:
        self._plans.setdefault(step, deque()).extend([after, action] for _ in range(times))
