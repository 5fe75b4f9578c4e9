"""One opening of a route in the sink: its delivery machine, its target, and the rows that wait.

What it is: the shell around one `isthmus.bridge.delivery.delivery.Delivery`: the target's answers are passed to the machine, the machine's
effects are carried out on the target and reported to the reader. What it is not: the decisions, which are the machine's, or the loop and
its sockets (`sender`). Calls do not block.

Invariants:
    I1. Effects are carried out at once and in order; none after the route failed.
    I2. Nothing is sent while the fence of the route's claim is closed: the route fails instead.
    I3. Copies are made only after the first `Opened`, in the order of the rows.
    I4. A target that has messages and gives no outcome for `target_seconds`, or does not answer `open` for so long, has failed. As long as
        bytes of the messages still arrive there, or it reports that it accepts nothing (`Stopped`), the time does not begin.
"""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections.abc import Callable
from typing import Any, Protocol

from isthmus.bridge.delivery.delivery import Delivery
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.delivery_event import (
    Dispose,
    Disposition,
    Effect,
    Event,
    Fail,
    Flushed,
    HandedOver,
    Open,
    Opened,
    Outcome,
    Pause,
    Progressed,
    Resume,
    Send,
    Settle,
    Stopped,
    Tick,
)
from isthmus.bridge.host.sender.error import ClaimUnconfirmedError, TargetUnavailableError
from isthmus.bridge.host.sender.rows import Part, WaitingRows
from isthmus.bridge.port import Target
from isthmus.bridge.refusal import RefusalKind
from isthmus.bridge.refusal_memory import RefusalMemory
from isthmus.bridge.route_spec import RouteSpec
from isthmus.errors import IsthmusError

__all__ = ["Reports", "TargetHandle"]

FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 0.1, 5.0


class Reports(Protocol):
    """The callbacks for the reports of a handle."""

    def ready(self, handle: int) -> None:
        """Its target is open."""

    def settle(self, handle: int, positions: Any) -> None:
        """The target has acknowledged these positions."""

    def dispose(self, handle: int, position: int | None, disposition: Disposition, route: str) -> None:
        """A message gets another disposition at its source."""

    def pause(self, handle: int, text: str) -> None:
        """The target accepts nothing."""

    def resume(self, handle: int) -> None:
        """The target accepts messages again."""

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None:
        """The route cannot continue; the last call, and only once."""

    def may_send(self, claim: str) -> bool:
        """Whether the claim is confirmed now."""
        ...


def _delay_seconds(attempt: int) -> float:
    """How long to wait before an attempt; partly random, so that routes that lost the same target do not reconnect at once."""
    step = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(attempt, 16))
    return step * random.uniform(0.5, 1.0)


class TargetHandle:
    """One opening of a route.

    Args:
        number: the handle.
        spec: the route.
        target: its target, not open yet.
        reports: gets the reports.
        now: monotonic seconds.
        divert: the name of the target in errors, where it is a divert target; empty: it is the route's target.
        memory: the refused messages that earlier openings noted; None: none.

    Attributes:
        clock_offset_ms: the wall time of the source's system minus monotonic time; None until the reader has sent it.
        has_failed: whether the route failed here; nothing is done any more.
        due: when `step` is due even without events.
        machine: the delivery machine, with its counts.
    """

    def __init__(
        self,
        number: int,
        spec: RouteSpec,
        target: Target,
        reports: Reports,
        now: float,
        divert: str = "",
        memory: RefusalMemory | None = None,
    ) -> None:
        self.number = number
        self.spec = spec
        self._where = divert or spec.target.alias or f"'{spec.name}'"
        self.clock_offset_ms: int | None = None
        self.has_failed = False
        self.due = math.inf
        self.machine = Delivery(
            DeliverySettings(
                window=spec.in_flight,
                envelope_messages=spec.envelope_messages,
                is_strict=spec.is_strict and not divert,  # order is promised at the target
                is_quiet=bool(divert),
                block_refused=spec.block_refused,
                timeout_seconds=spec.target_seconds,
                delay_seconds=_delay_seconds,
            ),
            memory,
        )
        self._target = target
        self._reports = reports
        self._rows = WaitingRows()
        self._was_opened = False
        self._took_at = now  # when the target last answered, or had nothing to do
        self._carry: dict[type, Callable[[Any], None]] = {
            Send: self._on_send,
            Settle: self._on_settle,
            Dispose: self._on_dispose,
            Pause: self._on_pause,
            Resume: self._on_resume,
            Open: self._on_open,
            Fail: self._on_fail,
            Flushed: self._on_flushed,
        }

    @property
    def is_busy(self) -> bool:
        """Whether any row is not finished."""
        return bool(self._rows) or self.machine.unfinished > 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the rows that the machine has not taken."""
        return self._rows.nbytes

    @property
    def awaits_target(self) -> bool:
        """Whether it can do nothing before the target's next answer."""
        machine = self.machine
        return bool(self._rows) or machine.unsent > 0 or machine.is_recovering or not self._was_opened

    @property
    def _is_watched(self) -> bool:
        """Whether the time-out for the target's answer applies; while the machine resends, it has its own time-out."""
        machine = self.machine
        return (machine.unfinished > 0 or not self._was_opened) and not machine.is_recovering and not machine.is_stopped

    # ---- for the host

    def open(self) -> None:
        """Begins to connect to the target."""
        self._guarded(self._target.open)

    def add(self, part: Part) -> None:
        """Rows came; `step` hands them over."""
        self._rows.add(part)

    def step(self, now: float, has_events: bool) -> None:
        """Takes the target's answers, if there are any, and hands over as many rows as there is room for."""
        self._guarded(lambda: self._step(now, has_events))

    def fail(self, error: IsthmusError, is_fatal: bool = False) -> None:
        """Fails the route: the reader releases unsettled messages."""
        if self.has_failed:
            return
        self.has_failed = True
        self._rows = WaitingRows()
        with contextlib.suppress(Exception):  # it has failed already
            self._target.close()
        self._reports.failed(self.number, error, is_fatal)

    def close(self) -> None:
        """The reader closed the route, or the sink ends: nothing is reported any more."""
        if not self.has_failed:
            self.has_failed = True
            with contextlib.suppress(Exception):  # an error at this point has no consequence
                self._target.close()

    # ---- the machine

    def _guarded(self, call: Callable[[], None]) -> None:
        """Runs a call; an error of a target fails only its own route."""
        try:
            call()
        except IsthmusError as error:
            self.fail(error, not error.retryable)
        except Exception as error:  # noqa: BLE001 - a connector's fault; the other routes go on
            self.fail(TargetUnavailableError(f"'{self.spec.name}': {type(error).__name__}: {error}"), True)

    def _step(self, now: float, has_events: bool) -> None:
        machine = self.machine
        if self.has_failed:
            return
        if has_events:
            for event in self._target.poll(now):
                if not self._on_target_event(event, now):
                    return
        if self._was_opened:
            while self._rows and machine.room > 0:
                if not self._hand_over(self._rows.take(), now):
                    return
        if (machine.is_recovering or machine.deadline(now) <= now) and not self._feed(Tick(), now):
            return
        self.due = min(self._target.deadline(now), machine.deadline(now))
        if self._is_watched:
            self._check_progress(now)

    def _on_target_event(self, event: Event, now: float) -> bool:
        kind = type(event)
        if kind is Outcome or kind is Progressed or kind is Stopped:
            self._took_at = now
        elif kind is Opened:
            self._took_at = now
            if not self._was_opened:
                self._was_opened = True
                self._reports.ready(self.number)
        return self._feed(event, now)

    def _hand_over(self, part: Part, now: float) -> bool:
        if not self.machine.unfinished:
            self._took_at = now
        positions, disposed = part.positions, part.disposed
        if not part.messages:
            return self._feed(HandedOver((), None if positions is None else (), disposed), now)
        copies = self._target.copies(part.data, part.offsets, self._source_ms(part, now))
        if copies.disposed:
            refused = [(None if positions is None else positions[row], each) for row, each in copies.disposed]
            disposed = [*disposed, *refused]  # type: ignore[list-item]  # positions are None only where nothing is settled
        if copies.rows is not None and positions is not None:
            positions = [positions[row] for row in copies.rows]
        return self._feed(HandedOver(copies.payloads, positions, disposed, copies.is_alone), now)

    def _source_ms(self, part: Part, now: float) -> int:
        offset_ms = self.clock_offset_ms if part.clock_offset_ms is None else part.clock_offset_ms
        return time.time_ns() // 1_000_000 if offset_ms is None else int(now * 1000) + offset_ms

    def _check_progress(self, now: float) -> None:
        seconds = self.spec.target_seconds
        self.due = min(self.due, self._took_at + seconds)
        if now < self._took_at + seconds:
            return
        what = "gave no outcome" if self._was_opened else "did not answer"
        self.fail(TargetUnavailableError(f"{self._where}: the target {what} for {seconds:g} s"))

    def _feed(self, event: Event, now: float) -> bool:
        """Passes an event to the machine; returns whether the route continues."""
        for effect in self.machine.on(event, now):
            self._carry_out(effect)
            if self.has_failed:
                return False
        return True

    def _carry_out(self, effect: Effect) -> None:
        self._carry[type(effect)](effect)

    # ---- effects

    def _on_send(self, effect: Send) -> None:
        if self.spec.claim and not self._reports.may_send(self.spec.claim):
            self.fail(ClaimUnconfirmedError(self.spec.name, self.spec.claim))
            return
        self._target.send(effect)

    def _on_settle(self, effect: Settle) -> None:
        self._reports.settle(self.number, effect.positions)

    def _on_dispose(self, effect: Dispose) -> None:
        self._reports.dispose(self.number, effect.position, effect.disposition, self.spec.name)

    def _on_pause(self, effect: Pause) -> None:
        self._reports.pause(self.number, effect.text)

    def _on_resume(self, effect: Resume) -> None:
        self._reports.resume(self.number)

    def _on_open(self, effect: Open) -> None:
        self._target.open()

    def _on_flushed(self, effect: Flushed) -> None:
        raise AssertionError("flush rows do not go through the machine")

    def _on_fail(self, effect: Fail) -> None:
        refusal, seconds = effect
        after = f"took nothing for {seconds:g} s: " if seconds else ""
        is_fatal = not seconds and refusal.kind is RefusalKind.FATAL
        self.fail(TargetUnavailableError(f"{self._where}: {after}{refusal}"), is_fatal)
