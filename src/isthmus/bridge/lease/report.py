"""The report of a route, from the state of its lease machine.

What it is: which state a route is in, and the values of its `RouteReport`. What it is not: the time of a report (`lease`), or its receiver.

Invariants:
    I1. A route whose claim is not confirmed is never reported as running.
"""

from __future__ import annotations

import math

from isthmus.bridge.delivery_event import DIVERT
from isthmus.bridge.flow.rate_limit import RateLimit
from isthmus.bridge.lease.message_account import MessageAccount
from isthmus.bridge.lease.state import EndState, Phase, SourceState, Trouble
from isthmus.bridge.report import RouteReport, RouteState

__all__ = ["UNCONFIRMED", "report_of"]

UNCONFIRMED = (
    "the driver has not confirmed in time that it holds the claim of the task; it is frozen, gone, or cannot reach the namespace of "
    "the claim. Nothing is moved until it does"
)


def report_of(
    phase: Phase,
    messages: MessageAccount,
    source: SourceState,
    trouble: Trouble,
    end: EndState,
    *,
    window: int,
    rate: RateLimit,
    paused: str,
    is_confirmed: bool,
    now: float,
    clock_offset_ms: int | None,
) -> RouteReport:
    """The report of a route.

    Args:
        phase: of its opening.
        messages: their account.
        source: the connection to it.
        trouble: why the route is not carried.
        end: the state of its end.
        window: messages that may be outstanding.
        rate: its rate limit.
        paused: why its target accepts nothing; empty where it does.
        is_confirmed: whether its claim is, where it needs one.
        now: monotonic seconds.
        clock_offset_ms: from its source.
    """
    counts, unsettled = messages.counts, messages.unsettled
    retry_at = min(trouble.retry_at, source.reopen_at) if phase is not Phase.ENDED else math.inf
    return RouteReport(
        state=_state(phase, source, end, paused, is_confirmed),
        settled=counts.settled,
        moved=counts.moved,
        dead_lettered=counts.disposed["dead-letter"],
        discarded=counts.disposed["complete"],
        diverted=counts.disposed[DIVERT],
        resent=counts.resent,
        outstanding=unsettled.outstanding,
        is_awaited=messages.is_awaited and unsettled.outstanding > 0,
        head=messages.head,
        window=window,
        lag_ms=messages.lag_ms(now, clock_offset_ms),
        received_bytes=counts.received_bytes,
        paused=paused or ("" if is_confirmed else UNCONFIRMED),
        blocked_by=source.blocked_by,
        note=source.note,
        error=trouble.text or source.lost,
        retry_in_seconds=round(max(0.0, retry_at - now), 3) if retry_at < math.inf else 0.0,
        set_aside=tuple(counts.set_aside),
        is_exhausted=end.is_complete,
        limit=rate.text,
        limit_per_second=rate.per_second if rate.text else -1.0,
    )


def _state(phase: Phase, source: SourceState, end: EndState, paused: str, is_confirmed: bool) -> RouteState:
    if phase is Phase.ENDED:
        return RouteState.ENDED
    if end.is_begun:
        return RouteState.ENDING
    if not is_confirmed:
        return RouteState.PAUSED
    if phase is Phase.WAITING or source.lost:
        return RouteState.RETRYING
    if phase is not Phase.RUNNING:
        return RouteState.OPENING
    return RouteState.PAUSED if paused else RouteState.RUNNING
