"""`ReplicatedSender`: one sender over two namespaces.

What it is: the I/O around the decisions of `isthmus.client.send.replication`: a lane for each namespace, the outboxes, the file of
the roles. The senders for threads and for asyncio differ only in how they wait. See docs/reference/client.md.
A little over 400 lines, half of them the documentation of what the application may call.

Invariants:
    I1. `send_messages` returns only after a namespace has acknowledged the messages, and after the messages that the other one missed are
        on disk, if there is an outbox.
    I2. It waits for one attempt at each namespace at most, and for the disk.
    I3. With an outbox a cancelled or interrupted send is completed: the other namespace gets the messages that one namespace accepted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isthmus.client.credential import blocking
from isthmus.client.endpoint import Endpoint, EndpointLike
from isthmus.client.failure import Failure
from isthmus.client.send.durable_sender import DurableSender
from isthmus.client.send.lane import Attempt, Lane, Sending
from isthmus.client.send.parcel import Parcel
from isthmus.client.send.replication import ACTIVE, PASSIVE, Keep, Mode, Replication, Save, SendResult, Side, Try
from isthmus.client.send.role_state import RoleState
from isthmus.client.send.schedule import scheduled
from isthmus.errors import InvalidArgumentError, OutcomeUnknownError, StoreError

__all__ = ["AsyncReplicatedSender", "ReplicatedSender", "SenderStatistics"]

_log = logging.getLogger(__name__)

_ANY_SIZE_BYTES = 1 << 30  # a message that one namespace accepted is stored for the other, whatever its size
FAIL_OVER_ON = frozenset({Failure.GONE, Failure.UNKNOWN})


@dataclass(frozen=True, slots=True)
class SenderStatistics:
    """Statistics of a `ReplicatedSender` since it was created.

    Attributes:
        sent: messages that a namespace accepted.
        taken: side → messages that it accepted.
        kept: side → messages that were stored in its outbox.
        missed: side → messages that it did not accept and will not get.
        unknown: side → messages whose acknowledgement is missing.
        failed: messages that no namespace accepted.
        swaps: number of role swaps.
        active: the side that is tried first.
        circuits: side → whether its circuit is open, and how often it failed.
    """

    sent: int
    taken: Mapping[str, int]
    kept: Mapping[str, int]
    missed: Mapping[str, int]
    unknown: Mapping[str, int]
    failed: int
    swaps: int
    active: str
    circuits: Mapping[str, Mapping[str, Any]]


class _Base:
    """The common base of the senders for threads and for asyncio.

    Args:
        primary: the namespace that is active at first; see `isthmus.client.endpoint` for the accepted forms.
        secondary: the other namespace.
        entity: queue or topic, of the same name in both.
        mode: "active": every message is sent to both; "passive": to the active one, and after a failure to the other.
        outbox: folder that stores the messages a namespace missed until it accepts them (active mode); None: they are not stored.
        state: file that keeps the roles over a restart (passive mode); None: the primary is active at first.
        attempt_timeout: seconds after which a namespace without an answer counts as unavailable.
        connect_timeout: seconds for the first attempt at a namespace, which has to connect.
        fail_over_on: failures after which the other namespace is tried (passive mode).
        options: further arguments of `ServiceBusClient`, for both namespaces.
    """

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike,
        entity: str,
        mode: Mode = ACTIVE,
        *,
        outbox: str | os.PathLike[str] | None = None,
        state: str | os.PathLike[str] | None = None,
        attempt_timeout: float = 0.8,
        connect_timeout: float = 5.0,
        fail_over_on: Collection[Failure] = FAIL_OVER_ON,
        **options: Any,
    ) -> None:
        if mode not in (ACTIVE, PASSIVE):
            raise InvalidArgumentError(f"mode is {mode!r}; it must be 'active' or 'passive'")
        if outbox is not None and mode != ACTIVE:
            raise InvalidArgumentError("an outbox repairs the other namespace in active mode; passive mode has none")
        if attempt_timeout <= 0 or connect_timeout <= 0:
            raise InvalidArgumentError("attempt_timeout and connect_timeout must be above 0 seconds")
        self._entity = entity
        self._attempt_timeout = attempt_timeout
        self._connect_timeout = max(connect_timeout, attempt_timeout)
        endpoints = {Side.PRIMARY: Endpoint.of(primary, **options), Side.SECONDARY: Endpoint.of(secondary, **options)}
        self._lanes = {side: Lane(endpoint, entity) for side, endpoint in endpoints.items()}
        self._state = None if state is None else RoleState(state)
        self._outboxes = self._open_outboxes(outbox, endpoints)
        self._replication = Replication(
            mode, entity, attempt_timeout, bool(self._outboxes), frozenset(fail_over_on),
            active=Side.PRIMARY if self._state is None else self._state.load(),
        )  # fmt: skip
        self._saving = threading.Lock()
        self._lock = threading.RLock()  # an opening that has ended already calls back at once
        self._counts: dict[str, dict[str, int]] = {
            name: {side.value: 0 for side in Side} for name in ("taken", "pending", "missed", "unknown")
        }
        self._sent = self._failed = 0
        self._warming: Sending | None = None
        self._carried: set[Any] = (
            set()
        )  # threads or tasks: of sends whose callers were interrupted, or may be cancelled (I3)
        for lane in self._lanes.values():
            lane.open_soon()

    def _open_outboxes(
        self, outbox: str | os.PathLike[str] | None, endpoints: Mapping[Side, Endpoint]
    ) -> dict[Side, DurableSender]:
        """One outbox for each side; its earlier messages are delivered."""
        made: dict[Side, DurableSender] = {}
        if outbox is not None:
            for side, endpoint in endpoints.items():
                made[side] = DurableSender(
                    endpoint, self._entity, Path(outbox) / side.value, max_message_bytes=_ANY_SIZE_BYTES
                )
        return made

    @property
    def active(self) -> str:
        """The side that is tried first (passive mode): "primary" or "secondary"."""
        return self._replication.active.value

    def statistics(self) -> SenderStatistics:
        """Counts since the sender was made, and the state of both namespaces."""
        with self._lock:
            counts = {name: dict(values) for name, values in self._counts.items()}
            circuits = {side.value: asdict(circuit.state()) for side, circuit in self._replication.circuits.items()}
            return SenderStatistics(
                self._sent, counts["taken"], counts["pending"], counts["missed"], counts["unknown"],
                self._failed, self._replication.swaps, self._replication.active.value, circuits,
            )  # fmt: skip

    # ---- shared steps

    def _parcel(self, message: Any) -> Parcel:
        return Parcel.of(message)

    def _steps(self) -> Any:
        return self._replication.send(time.monotonic, self._is_behind)

    def _advance(self, steps: Any, answer: Any) -> Any:
        with self._lock:
            return steps.send(answer)

    def _is_behind(self, side: Side) -> bool:
        outbox = self._outboxes.get(side)
        try:
            return outbox is not None and not outbox.is_empty
        except (StoreError, OSError) as error:
            # While the disk fails, no waiting message is delivered: a message sent now overtakes them, but is not lost.
            _log.error("the outbox of %s cannot be checked: %s", side.value, error)
            return False

    def _start(self, effect: Try, parcel: Parcel) -> dict[Side, Sending]:
        started: dict[Side, Sending] = {}
        for side in effect.sides:
            lane = self._lanes[side]
            timeout = self._attempt_timeout if lane.has_been_open else self._connect_timeout
            try:
                started[side] = lane.start(parcel, max(0.05, timeout - effect.spent))
            except RuntimeError as error:  # no thread available: the other side may have one, and accept the messages
                started[side] = lane.not_started(error)
            except ValueError as error:  # closed meanwhile
                if not started:
                    raise
                started[side] = lane.not_started(error)
        return started

    def _warm(self) -> None:
        """Open the link of the standby, if it has none, while messages are sent to the other side; called with the lock taken."""
        now = time.monotonic()
        if self._warming is not None:
            if not self._warming.done.done():
                if self._warming.seconds_left:
                    return
                # The SDK itself would wait for ever for a remote side that accepts a connection and sends nothing.
                self._warming.expire()
            self._warming = None
        standby = self._replication.active.other
        lane = self._lanes[standby]
        if lane.is_open or not self._replication.wants_link(standby, now):
            return
        try:
            opening = lane.start_opening(self._connect_timeout)
        except (ValueError, RuntimeError):  # closed meanwhile, or no thread available
            return
        self._warming = opening

        def note(opened: Future[Attempt]) -> None:
            with self._lock:
                self._replication.opened(standby, opened.result(), time.monotonic())

        opening.done.add_done_callback(note)

    def _count(self, parcel: Parcel, result: SendResult) -> SendResult:
        with self._lock:
            self._warm()
            self._sent += len(parcel)
            for name, values in self._counts.items():
                for side in getattr(result, name):
                    values[side] += len(parcel)
        return replace(result, message_ids=parcel.message_ids)

    def _count_failed(self, parcel: Parcel) -> None:
        with self._lock:
            self._failed += len(parcel)

    def _keep(self, side: Side, parcel: Parcel) -> dict[Side, Attempt] | None:
        try:
            self._outboxes[side].keep(parcel)
        except (StoreError, OutcomeUnknownError, OSError, RuntimeError) as error:
            _log.error("%s does not get %d messages: %s", side.value, len(parcel), error)
            return {side: Attempt(error, Failure.FULL, is_definite=not isinstance(error, OutcomeUnknownError))}
        return None

    def _keep_roles(self, active: Side) -> None:
        _log.warning("roles swapped: entity=%s active=%s", self._entity, active.value)
        if self._state is not None:
            with self._saving:  # two threads may arrive here in another order than that of their swaps
                self._state.save(self._replication.active)

    def _save(self, active: Side) -> None:
        try:
            self._keep_roles(active)
        except StoreError as error:
            # The message was accepted; the roles are valid in this process, and after a restart a failure restores them.
            _log.error("%s", error)

    def _switch(self, side: str) -> Side:
        try:
            wanted = Side(side)
        except ValueError:
            raise InvalidArgumentError(f"side is {side!r}; it must be 'primary' or 'secondary'") from None
        with self._lock:
            if self._replication.active is not wanted:
                self._replication.active = wanted
                self._replication.swaps += 1
            self._replication.circuits[wanted].succeeded()
        return wanted

    def _close(self) -> None:
        for lane in self._lanes.values():
            lane.close()
        for outbox in self._outboxes.values():
            outbox.close()


class ReplicatedSender(_Base):
    """Sends each message to two namespaces, or to the available one of two. Threads may share one.

    The arguments are those of this module's base class; see docs/reference/client.md.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def send_messages(self, message: Any) -> SendResult:
        """Send a message, a list of messages or a `ServiceBusMessageBatch`, as the SDK's sender does.

        Messages of a list are sent as one batch: a namespace accepts all of them or none.

        Args:
            message: messages of azure-servicebus; a message without a MessageId gets one for this call.

        Returns:
            The namespaces that accepted them, and those that are pending.

        Raises:
            RegionsUnavailableError: no namespace accepted them.
            ServiceBusError: the SDK's own error where the messages are refused, or the entity or its key is wrong.
        """
        parcel = self._parcel(message)
        if not parcel:
            return SendResult(active=self.active)
        return self._send(self._steps(), {}, parcel)

    def _send(
        self, steps: Any, started: dict[Side, Sending], parcel: Parcel, keeping: Side | None = None
    ) -> SendResult:
        """Carry out steps; they wait for the attempts in `started`, or for the outbox of the side `keeping`."""
        answer: Any = None
        try:
            while True:
                if started:
                    answer = {side: sending.wait() for side, sending in started.items()}
                    started = {}
                elif keeping is not None:
                    answer = self._keep(keeping, parcel)
                    keeping = None
                effect = self._advance(steps, answer)
                answer = None
                if isinstance(effect, Try):
                    started = self._start(effect, parcel)
                elif isinstance(effect, Keep):
                    keeping = effect.side
                elif isinstance(effect, Save):
                    self._save(effect.active)
        except StopIteration as stop:
            return self._count(parcel, stop.value)
        except BaseException:
            if (started or keeping is not None) and self._outboxes:  # interrupted while it waited (I3)
                self._carry_on(steps, started, parcel, keeping)
            else:
                self._count_failed(parcel)
            raise

    def _carry_on(self, steps: Any, started: dict[Side, Sending], parcel: Parcel, keeping: Side | None) -> None:
        def run() -> None:
            with suppress(Exception):  # counted; its caller has gone
                self._send(steps, started, parcel, keeping)
            self._carried.discard(thread)

        thread = threading.Thread(target=run, name="isthmus-carried-send")
        self._carried.add(thread)
        try:
            thread.start()
        except RuntimeError:  # no thread available
            self._carried.discard(thread)
            self._count_failed(parcel)

    def schedule_messages(self, messages: Any, schedule_time_utc: datetime) -> SendResult:
        """Send messages that are enqueued at a time; unlike the SDK's method, it returns no sequence numbers to cancel them by."""
        return self.send_messages(scheduled(messages, schedule_time_utc))

    def switch_to(self, side: str) -> None:
        """Make a side the active one (passive mode), e.g. to return to the primary after an outage.

        Args:
            side: "primary" or "secondary".

        Raises:
            StoreError: the roles have changed, but their file could not be written: they do not survive a restart.
        """
        self._keep_roles(self._switch(side))

    def close(self) -> None:
        """Close both connections; messages in the outbox stay there for the next sender. Interrupted sends are waited for."""
        for thread in list(self._carried):
            thread.join()
        self._close()


class AsyncReplicatedSender(_Base):
    """`ReplicatedSender` for asyncio; threads serve its connections, so that none can block the loop.

    If a credential is one for asyncio, create the sender where an event loop runs.
    """

    def __init__(
        self, primary: EndpointLike, secondary: EndpointLike, entity: str, mode: Mode = ACTIVE, **options: Any
    ) -> None:
        super().__init__(blocking(primary), blocking(secondary), entity, mode, **options)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def send_messages(self, message: Any) -> SendResult:
        """As `ReplicatedSender.send_messages`. Where it is cancelled, namespaces may have the messages nevertheless."""
        parcel = self._parcel(message)
        if not parcel:
            return SendResult(active=self.active)
        if not self._outboxes:
            return await self._send(parcel)
        carried = asyncio.create_task(self._send(parcel))
        self._carried.add(carried)
        carried.add_done_callback(self._carried.discard)
        return await asyncio.shield(carried)

    async def _send(self, parcel: Parcel) -> SendResult:
        steps, answer = self._steps(), None
        try:
            while True:
                effect = self._advance(steps, answer)
                answer = None
                if isinstance(effect, Try):
                    started = self._start(effect, parcel)
                    attempts = await asyncio.gather(*(_wait(sending) for sending in started.values()))
                    answer = dict(zip(started, attempts, strict=True))
                elif isinstance(effect, Keep):
                    answer = await asyncio.to_thread(self._keep, effect.side, parcel)
                elif isinstance(effect, Save):
                    await asyncio.to_thread(self._save, effect.active)
        except StopIteration as stop:
            return self._count(parcel, stop.value)
        except BaseException:
            self._count_failed(parcel)
            raise

    async def schedule_messages(self, messages: Any, schedule_time_utc: datetime) -> SendResult:
        """As `ReplicatedSender.schedule_messages`."""
        return await self.send_messages(scheduled(messages, schedule_time_utc))

    async def switch_to(self, side: str) -> None:
        """As `ReplicatedSender.switch_to`."""
        await asyncio.to_thread(self._keep_roles, self._switch(side))

    async def close(self) -> None:
        """As `ReplicatedSender.close`; sends whose callers were cancelled are waited for."""
        if self._carried:
            await asyncio.wait(self._carried)  # unlike `gather`, it cancels none where it is cancelled itself
        await asyncio.to_thread(self._close)


async def _wait(sending: Sending) -> Attempt:
    """The outcome of an attempt, without blocking the loop."""
    done, _ = await asyncio.wait([asyncio.wrap_future(sending.done)], timeout=sending.seconds_left)
    return next(iter(done)).result() if done else sending.expire()
