"""Keeps the routes of a federation running in one driver.

What it is: the loop that starts each route once its task's claim is held, checks that messages move, restarts failed
routes with growing delays and without limit, and at the end lets every route drain before it is stopped.
What it is not: Spark, or a namespace; a route is started by a function, claims are reported by an object.

Order at the end (docs/explanation/lease.md): drain, wait until the leases have ended, stop the query, release the claims. A
query that is stopped first would end its reader without `finally`, and leave its locks to expire.

Invariants:
    I1. A route runs only while its claim is held.
    I2. The failure of one route does not affect any other.
    I3. A route that failed is retried, later each time up to the limit; once it has moved messages, the delay starts
        from the first step again.
    I4. At most as many routes as the settings allow are starting at a time; `isthmus run` starts them all at once.
    I5. A paused route receives nothing more once it has finished its messages in flight; the leases that carried it continue.
    I6. Stopping drains every route, all together, before any query is stopped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from isthmus.clock import Clock, SystemClock
from isthmus.connectors.secret import scrub
from isthmus.errors import IsthmusError
from isthmus.replication.query.route_progress import Backlog, RouteProgress
from isthmus.replication.spark.gone import SparkGoneError
from isthmus.supervisor.claim.view import Claims, ClaimState, ClaimView, NoClaims
from isthmus.supervisor.condition import Condition, Phase
from isthmus.supervisor.mention import about, named
from isthmus.supervisor.running_route import RunningRoute
from isthmus.supervisor.settings import Settings
from isthmus.supervisor.slot import Slot
from isthmus.topology.model import Route
from isthmus.transport.backoff import Backoff

__all__ = ["ClaimState", "ClaimView", "Claims", "NoClaims", "RunningRoute", "Settings", "Supervisor"]

log = logging.getLogger(__name__)


class Supervisor:
    """Keeps routes running.

    Args:
        routes: all routes of the run.
        start: starts a route and returns immediately.
        claims: reports whether a route may run.
        backlog: the backlog of a route's source, as far as known; never blocks.
        settings: times and limits.
        clock: monotonic seconds.
        paused: the tasks that the operator has paused, with the time since when; called in each iteration.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        start: Callable[[Route], RunningRoute],
        *,
        claims: Claims | None = None,
        backlog: Callable[[Route], Backlog | None] | None = None,
        settings: Settings | None = None,
        clock: Clock | None = None,
        paused: Callable[[], Mapping[str, str]] = dict,
        canary: Callable[[Route, float], tuple[float | None, float | None, float]] | None = None,
    ) -> None:
        self._paused = paused
        self._canary = canary or (lambda route, now: (None, None, 0.0))
        self.settings = settings or Settings()
        self.clock = clock or SystemClock()
        self._start = start
        self._claims: Claims = claims or NoClaims()
        self._backlog = backlog or (lambda _: None)
        self._slots = [
            Slot(
                route,
                Condition(self.settings.stalled_after_seconds),
                Backoff(self.settings.retry_first_seconds, self.settings.retry_limit_seconds),
            )
            for route in routes
        ]

    # ---- running

    def run(self, stop: threading.Event, on_round: Callable[[], None] | None = None) -> bool:
        """Keeps the routes running until `stop` is set, or until all are done; then drains and stops them. Blocks.

        Returns:
            Whether every route ended without a failure.

        Raises:
            SparkGoneError: no route can run any more in this process.
        """
        try:
            while not stop.is_set() and not self.finished():
                self.step()
                if on_round is not None:
                    on_round()
                stop.wait(self.settings.step_seconds)
        finally:
            self.shut_down(on_round)
        return not any(slot.given_up or slot.is_faulty for slot in self._slots)

    def finished(self) -> bool:
        """Whether all routes are done."""
        ended = {Phase.DONE, Phase.PAUSED} if self.settings.available_now else {Phase.DONE}
        return all(slot.condition.phase in ended or slot.given_up for slot in self._slots)

    def step(self) -> None:
        """One iteration over all routes."""
        paused = self._paused()
        for slot in self._slots:
            if slot.given_up or slot.condition.phase is Phase.DONE:
                continue
            self._update_backlog(slot)
            try:
                self._carry(slot, paused.get(slot.route.task, ""))
            except SparkGoneError:
                raise
            except Exception as error:  # noqa: BLE001 - e.g. the folder of its spool cannot be read; the other routes continue (I2)
                if slot.running is not None:
                    self._stop(slot, slot.running)
                self._fail(slot, _one_line(error))

    def _carry(self, slot: Slot, paused_since: str) -> None:
        if self._is_paused(slot, paused_since) or not self._claimed(slot):
            return
        if slot.running is None:
            self._start_if_due(slot)
        else:
            self._watch(slot, slot.running)

    def _is_paused(self, slot: Slot, since: str) -> bool:
        """Whether a route is paused, or being paused; one that is resumed meanwhile first finishes, and then starts again."""
        running = slot.running
        if since and running is not None and not slot.is_leaving:
            log.info("route %s: paused by the operator; it finishes its messages in flight", slot.route.name)
            slot.is_leaving, slot.leaving_since = True, self.clock.monotonic()
            slot.condition.draining()
            _quietly(running.drain, slot)
        if slot.is_leaving and running is not None:
            if running.is_active() and not running.drained() and self._is_finishing(slot, running):
                return True
            self._stop(slot, running)
        slot.is_leaving = False
        if since:
            slot.condition.paused(since)
            slot.unclaimed_since, slot.failures_in_a_row, slot.due_at = None, 0, 0.0
        elif slot.condition.phase is Phase.PAUSED:
            log.info("route %s: resumed by the operator", slot.route.name)
            slot.condition.pending("resumed")
            slot.backoff.reset()
        return bool(since)

    def _is_finishing(self, slot: Slot, running: RunningRoute) -> bool:
        """Whether messages in flight are still being finished, as far as is known."""
        now, before = self.clock.monotonic(), slot.condition.counts.settled
        slot.condition.seen(now, running.progress())
        if slot.condition.counts.settled > before:
            slot.leaving_since = now
        idle_seconds = now - slot.leaving_since
        if idle_seconds < self.settings.stuck_after_seconds:
            return True
        log.warning(
            "route %s: it has not finished its messages in flight for %.0f s; it stops", slot.route.name, idle_seconds
        )
        return False

    def _update_backlog(self, slot: Slot) -> None:
        slot.condition.canary = self._canary(slot.route, self.clock.monotonic())
        found = self._backlog(slot.route)
        if found is None and slot.is_seen:
            slot.condition.backlog_unknown()
        slot.is_seen = found is not None
        if found is not None:
            age_seconds = found.age_seconds(self.clock.wall_ms())
            slot.condition.backlog_seen(self.clock.monotonic(), found.waiting, age_seconds, are_ready=found.are_ready)

    def _claimed(self, slot: Slot) -> bool:
        if not slot.route.is_claimed:
            return True
        view = self._claims.view(slot.route.task, slot.route.claim_alias)
        if view.state is ClaimState.HELD:
            slot.unclaimed_since = None
            slot.is_faulty = False
            return True
        if slot.running is not None:
            log.warning("route %s: the claim is lost (%s); it stops", slot.route.name, view.text or view.state)
            _quietly(slot.running.drain, slot)
            self._stop(slot, slot.running)
        if view.state is ClaimState.ELSEWHERE:
            slot.condition.claimed(view.text)
        elif view.state is ClaimState.UNREACHABLE:
            alias = slot.route.claim_alias
            slot.condition.pending(f"{alias} cannot be reached: {view.text}", away=alias)
        elif view.state is ClaimState.FAULTY:
            slot.condition.pending(f"{slot.route.claim_alias}: {view.text}")
        else:
            slot.condition.pending("waiting for the claim")
        slot.is_faulty = view.state is ClaimState.FAULTY
        if self.settings.available_now:
            self._give_up_unclaimed(slot, view)
        return False

    def _give_up_unclaimed(self, slot: Slot, view: ClaimView) -> None:
        """A run with an end does not wait without limit for an unreachable namespace, or for another run."""
        now = self.clock.monotonic()
        slot.unclaimed_since = now if slot.unclaimed_since is None else slot.unclaimed_since
        if now - slot.unclaimed_since >= self.settings.claim_seconds:
            error = scrub(f"no claim within {self.settings.claim_seconds:g} s: {view.text or view.state}")
            slot.condition.failed(now, error, 0.0)
            slot.given_up = True
            log.warning("route %s is given up: %s", slot.route.name, error)

    def _start_if_due(self, slot: Slot) -> None:
        now = self.clock.monotonic()
        if now < slot.due_at or self._starting(now) >= self.settings.starts_at_once:
            return
        if slot.failures_in_a_row:
            log.info("route %s starts again", slot.route.name)
        slot.condition.starting(now)
        slot.started_at = now
        slot.running = self._start(slot.route)

    def _starting(self, now: float) -> int:
        """How many routes were started moments ago and do not receive yet."""
        return sum(
            slot.running is not None
            and now - slot.started_at < self.settings.start_seconds
            and not _is_ready(slot.running)
            for slot in self._slots
        )

    def _watch(self, slot: Slot, running: RunningRoute) -> None:
        active = running.is_active()
        progress = running.progress()
        if progress.paused_reason:
            alias, reason = about(slot.route, progress.paused_reason)
            progress = replace(progress, paused_reason=reason)
        slot.condition.seen(self.clock.monotonic(), progress)
        self._log_note(slot, progress.note)
        if progress.paused_reason:
            slot.condition.away = (alias, scrub(progress.paused_reason))
        if active and self._retries(slot, progress):
            _quietly(running.drain, slot)
            self._stop(slot, running)
            return
        if active:
            stuck_seconds = slot.condition.stuck_seconds(self.clock.monotonic())
            if stuck_seconds >= self.settings.stuck_after_seconds:
                _quietly(running.drain, slot)
                self._stop(slot, running)
                why = f"nothing moved for {stuck_seconds:.0f} s though messages wait"
                self._fail(slot, f"{why}; another receiver may hold them, or their sessions", is_stuck=True)
            return
        failure = running.failure()
        self._stop(slot, running)  # its remains must not overlap with its next start
        if failure:
            self._fail(slot, failure)
        elif self.settings.available_now:
            slot.condition.done()
        else:
            self._fail(slot, "the query ended without being asked to")

    def _log_note(self, slot: Slot, note: str) -> None:
        """Logs a note, once until there is none any more; the status has the latest."""
        if note and not slot.is_noted:
            log.warning("route %s: %s", slot.route.name, scrub(note))
        slot.is_noted = bool(note)

    def _stop(self, slot: Slot, running: RunningRoute) -> None:
        """Stops the running route, and counts its settlements until then."""
        _quietly(running.stop, slot)
        _quietly(lambda: slot.condition.counted(self.clock.monotonic(), running.progress()), slot)
        slot.running = None

    def _retries(self, slot: Slot, progress: RouteProgress) -> bool:
        """Reports a route that failed and restarts by itself like one that is restarted; returns whether it is given up."""
        before, slot.retry_seconds = slot.retry_seconds, progress.retry_in_seconds if progress.error else None
        if slot.retry_seconds is None:
            return False
        if before is not None and slot.retry_seconds <= before:
            return False  # the same failure was reported before
        now, settled = self.clock.monotonic(), slot.condition.counts.settled
        if settled > slot.settled_at_failure or not slot.failures_in_a_row:
            slot.failures_in_a_row = 0
            slot.failing_since = now
        slot.settled_at_failure = settled
        self._failed(slot, scrub(progress.error), slot.retry_seconds)
        if self.settings.available_now and now - slot.failing_since >= self._patience_seconds():
            slot.given_up = True
        return slot.given_up

    def _patience_seconds(self) -> float:
        """How long a route of a run with an end may fail by itself before it is given up: as long as one that is restarted."""
        first, limit = self.settings.retry_first_seconds, self.settings.retry_limit_seconds
        return sum(0.75 * min(limit, first * 2.0**attempt) for attempt in range(self.settings.attempts_limit - 1))

    def _fail(self, slot: Slot, error: str, *, is_stuck: bool = False) -> None:
        now = self.clock.monotonic()
        # The running time of a route that moved no waiting message does not count, nor that of a route in a run with an end.
        counts_time = not (is_stuck or self.settings.available_now)
        was_steady = counts_time and now - slot.started_at >= self.settings.steady_seconds
        if slot.condition.has_moved_since_start() or was_steady:
            slot.backoff.reset()
            slot.failures_in_a_row = 0
        delay_seconds = slot.backoff.next_seconds()
        slot.due_at = now + delay_seconds
        slot.retry_seconds = None
        self._failed(slot, scrub(error), delay_seconds)
        if self.settings.available_now and slot.failures_in_a_row >= self.settings.attempts_limit:
            slot.given_up = True

    def _failed(self, slot: Slot, error: str, delay_seconds: float) -> None:
        slot.failures_in_a_row += 1
        has_changed = error != slot.condition.last_error
        slot.condition.failed(self.clock.monotonic(), error, delay_seconds, named(slot.route, error))
        # The same error is logged at failures 1, 2, 4, 8 ... in a row.
        if has_changed or not slot.failures_in_a_row & (slot.failures_in_a_row - 1):
            log.warning("route %s failed: %s; next try in %.1f s", slot.route.name, error, delay_seconds)

    # ---- ending

    def shut_down(self, on_round: Callable[[], None] | None = None) -> None:
        """Drains all routes, waits for them as long as the settings allow, and stops them."""
        running = [(slot, slot.running) for slot in self._slots if slot.running is not None]
        for slot, route in running:
            slot.condition.draining()
            _quietly(route.drain, slot)
        limit = self.clock.monotonic() + self.settings.drain_seconds
        pause = threading.Event()
        while self.clock.monotonic() < limit and not all(route.drained() for _, route in running):
            for slot, route in running:
                with suppress(Exception):  # as below, where it is logged
                    self._see(slot, route)
            if on_round is not None:
                with suppress(Exception):  # an error of one route must not keep the others from draining
                    on_round()
            pause.wait(min(0.1, self.settings.step_seconds))
        stoppers = [threading.Thread(target=_quietly, args=(route.stop, slot)) for slot, route in running]
        for thread in stoppers:
            thread.start()
        for thread in stoppers:
            thread.join()
        for slot, route in running:
            _quietly(partial(self._see, slot, route), slot)
            slot.running = None
        for slot in self._slots:
            if slot.condition.phase is not Phase.DONE and not slot.given_up:
                slot.condition.stopped()
        if on_round is not None:
            on_round()

    def _see(self, slot: Slot, running: RunningRoute) -> None:
        slot.condition.seen(self.clock.monotonic(), running.progress())

    # ---- report

    def conditions(self) -> list[tuple[Route, Condition]]:
        """Every route with its condition, in the federation's order."""
        return [(slot.route, slot.condition) for slot in self._slots]


def _is_ready(running: RunningRoute) -> bool:
    try:
        return running.progress().ready
    except Exception:  # noqa: BLE001 - it fails where it is watched
        return True


def _quietly(action: Callable[[], None], slot: Slot) -> None:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - a failure of one route must not keep the others from draining
        log.warning("route %s did not end well: %s", slot.route.name, _one_line(error))


def _one_line(error: BaseException) -> str:
    text = str(error) if isinstance(error, IsthmusError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:500]
