"""The state machine that decides which namespace of an active-passive pair is read.

What it is: pure: failures, answers, requests and the time go in; which namespace to read and where publishers have to send comes out.
What it is not: connections, nor the state's file (`isthmus.client.failover_receiver`).
Specification: docs/how-to/active-passive.md, "When the primary fails" and "When the primary returns".

    PRIMARY    the primary is read
    SECONDARY  the primary is unavailable, or `fail_over` was called; the secondary is read
    PUBLISHERS failing back has begun: publishers are being switched to the primary; the secondary is read
    DRAINING   publishers have switched; the secondary is read until the messages that they sent there are handled

Invariants:
    F1. One namespace is read at a time.
    F2. Consumers return to the primary after publishers, and after the messages that were sent to the secondary are handled.
    F3. An automatic machine fails over after `fail_over_after` seconds without an answer from the primary, and not before.
    F4. A failure of the secondary changes nothing: if both are unavailable, the roles stay.
    F5. If the primary fails again while failing back, the machine returns to SECONDARY.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "PRIMARY",
    "SECONDARY",
    "Effect",
    "Failover",
    "FailoverState",
    "FailoverView",
    "Read",
    "Save",
    "SwitchPublishers",
]

PRIMARY = "primary"
SECONDARY = "secondary"


class FailoverState(Enum):
    """The states; see the module."""

    PRIMARY = "primary"
    SECONDARY = "secondary"
    PUBLISHERS = "publishers"
    DRAINING = "draining"

    @property
    def reads(self) -> str:
        """The namespace that is read."""
        return PRIMARY if self is FailoverState.PRIMARY else SECONDARY


@dataclass(frozen=True, slots=True)
class Read:
    """Read this namespace and no other."""

    side: str


@dataclass(frozen=True, slots=True)
class SwitchPublishers:
    """Publishers have to send to this namespace; the owner reports the switch with `Failover.published`."""

    side: str


@dataclass(frozen=True, slots=True)
class Save:
    """The state has to be on disk before the effects that follow it."""

    state: FailoverState


Effect = Read | SwitchPublishers | Save


@dataclass(frozen=True, slots=True)
class FailoverView:
    """The input of a function that decides (`trigger`).

    Attributes:
        state: of the machine.
        primary_away_seconds: seconds since the primary stopped answering; 0 if its last answer was no failure.
        primary_back_seconds: seconds for which it has answered without a failure; 0 if it does not answer.
        secondary_away_seconds: the same for the secondary.
    """

    state: FailoverState
    primary_away_seconds: float
    primary_back_seconds: float
    secondary_away_seconds: float


class _Health:
    """The times since which one namespace fails, or answers."""

    def __init__(self) -> None:
        self.failing_since = math.inf
        self.answering_since = math.inf

    def failed(self, now: float) -> None:
        self.answering_since = math.inf
        self.failing_since = min(self.failing_since, now)

    def answered(self, now: float) -> None:
        self.failing_since = math.inf
        self.answering_since = min(self.answering_since, now)

    def away_seconds(self, now: float) -> float:
        return max(0.0, now - self.failing_since)

    def back_seconds(self, now: float) -> float:
        return max(0.0, now - self.answering_since)


class Failover:
    """The failover machine.

    Args:
        state: the state to begin with.
        fail_over_after: seconds without an answer from the primary until it fails over; None: only on request.
        fail_back_after: seconds for which the primary has to answer before failing back begins; None: only on request.
        drain_seconds: the secondary counts as drained after no message sent to it has arrived there for this long.
    """

    def __init__(
        self,
        state: FailoverState = FailoverState.PRIMARY,
        *,
        fail_over_after: float | None = None,
        fail_back_after: float | None = None,
        drain_seconds: float = 5.0,
    ) -> None:
        self.state = state
        self.changes = 0
        self._fail_over_after = fail_over_after
        self._fail_back_after = fail_back_after
        self._drain_seconds = drain_seconds
        self._health = {PRIMARY: _Health(), SECONDARY: _Health()}
        self._local_at = -math.inf
        self._drain_since = math.inf

    def start(self, now: float) -> list[Effect]:
        """Start with the stored state."""
        effects: list[Effect] = [Read(self.state.reads)]
        if self.state is FailoverState.PUBLISHERS:
            effects.append(SwitchPublishers(PRIMARY))
        if self.state is FailoverState.SECONDARY:  # the process may have been killed before publishers had switched
            effects.append(SwitchPublishers(SECONDARY))
        if self.state is FailoverState.DRAINING:
            self._drain_since = now
        return effects

    def view(self, now: float) -> FailoverView:
        """The input of a function that decides."""
        primary, secondary = self._health[PRIMARY], self._health[SECONDARY]
        return FailoverView(
            self.state, primary.away_seconds(now), primary.back_seconds(now), secondary.away_seconds(now)
        )

    # ---- events

    def failed(self, side: str, now: float) -> list[Effect]:
        """A namespace did not answer, or reported that it is unavailable."""
        self._health[side].failed(now)
        if side == PRIMARY and self.state in (FailoverState.PUBLISHERS, FailoverState.DRAINING):
            return self._to_secondary()
        return []

    def answered(self, side: str, now: float) -> None:
        """A namespace answered."""
        self._health[side].answered(now)

    def fail_over_requested(self) -> list[Effect]:
        """Fail over on request."""
        return [] if self.state is FailoverState.SECONDARY else self._to_secondary()

    def fail_back_requested(self, *, at_once: bool = False) -> list[Effect]:
        """Fail back on request; `at_once` leaves the messages that were sent to the secondary there."""
        if self.state is FailoverState.PRIMARY:
            return []
        if at_once:
            return [SwitchPublishers(PRIMARY), *self._to(FailoverState.PRIMARY)]
        if self.state is not FailoverState.SECONDARY:
            return []
        return [*self._to(FailoverState.PUBLISHERS), SwitchPublishers(PRIMARY)]

    def published(self, side: str, now: float) -> list[Effect]:
        """Publishers send to this namespace from now on."""
        if self.state is FailoverState.PUBLISHERS and side == PRIMARY:
            self._drain_since = now
            return self._to(FailoverState.DRAINING)
        return []

    def arrived(self, *, is_local: bool, now: float) -> None:
        """A message arrived from the namespace that is read; a local one was sent to the secondary, not copied to it."""
        self._health[self.state.reads].answered(now)
        if is_local:
            self._local_at = now

    def tick(self, now: float, *, local_unsettled: int, is_caught_up: bool) -> list[Effect]:
        """Time has passed.

        Args:
            now: monotonic seconds.
            local_unsettled: messages that were sent to the secondary and that the application has not settled.
            is_caught_up: whether everything that was sent to the secondary before publishers switched has arrived.
        """
        view = self.view(now)
        if (
            self.state is FailoverState.PRIMARY
            and self._fail_over_after is not None
            and view.primary_away_seconds >= self._fail_over_after
        ):
            return self._to_secondary()
        if (
            self.state is FailoverState.SECONDARY
            and self._fail_back_after is not None
            and view.primary_back_seconds >= self._fail_back_after
        ):
            return self.fail_back_requested()
        quiet_since = max(self._local_at, self._drain_since)
        if (
            self.state is FailoverState.DRAINING
            and now - quiet_since >= self._drain_seconds
            and local_unsettled == 0
            and is_caught_up
            and not view.secondary_away_seconds
        ):
            return self._to(FailoverState.PRIMARY)
        return []

    # ---- internal

    def _to_secondary(self) -> list[Effect]:
        self._health[PRIMARY].answering_since = math.inf
        return [*self._to(FailoverState.SECONDARY), SwitchPublishers(SECONDARY)]

    def _to(self, state: FailoverState) -> list[Effect]:
        before, self.state = self.state, state
        self.changes += 1
        effects: list[Effect] = [Save(state)]
        if before.reads != state.reads:
            effects.append(Read(state.reads))
            self._health[state.reads].failing_since = math.inf
        return effects
