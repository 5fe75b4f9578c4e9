"""A receiver of an active-passive pair: reads the primary, fails over to the secondary, and fails back without losing messages.

What it is: `FailoverReceiver` for threads, with the methods of azure-servicebus's receiver; `isthmus.client.failover_receiver_async` is the
same for asyncio. What it is not: the decisions (`isthmus.client.receive.failover`), the connections (`isthmus.client.receive.branch`).
How to use it, with a picture of its states: docs/how-to/fail-over-a-receiver.md. Over 400 lines, a third of them the
documentation of its arguments.

Invariants:
    I1. The invariants of `ReplicatedReceiver` hold: a message that was handled at one namespace is settled unseen at the other.
    I2. Where a file is given, the state is on disk before any effect of it, unless the disk refuses it, which is logged; a restarted
        receiver continues from that state.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from isthmus.client.endpoint import Endpoint, EndpointLike
from isthmus.client.failure import Failure, classify
from isthmus.client.receive.branch import LEAST_BYTES, break_connection
from isthmus.client.receive.engine import Engine
from isthmus.client.receive.face import ReceiverStatistics, TwoRegionReceiver, checked_source
from isthmus.client.receive.failover import (
    PRIMARY,
    SECONDARY,
    Effect,
    Failover,
    FailoverState,
    FailoverView,
    Read,
    Save,
)
from isthmus.client.receive.failover_file import FailoverFile, FailoverStateError
from isthmus.client.receive.message_key import Arrived, enqueued_ms, is_proven_copy, was_enqueued_ms
from isthmus.client.receive.watermark import Watermark
from isthmus.client.seen import Bounds, SeenStore, is_opened_here, open_seen
from isthmus.errors import InvalidArgumentError
from isthmus.message.name import ORIGIN, TIME

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

__all__ = ["FailoverReceiver", "FailoverState", "FailoverStateError", "FailoverStatistics", "FailoverView"]

_LOGGER = logging.getLogger(__name__)
_TICK_SECONDS = 0.2
_SAVE_SECONDS = 1.0
_AGAIN_SECONDS = 1.0
# Within this time every message that an earlier link to the primary, or another process, had unsettled is redelivered: a lock lasts 5 min at most.
_LOCK_SECONDS = 310.0
# How far the clocks of this machine and of the secondary may differ, beyond the difference that message times show.
_CAUGHT_UP_MS = 10_000
_PARTITION_SHIFT = 48  # the upper bits of a sequence number are its partition


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverStatistics:
    """Statistics of a failover receiver since it was opened.

    Attributes:
        state: see `FailoverState`.
        reads: the namespace that is read: `primary` or `secondary`.
        changes: how often the state changed.
        watermark: the enqueued time up to which every message at the primary was handled, as far as this receiver knows.
        receiver: counts of messages.
    """

    state: FailoverState
    reads: str
    changes: int
    watermark: datetime | None
    receiver: ReceiverStatistics


class FailoverReceiver(TwoRegionReceiver):
    """Reads an entity at the primary, and at the secondary while the primary is unavailable.

    A message that was handled at one is not handed over from the other. The receiver recognises it by the list of seen messages, and, if
    `watermark_drift` is given, by its enqueued time.

    Args:
        primary: connection string, `(host, credential)`, `env:NAME`, `file:/path`, or an `Endpoint`.
        secondary: the other namespace, in the same forms.
        entity: queue or topic, the same at both.
        subscription: of the topic.
        seen: the list of handled messages; see `ReplicatedReceiver`. Competing receivers share one list.
        state: a file that keeps the state over restarts; None: each start begins at the primary.
        fail_over_after: how long the primary may not answer; None: only `fail_over()` or `trigger` fails over.
        fail_back_after: how long the primary has to answer before failing back begins; None: only `fail_back()` or `trigger` begins it.
        trigger: a function that decides: called once a second with a `FailoverView`; returns `primary`, `secondary`, or None for no preference.
        publishers: called with `primary` or `secondary` when publishers have to switch; returns when they have switched. If it raises, it is
            called again. None: the caller of `fail_back()` has already switched them.
        on_change: called with the new `FailoverState` after each change.
        watermark_drift: skip copies at the secondary that were enqueued at the primary longer than this before the watermark; an allowance
            for clocks that differ. None: skip by the list alone. Use it only where this receiver is the only consumer: it does not know which
            messages another consumer has unsettled.
        drain_for: when failing back, the secondary counts as drained after no message sent to it has arrived there for this long.
        probe_interval: how often a namespace that sends no messages is probed with a peek.
        probe_timeout: how long it may take to answer a probe.
        session_id: see `ReplicatedReceiver`.
        sub_queue: see there.
        max_wait_time: see there.
        prefetch_count: see there.
        bounds: see there.
        max_lock_renewal: see there.
        connect_timeout: see there.
        receiver_options: see there.

    Raises:
        InvalidArgumentError: an argument is wrong.
        SeenStoreError: the list cannot be opened.
        FailoverStateError: the file cannot be read.
    """

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike,
        entity: str,
        subscription: str | None = None,
        *,
        seen: str | PathLike[str] | SeenStore | None = None,
        state: str | PathLike[str] | None = None,
        fail_over_after: timedelta | None = None,
        fail_back_after: timedelta | None = None,
        trigger: Callable[[FailoverView], str | None] | None = None,
        publishers: Callable[[str], object] | None = None,
        on_change: Callable[[FailoverState], object] | None = None,
        watermark_drift: timedelta | None = None,
        drain_for: timedelta = timedelta(seconds=5),
        probe_interval: timedelta = timedelta(seconds=2),
        probe_timeout: timedelta = timedelta(seconds=5),
        session_id: str | None = None,
        sub_queue: str | None = None,
        max_wait_time: float | None = None,
        prefetch_count: int = 20,
        bounds: Bounds | None = None,
        max_lock_renewal: timedelta = timedelta(minutes=5),
        connect_timeout: float = 15.0,
        receiver_options: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (
            ("fail_over_after", fail_over_after),
            ("fail_back_after", fail_back_after),
            ("drain_for", drain_for),
            ("probe_interval", probe_interval),
            ("probe_timeout", probe_timeout),
        ):
            if value is not None and value <= timedelta(0):
                raise InvalidArgumentError(f"{name} is {value}; it has to be positive")
        self._endpoints = {PRIMARY: Endpoint.of(primary), SECONDARY: Endpoint.of(secondary)}
        self._source = checked_source(entity, subscription, sub_queue, session_id, prefetch_count, receiver_options)
        self._max_wait_time = max_wait_time
        self._connect_timeout = connect_timeout
        self._file = None if state is None else FailoverFile(Path(state))
        begin, watermark_ms = (FailoverState.PRIMARY, 0) if self._file is None else self._file.read()
        self._machine = Failover(
            begin,
            fail_over_after=None if fail_over_after is None else fail_over_after.total_seconds(),
            fail_back_after=None if fail_back_after is None else fail_back_after.total_seconds(),
            drain_seconds=drain_for.total_seconds(),
        )
        self._trigger = trigger
        self._publishers = publishers
        self._on_change = on_change
        self._watermark = Watermark(watermark_ms)
        self._paused_until = math.inf  # the watermark
        # Whether messages of the primary may be unsettled at another receiver: unless this is the first receiver with this file.
        self._is_second = self._file is None or not self._file.is_new
        if self._is_second:
            self._watermark.pause()
        self._drift_ms = None if watermark_drift is None else watermark_drift // timedelta(milliseconds=1)
        self._probe_seconds = probe_interval.total_seconds()
        self._probe_timeout = probe_timeout.total_seconds()
        self._probes_primary = fail_back_after is not None or trigger is not None
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._local: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
        self._missing: dict[object, float] = {}
        self._keys: weakref.WeakKeyDictionary[Any, object] = weakref.WeakKeyDictionary()
        # An earlier receiver was killed while it read the secondary.
        self._may_be_unsettled_elsewhere = begin is not FailoverState.PRIMARY
        self._arrived_at = self._tried_at = self._full_at = time.monotonic()
        self._latest: dict[
            int, tuple[float, int]
        ] = {}  # by partition: when a message arrived, the latest enqueued time
        self._ahead_ms = 0  # the secondary's clock is at least this far ahead of this machine's
        # When publishers switched; a receiver that starts in DRAINING knows only that it was earlier.
        self._switched_ms = time.time_ns() // 1_000_000 if begin is FailoverState.DRAINING else 0
        self._answered_at = 0.0  # when the last answered probe began
        self._probe: Future[Any] | None = None
        self._probed = ""
        self._came_bytes = 0  # from the namespace that is read, by the last message or look
        self._prober: threading.Thread | None = None
        self._probing: Any = None
        self._switching_to = ""
        self._tried_primary_at = 0.0
        self._engine = Engine(
            self._endpoints,
            self._source,
            open_seen(seen, self._source.path, bounds),
            prefetch=prefetch_count,
            max_renewal_seconds=max_lock_renewal.total_seconds(),
            connect_seconds=connect_timeout,
            closes_seen=is_opened_here(seen),
            order_wait_seconds=0.0,
            skip=self._sees,
            on_lost=self._on_lost,
            on_open=self._on_open,
            on_settled=self._on_settled,
        )
        self._thread = threading.Thread(target=self._run, name="isthmus-failover", daemon=True)

    def __enter__(self) -> Self:
        """Start; returns once the namespace that is read is connected, or after `connect_timeout`.

        Raises:
            ServiceBusError: the namespace answered that the entity is missing or not permitted.
        """
        try:
            self._engine.start(())
            with self._lock:
                self._carry_out(self._machine.start(time.monotonic()))
            self._thread.start()
            self._engine.wait_open(self._connect_timeout)
        except BaseException:  # also an interruption: no caller could close what was started
            self.close()
            raise
        return self

    def close(self) -> None:
        """Stop: messages that are not settled are delivered again. Blocks for a few seconds at most."""
        self._closing.set()
        self._wake.set()
        self._engine.close()
        if self._thread.ident is not None:
            self._thread.join(_AGAIN_SECONDS)
        with self._lock:
            self._save()
            self._file = None  # another receiver may continue from the file; a late answer must not change it

    # ---- triggers

    @property
    def state(self) -> FailoverState:
        """The current state."""
        return self._machine.state

    def fail_over(self) -> None:
        """Read the secondary from now on, e.g. for a drill or on an operator's decision. No effect if it is read already."""
        with self._lock:
            self._carry_out(self._machine.fail_over_requested())

    def fail_back(self, *, at_once: bool = False) -> None:
        """Begin to fail back: publishers, drain, consumers; `state` shows when it is done. No effect while failing back.

        Args:
            at_once: read the primary now; messages that were sent to the secondary and are not handled stay there.
        """
        with self._lock:
            self._carry_out(self._machine.fail_back_requested(at_once=at_once))

    def statistics(self) -> FailoverStatistics:
        """Statistics since the receiver was opened."""
        with self._lock:
            at_ms = self._watermark.at_ms
            return FailoverStatistics(
                state=self._machine.state,
                reads=self._machine.state.reads,
                changes=self._machine.changes,
                watermark=datetime.fromtimestamp(at_ms / 1000, UTC) if at_ms else None,
                receiver=ReceiverStatistics.of(self._engine),
            )

    # ---- callbacks of the engine

    def _sees(self, message: ServiceBusReceivedMessage, facts: Arrived, side: str) -> bool:
        """A message arrived. Returns whether it was handled before, by the watermark."""
        with self._lock:
            is_copy = ORIGIN in facts.properties or TIME in facts.properties
            if facts.is_data and not is_proven_copy(facts):
                is_copy = False  # an application published it with a copy's properties
            is_local = side == SECONDARY and not is_copy
            now = self._arrived_at = time.monotonic()
            self._came_bytes = self._engine.received_bytes(side)
            if side == self._machine.state.reads:
                self._machine.arrived(is_local=is_local, now=now)
            # Not by the number in the topic: rules may have made several copies of one message.
            key = (message.sequence_number or 0, facts.enqueued_ms)
            if side == PRIMARY:
                self._keys[message] = key
                self._watermark.arrived(key, facts.enqueued_ms)
                return False
            at_ms = enqueued_ms(message)
            partition = (message.sequence_number or 0) >> _PARTITION_SHIFT
            self._latest[partition] = (now, max(self._latest.get(partition, (0.0, 0))[1], at_ms))
            self._ahead_ms = max(self._ahead_ms, at_ms - time.time_ns() // 1_000_000)
            self._missing.pop(key, None)
            if is_local:
                self._local[message] = key
            if self._drift_ms is None:
                return False
            # By the primary's clock: the enqueued time at another entry point does not show what the primary had delivered.
            was_ms = was_enqueued_ms(facts, self._engine.identity_of(PRIMARY), self._source.entity)
            return was_ms is not None and was_ms < self._watermark.at_ms - self._drift_ms

    def _on_settled(self, message: ServiceBusReceivedMessage, is_handled: bool) -> None:
        with self._lock:
            key = self._local.pop(message, None)
            if is_handled:
                self._missing.pop(key, None)
                self._watermark.handled(self._keys.get(message))

    def _on_open(self, side: str) -> None:
        with self._lock:
            now = self._arrived_at = time.monotonic()
            self._came_bytes = self._engine.received_bytes(side)
            self._machine.answered(side, now)
            if side == PRIMARY:
                if self._is_second:
                    self._watermark.pause()
                    self._paused_until = now + _LOCK_SECONDS
                self._is_second = True
            elif self._may_be_unsettled_elsewhere:
                self._may_be_unsettled_elsewhere = False
                self._missing[SECONDARY] = now + _LOCK_SECONDS

    def _on_lost(self, side: str, failure: Failure) -> None:
        if side == SECONDARY:
            with self._lock:  # they are redelivered, unless they are handled meanwhile
                self._missing.update(dict.fromkeys(self._local.values(), time.monotonic() + _LOCK_SECONDS))
        if failure.region_may_be_gone:
            self._failed(side)

    def _failed(self, side: str) -> None:
        with self._lock:
            self._carry_out(self._machine.failed(side, time.monotonic()))

    def _answered(self, side: str) -> None:
        with self._lock:
            self._machine.answered(side, time.monotonic())

    # ---- the thread

    def _run(self) -> None:
        asked_at = saved_at = time.monotonic()
        while not self._closing.is_set():
            self._wake.wait(_TICK_SECONDS)
            self._wake.clear()
            now = time.monotonic()
            try:
                self._poll(now)
                if now - asked_at >= _AGAIN_SECONDS:
                    asked_at = now
                    self._ask_trigger()
                if now - saved_at >= _SAVE_SECONDS:
                    saved_at = now
                    self._save()
            except Exception:  # an error in one cycle must not prevent failing over in the next
                _LOGGER.exception("failover receiver of %s", self._source.entity)

    def _poll(self, now: float) -> None:
        self._probe_read(now)
        self._probe_primary(now)
        with self._lock:
            if now >= self._paused_until:
                self._paused_until = math.inf
                self._watermark.resume()
            local = self._engine.unsettled(list(self._local))
            if not self._engine.has_room(self._machine.state.reads):
                self._full_at = now
            is_caught_up = self._is_caught_up(now)
            self._carry_out(self._machine.tick(now, local_unsettled=local, is_caught_up=is_caught_up))

    def _is_caught_up(self, now: float) -> bool:
        """Messages of a partition arrive in the order in which they were enqueued. A message enqueued after the switch shows that all earlier
        ones arrived, and so does a quiet period while there is room for a message. Messages that were unsettled before may arrive later, once
        their lock has ended.
        """
        self._missing = {key: until for key, until in self._missing.items() if until > now}
        if self._missing:
            return False
        since = max(self._arrived_at, self._full_at)
        quiet_seconds = max(_AGAIN_SECONDS, self._probe_seconds)
        if now - since >= quiet_seconds and self._answered_at > since:
            return True
        after_ms = self._switched_ms + _CAUGHT_UP_MS + self._ahead_ms
        latest = self._latest.values()
        return any(at_ms >= after_ms for _, at_ms in latest) and all(
            at_ms >= after_ms or now - max(arrived_at, self._full_at) >= quiet_seconds for arrived_at, at_ms in latest
        )

    def _ask_trigger(self) -> None:
        if self._trigger is None:
            return
        wish = self._trigger(self._machine.view(time.monotonic()))
        if wish == SECONDARY:
            self.fail_over()
        elif wish == PRIMARY:
            self.fail_back()
        elif wish is not None:
            _LOGGER.error(
                "the trigger of the failover receiver returned %r; it has to be primary, secondary or None", wish
            )

    def _probe_read(self, now: float) -> None:
        """Probe a namespace that is read and sends nothing, not even a part of a message; no answer in time is a failure, also while the SDK's call does not return."""
        side = self._machine.state.reads
        if self._probe is not None and self._probed != side:
            self._probe = None  # it began before the change
        if self._probe is not None:
            if self._probe.done():
                error = self._probe.exception()
                self._probe = None
                if error is None or not classify(error).region_may_be_gone:
                    self._answered_at = self._tried_at
                    self._answered(side)
                else:
                    self._failed(side)
            elif now - self._tried_at > self._probe_timeout + _AGAIN_SECONDS:
                self._failed(side)
        elif now - max(self._arrived_at, self._tried_at) >= self._probe_seconds:
            self._tried_at = now
            came, self._came_bytes = self._came_bytes, self._engine.received_bytes(side)
            if self._came_bytes >= came + LEAST_BYTES:
                # A large message is on its way, and the answer would wait behind it.
                self._answered(side)
                return
            timeout = self._probe_timeout
            self._probed = side
            self._probe = self._engine.begin(side, lambda receiver: receiver.peek_messages(1, timeout=timeout))

    def _probe_primary(self, now: float) -> None:
        """While the secondary is read, probe whether the primary answers again."""
        is_on_the_way = self._machine.state in (FailoverState.PUBLISHERS, FailoverState.DRAINING)
        if self._machine.state is FailoverState.PRIMARY or not (self._probes_primary or is_on_the_way):
            return
        if self._prober is not None and self._prober.is_alive():
            if now - self._tried_primary_at > 2 * self._probe_timeout + _AGAIN_SECONDS:
                break_connection(self._probing)
            return
        if now - self._tried_primary_at < self._probe_seconds:
            return
        self._tried_primary_at = now
        self._prober = threading.Thread(target=self._peek_primary, name="isthmus-failover-probe", daemon=True)
        self._prober.start()

    def _peek_primary(self) -> None:
        try:
            with self._endpoints[PRIMARY].client(retry_total=0, try_timeout=self._probe_timeout) as client:
                self._probing = self._source.browser(client)
                with self._probing as receiver:
                    receiver.peek_messages(1, timeout=self._probe_timeout)
        except Exception as error:  # noqa: BLE001 - judged by its class
            if classify(error).region_may_be_gone:
                self._failed(PRIMARY)
                return
        self._answered(PRIMARY)

    # ---- effects

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Save):
                _LOGGER.info("failover receiver of %s: %s", self._source.entity, effect.state.value)
                self._save()
                if self._on_change is not None:
                    threading.Thread(target=self._on_change, args=(effect.state,), daemon=True).start()
            elif isinstance(effect, Read):
                self._probe, self._came_bytes = None, 0
                self._arrived_at = self._tried_at = time.monotonic()
                other = SECONDARY if effect.side == PRIMARY else PRIMARY
                self._local.clear()
                self._missing.clear()
                self._engine.leave_side(other)
                self._engine.open_side(effect.side)
            else:
                self._switch_publishers(effect.side)
        if effects:  # otherwise each cycle of the thread would wake it for the next
            self._wake.set()

    def _switch_publishers(self, side: str) -> None:
        if self._publishers is None:
            self._published(side)
            return
        self._switching_to = side
        threading.Thread(target=self._run_publishers, args=(side, self._publishers), daemon=True).start()

    def _run_publishers(self, side: str, publishers: Callable[[str], object]) -> None:
        while not self._closing.is_set():
            try:
                publishers(side)
            except Exception:
                _LOGGER.exception("publishers could not be switched to the %s; they are switched again later", side)
                self._closing.wait(_AGAIN_SECONDS)
            else:
                if self._switching_to == side:
                    self._published(side)
                    return
            # A newer call may have begun and returned while this one ran: the newer result counts.
            side = self._switching_to

    def _published(self, side: str) -> None:
        with self._lock:
            self._switched_ms = time.time_ns() // 1_000_000
            self._carry_out(self._machine.published(side, time.monotonic()))

    def _save(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.write(self._machine.state, self._watermark.at_ms)
