"""A receiver of several namespaces: their branches, the list of seen messages, and the merge machine.

What it is: the thin shell that `ReplicatedReceiver` and `FailoverReceiver` share, for threads and for asyncio: it passes events to
`Merge` under one lock, and effects to branches and list. What it is not: decisions. Over 400 lines, half of them the documentation of the
methods that the application may call.

Order of one message: claimed in the list; handed over; handled by the application; marked as handled, durably; settled at its
namespace, and its copy at the other. A kill between any two of these steps repeats at most the steps before the mark.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from isthmus.client import sdk
from isthmus.client.endpoint import Endpoint
from isthmus.client.failure import Failure
from isthmus.client.receive.branch import Branch, BranchState, Source
from isthmus.client.receive.claims import Claims
from isthmus.client.receive.merge import Action, Ask, Counts, Delivery, Effect, Merge, Release, Renew, Settle
from isthmus.client.receive.message_key import Arrived, arrived, keys_of
from isthmus.client.seen.store import Keys, SeenStore, SeenStoreError, Verdict

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from isthmus.client.receive.next_session import FoundSession

__all__ = ["Engine", "EngineState"]

_LOGGER = logging.getLogger(__name__)
_STOP_SECONDS = 5.0
SETTLE_SECONDS = 30.0
_REFUSALS = (Failure.MISSING, Failure.FORBIDDEN, Failure.REFUSED, Failure.MISUSE)
Skip = Callable[["ServiceBusReceivedMessage", Arrived, str], bool]
_Bound = tuple[Effect, "ServiceBusReceivedMessage | None"]


@dataclass(slots=True)
class _Handed:
    """A message that was handed over to the application."""

    number: int
    side: str
    keys: Keys
    is_settled: bool = False
    is_deferred: bool = False
    is_handled: bool = False
    attempts: int = 0
    marked: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class EngineState:
    """State of a receiver: see `Counts`, and:

    Attributes:
        counts: of messages.
        waiting: messages that are ready to be handed over.
        unsettled: deliveries that are not settled.
        held_by_others: deliveries of messages that another receiver has claimed, or about which the list has not answered.
        skipped: deliveries that were settled because they are older than the watermark.
        handled_twice: messages that were handled here and, according to the list, by another receiver: their
            handler took longer than the lock or the lease.
        forgotten_early: ids that the list forgot within its window, since there were too many.
        seen_errors: how often the list failed.
        namespaces: the state of each namespace.
    """

    counts: Counts
    waiting: int
    unsettled: int
    held_by_others: int
    skipped: int
    handled_twice: int
    forgotten_early: int
    seen_errors: int
    namespaces: Mapping[str, BranchState]


class Engine:
    """Branches, list and machine.

    Args:
        endpoints: the namespaces by name; the first leads.
        source: the entity that is read at each.
        seen: the list.
        closes_seen: whether `close` closes the list.
        prefetch: see `Merge`.
        max_renewal_seconds: see `Merge`.
        order_wait_seconds: see `Merge`.
        skip: returns whether a message was handled before, even if the list does not know it.
        on_lost: called with each failure of a namespace.
        on_open: called when a namespace is connected.
        on_settled: called with each message that the application handled or abandoned, and with each that is settled because it was handled before.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        source: Source,
        seen: SeenStore,
        *,
        prefetch: int = 20,
        max_renewal_seconds: float = 300.0,
        order_wait_seconds: float = 1.0,
        connect_seconds: float = 15.0,
        closes_seen: bool = True,
        skip: Skip | None = None,
        on_lost: Callable[[str, Failure], None] = lambda side, failure: None,
        on_open: Callable[[str], None] = lambda side: None,
        on_settled: Callable[[ServiceBusReceivedMessage, bool], None] = lambda message, is_handled: None,
    ) -> None:
        self._claims = Claims(seen, self._on_lapse, self._on_beat, closes=closes_seen)
        self._endpoints = dict(endpoints)
        self._source = replace(source, prefetch=prefetch)
        self._connect_seconds = connect_seconds
        self._skip = skip
        self._on_lost = on_lost
        self._on_open = on_open
        self._on_settled = on_settled
        self._merge = Merge(
            tuple(endpoints),
            prefetch=prefetch,
            keeps_order=source.session_id is not None,
            order_wait_seconds=order_wait_seconds,
            max_renewal_seconds=max_renewal_seconds,
        )
        self._changed = threading.Condition()
        self._branches: dict[str, Branch] = {}
        self._opened: dict[str, tuple[Any, Any]] = {}
        self._left: list[Branch] = []
        self._past: dict[str, BranchState] = {}
        self._identities: dict[str, str] = {}
        self._refusals: dict[str, BaseException] = {}
        self._messages: dict[int, ServiceBusReceivedMessage] = {}
        self._claiming: set[int] = set()
        self._handed: weakref.WeakKeyDictionary[Any, _Handed] = weakref.WeakKeyDictionary()
        self._listeners: list[Callable[[], None]] = []
        self._number = self._wanted = 0
        self._skipped = self._handled_twice = 0
        self._stopping = threading.Event()

    # ---- start and end

    def start(self, sides: Iterable[str] | None = None) -> None:
        """Start with these namespaces, by default all."""
        if self.is_closed:
            self._close_opened()
            return
        self._claims.start()
        for side in self._endpoints if sides is None else sides:
            self.open_side(side)

    def use_session(self, found: FoundSession) -> None:
        """Read this session with the receivers that are open for it; called before `start`."""
        self._source = replace(self._source, session_id=found.session_id)
        self._opened = found.opened

    def open_side(self, side: str) -> None:
        """Read a namespace; no effect if it is read, or after the end."""
        with self._changed:
            if side in self._branches or self.is_closed:
                return
            branch = self._branches[side] = Branch(
                side, self._endpoints[side], self._source, self, connect_seconds=self._connect_seconds,
                opened=self._opened.pop(side, None),
            )  # fmt: skip
            branch.start()  # before `close` can stop it and wait for it

    def wait_open(self, seconds: float) -> None:
        """Block until a namespace is connected, `seconds` at most.

        Raises:
            Exception: the answer of every namespace: the entity is missing, it is not permitted, or the call is wrong.
        """

        def is_decided() -> bool:
            return bool(self._identities) or len(self._refusals) == len(self._branches)

        with self._changed:
            self._changed.wait_for(is_decided, seconds)
            refused = list(self._refusals.values()) if not self._identities and is_decided() else []
        if refused:
            self.close()
            raise refused[0]

    def leave_side(self, side: str) -> None:
        """Stop reading a namespace; messages that the application does not have are given back. Does not wait for the namespace."""
        branch = self._leave(side)
        if branch is not None:
            branch.stop(0.0)
            self._left.append(branch)

    def close(self) -> None:
        """Stop; messages that the application has not settled are delivered again. Blocks for a few seconds at most."""
        with self._changed:
            if self.is_closed:
                return
            self._stopping.set()
        past = dict(self._past)
        branches = [branch for side in list(self._branches) if (branch := self._leave(side)) is not None]
        for branch in branches:
            branch.stop(0.0)
        limit = time.monotonic() + _STOP_SECONDS
        for branch in branches:
            branch.stop(max(0.0, limit - time.monotonic()))
            branch.check(math.inf)  # no thread watches it from here on
            with self._changed:  # with the counts up to its end
                self._past[branch.side] = branch.state().ended(past.get(branch.side))
        self._close_opened()
        self._claims.close(_STOP_SECONDS)
        self._notify()

    def _close_opened(self) -> None:
        """Close the receivers that the session search opened and no branch has used."""
        while self._opened:
            for each in reversed(self._opened.popitem()[1]):
                with contextlib.suppress(Exception):  # its lock ends by itself
                    each.close()

    def _leave(self, side: str) -> Branch | None:
        with self._changed:
            branch = self._branches.get(side)
            if branch is None:
                return None
            effects = self._merge.closed(side, time.monotonic())
            del self._branches[side]
            self._past[side] = branch.state().ended(self._past.get(side))
            for effect in effects:
                message = self._messages.get(effect.number) if isinstance(effect, Settle) else None
                if isinstance(effect, Settle) and message is not None:
                    branch.settle(message, effect.action)
        self._carry_out([(each, None) for each in effects if isinstance(each, Release)])
        return branch

    # ---- calls of the application

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call the listener, from any thread, when messages are ready or the engine has ended."""
        self._listeners.append(listener)

    def take(self, limit: int) -> list[ServiceBusReceivedMessage]:
        """Messages that are ready now; never blocks on a namespace."""
        with self._changed:
            self._wanted = 0
            now = time.monotonic()
            if self._merge.ready and not self._claims.is_current:
                self._merge.doubted(now)
            numbers = self._merge.take(limit, now)
            return [self._messages[number] for number in numbers]

    def want(self, count: int) -> None:
        """The application waits for `count` messages at once."""
        with self._changed:
            self._wanted = count

    def wait_ready(self, seconds: float) -> bool:
        """Block until messages are ready; False after `seconds` without one."""
        with self._changed:
            return self._changed.wait_for(lambda: self._merge.ready > 0 or self._stopping.is_set(), seconds)

    @property
    def is_closed(self) -> bool:
        """Whether it has ended."""
        return self._stopping.is_set()

    def complete(self, message: ServiceBusReceivedMessage) -> None:
        """Mark as handled, durably; the namespaces are settled later. Blocks on the list only.

        A deferred message is not delivered again by itself: it is settled at its namespace first, as by `settle`.

        Raises:
            SeenStoreError: the list does not answer; the call may be repeated.
            MessageAlreadySettled: it is settled already.
            ValueError: it was not received here.
        """
        handed = self._handed_of(message, "complete")
        if handed.is_deferred:
            self.settle(message, "complete_message")
            return
        self._mark(handed)
        handed.is_settled = True
        self._finish(message, handed)

    def abandon(self, message: ServiceBusReceivedMessage) -> None:
        """The handler failed: the message is handed over again.

        Raises:
            MessageAlreadySettled: it is settled already.
            ValueError: it was not received here.
        """
        handed = self._handed_of(message, "abandon")
        handed.is_settled = True
        with self._changed:
            effects = self._bound(self._merge.failed(handed.number, time.monotonic()))
        self._on_settled(message, False)
        self._carry_out(effects)

    def settle(self, message: ServiceBusReceivedMessage, what: str, *arguments: Any, **options: Any) -> None:
        """Dead-letter or defer at the namespace, and then mark as handled; blocks until both are done.

        If the namespace of a message is unavailable, its copy may be dead-lettered instead, but not deferred: the application uses the sequence
        number and the namespace of the message that it received.

        Args:
            message: a message that was handed over.
            what: the name of the SDK receiver's method.
            arguments: of that method, after the message.
            options: of that method.

        Raises:
            TimeoutError: its namespace did not answer; the message is delivered again, or is settled nevertheless.
            ServiceBusError: its namespace refused.
            SeenStoreError: the list does not answer; the call may not be repeated, and a copy may be handled again.
        """
        handed = self._handed_of(message, what.partition("_message")[0])
        with self._changed:
            found = self._merge.deliveries_of(handed.number)
            if what == "defer_message":
                own = (handed.side, message.sequence_number or 0)
                found = [each for each in found if (each.side, each.sequence) == own]
            chosen = next((each for each in found if each.side in self._branches), None)
            target = None if chosen is None else self._messages.get(chosen.number)
            branch = None if chosen is None else self._branches[chosen.side]
        if chosen is None or target is None or branch is None:
            self.abandon(message)
            again = "get it again by its sequence number" if handed.is_deferred else "it is delivered again"
            raise ConnectionError(f"the namespace {handed.side} of the message is unavailable; {again}")
        future = branch.settle_by(target, what, *arguments, **options)
        try:
            future.result(SETTLE_SECONDS)
        except Exception:
            future.cancel()  # a settlement that has not begun must not run after the abandonment
            self.abandon(message)
            raise
        handed.is_settled = True
        try:
            self._mark(handed)
        except SeenStoreError:
            with self._changed:
                effects = self._bound(self._merge.failed(handed.number, time.monotonic()))
            is_done = {chosen.number, handed.number}  # settled, or with a lost lock
            self._carry_out(each for each in effects if getattr(each[0], "number", None) not in is_done)
            raise
        self._finish(message, handed, chosen.number)

    def renew(self, message: ServiceBusReceivedMessage) -> datetime:
        """Renew the lock now, in addition to the automatic renewal.

        Raises:
            MessageLockLostError: the lock is lost.
            TimeoutError: the namespace did not answer.
        """
        from azure.servicebus.exceptions import MessageLockLostError

        handed = self._handed_of(message, "renew")
        branch = self._branches.get(handed.side)
        if branch is None or handed.number not in self._merge:
            raise MessageLockLostError
        renewed: datetime = branch.call(lambda receiver: receiver.renew_message_lock(message)).result(SETTLE_SECONDS)
        return renewed

    def side_of(self, message: ServiceBusReceivedMessage) -> str:
        """The namespace that delivered a message.

        Raises:
            ValueError: it was not received here.
        """
        handed = self._handed.get(message)
        if handed is None:
            raise ValueError("the message was not received by this receiver")
        return handed.side

    def receive_deferred(self, side: str, sequence_numbers: int | list[int]) -> list[ServiceBusReceivedMessage]:
        """Messages that were deferred at a namespace.

        Raises:
            ConnectionError: it is not read.
            TimeoutError: it did not answer.
        """
        found: list[ServiceBusReceivedMessage] = self.call(
            side, lambda receiver: receiver.receive_deferred_messages(sequence_numbers)
        )
        with self._changed:
            for message in found:
                self._number += 1
                keys = keys_of(arrived(message), self._identities[side], self._source.entity, self._source.path)
                self._messages[self._number] = message
                self._handed[message] = _Handed(self._number, side, keys, is_deferred=True)
                sequence = message.sequence_number or 0
                delivery = Delivery(self._number, side, keys, self._renew_seconds(message), sequence)
                self._merge.fetched(delivery, time.monotonic())
        return found

    def begin(self, side: str, what: Callable[[Any], Any]) -> Future[Any] | None:
        """Call a function with the SDK's receiver at a namespace; None if that is not read."""
        branch = self._branches.get(side)
        return None if branch is None else branch.call(what)

    def call(self, side: str, what: Callable[[Any], Any]) -> Any:
        """Call a function with the SDK's receiver at a namespace, and return its result.

        Raises:
            ConnectionError: it is not read.
            TimeoutError: it did not answer.
        """
        future = self.begin(side, what)
        if future is None:
            raise ConnectionError(f"{side} is not read at the moment")
        return future.result(SETTLE_SECONDS)

    def state(self) -> EngineState:
        """The state since the start."""
        with self._changed:
            now = {side: branch.state().after(self._past.get(side)) for side, branch in self._branches.items()}
            return EngineState(
                replace(self._merge.counts),
                self._merge.ready,
                len(self._merge),
                self._merge.asking,
                self._skipped,
                self._handled_twice,
                self._claims.forgotten_early,
                self._claims.errors,
                {**self._past, **now},
            )

    def is_idle(self, side: str) -> bool:
        """Whether no delivery of a namespace is unsettled."""
        with self._changed:
            return not self._merge.unsettled_of(side)

    def identity_of(self, side: str) -> str:
        """The identity of a namespace; empty if it has not been connected."""
        return self._identities.get(side, "")

    def received_bytes(self, side: str) -> int:
        """Bytes that have come over the present connection to a namespace; 0 where that is not known."""
        branch = self._branches.get(side)
        return 0 if branch is None else branch.received_bytes

    def has_room(self, side: str) -> bool:
        """Whether more messages are taken from a namespace now."""
        with self._changed:
            return self._merge.demand(side, self._wanted) > 0

    def unsettled(self, messages: Iterable[ServiceBusReceivedMessage]) -> int:
        """How many of these messages, which were received here, are not settled."""
        with self._changed:
            found = [handed.number for each in messages if (handed := self._handed.get(each)) is not None]
            return sum(number in self._merge or number in self._claiming for number in found)

    # ---- callbacks of the branches

    def on_open(self, side: str, identity: str) -> None:
        with self._changed:
            self._identities[side] = identity
            self._merge.opened(side)
            self._changed.notify_all()
        self._on_open(side)

    def on_lost(self, side: str, failure: Failure, error: BaseException) -> None:
        _LOGGER.info("receiver of %s at %s: %s: %s", self._source.entity, side, failure.value, error)
        with self._changed:
            effects = self._bound(self._merge.lost(side, time.monotonic()))
            if failure in _REFUSALS:
                self._refusals[side] = error
                self._changed.notify_all()
        self._carry_out(effects)
        self._on_lost(side, failure)

    def on_poll(self, side: str) -> int:
        with self._changed:
            effects = self._bound(self._merge.tick(time.monotonic()))
            if len(self._messages) > 2 * len(self._merge) + 100:
                self._messages = {
                    number: each
                    for number, each in self._messages.items()
                    if number in self._merge or number in self._claiming
                }
            room = self._merge.demand(side, self._wanted)
        self._carry_out(effects)
        return room

    def on_messages(self, side: str, messages: list[ServiceBusReceivedMessage]) -> None:
        deliveries = []
        for message in messages:
            facts = arrived(message)
            if self._skip is not None and self._skip(
                message, facts, side
            ):  # not under the lock: `skip` has a lock of its own
                self._skipped += 1
                branch = self._branches.get(side)
                if branch is not None:
                    branch.settle(message, Action.COMPLETE)
                continue
            keys = keys_of(facts, self._identities[side], self._source.entity, self._source.path)
            with self._changed:
                number = self._number = self._number + 1
                self._messages[number] = message
                self._claiming.add(number)
                self._handed[message] = _Handed(number, side, keys)
            deliveries.append(Delivery(number, side, keys, self._renew_seconds(message), message.sequence_number or 0))
        effects: list[_Bound] = []
        with self._question([each.keys for each in deliveries]) as (question, verdicts):
            now = time.monotonic()
            for delivery, verdict in zip(deliveries, verdicts, strict=True):
                self._claiming.discard(delivery.number)
                effects += self._bound(self._merge.received(delivery, verdict, now, question))
        self._carry_out(effects)

    # ---- internal

    @contextlib.contextmanager
    def _question(self, messages: Sequence[Keys]) -> Iterator[tuple[int, Sequence[Verdict | None]]]:
        """Begins a question to the list; its answers are applied under the lock."""
        with self._changed:
            question = self._merge.asks()
        try:
            asked_at = self._claims.moment()
            verdicts = self._claims.claim(messages)
            with self._changed:
                is_still_true = self._claims.is_within_lease(asked_at)
                yield question, verdicts if is_still_true else [None] * len(verdicts)
        finally:
            with self._changed:
                self._merge.asked(question)

    def _renew_seconds(self, message: ServiceBusReceivedMessage) -> float:
        if self._source.session_id is not None:
            return math.inf
        until = message.locked_until_utc
        if until is None:
            return math.inf
        return sdk.renew_seconds(until, message.enqueued_time_utc)

    def _on_lapse(self, now: float) -> None:
        with self._changed:
            self._merge.doubted(now)

    def _on_beat(self, now: float) -> None:
        self._left = [each for each in self._left if not each.is_ended]
        for branch in [*self._branches.values(), *self._left]:
            branch.check(now)

    def _mark(self, handed: _Handed) -> None:
        """Marks durably, with the keys of the copies: a message that shares a key with one of them is the same message."""
        with self._changed:
            handed.marked = frozenset(handed.keys) | self._merge.keys_of(handed.number, handed.keys)
            handed.attempts += 1
            is_repeated = handed.attempts > 1  # an earlier call with a lost or pending answer may have marked it
        is_first = self._claims.handle(handed.marked)
        self._handled_twice += not (is_first or is_repeated or handed.is_deferred)

    def _finish(self, message: ServiceBusReceivedMessage, handed: _Handed, settled: int | None = None) -> None:
        with self._changed:
            if handed.is_handled:  # by an earlier call of which this one is a repetition
                return
            handed.is_handled = True
            later = self._merge.keys_of(handed.number, handed.marked) - handed.marked
            effects = self._bound(self._merge.handled(handed.number, settled, handed.marked))
        if later:  # keys of a copy that arrived meanwhile
            with contextlib.suppress(SeenStoreError):  # counted; that copy may be handed over
                self._claims.handle(later | handed.marked)
        self._on_settled(message, True)
        self._carry_out(effects)

    def _handed_of(self, message: ServiceBusReceivedMessage, action: str) -> _Handed:
        from azure.servicebus.exceptions import MessageAlreadySettled

        handed = self._handed.get(message)
        if handed is None:
            raise ValueError("the message was not received by this receiver")
        if handed.is_settled:
            raise MessageAlreadySettled(action=action)
        return handed

    def _bound(self, effects: Iterable[Effect]) -> list[_Bound]:
        """The effects with their messages; under the lock, since the next cycle of any branch removes the messages of finished deliveries."""
        return [
            (each, self._messages.get(each.number) if isinstance(each, Settle | Renew) else None) for each in effects
        ]

    def _carry_out(self, effects: Iterable[_Bound]) -> None:
        asks: list[Ask] = []
        for effect, message in effects:
            if isinstance(effect, Ask):
                asks.append(effect)
            elif isinstance(effect, Release):
                self._claims.release(effect.keys)
                with self._changed:
                    self._merge.released(effect.keys)
            else:
                branch = self._branches.get(effect.side)
                if message is not None and isinstance(effect, Settle) and effect.action is Action.COMPLETE:
                    self._on_settled(message, True)
                if branch is None or message is None:
                    continue
                if isinstance(effect, Renew):
                    branch.renew(message)
                else:
                    branch.settle(message, effect.action)
        if asks:
            further: list[_Bound] = []
            with self._question([each.keys for each in asks]) as (question, verdicts):
                for ask, verdict in zip(asks, verdicts, strict=True):
                    further += self._bound(self._merge.answered(ask, verdict, time.monotonic(), question))
            self._carry_out(further)
        if self._merge.ready:
            self._notify()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for listener in self._listeners:
            listener()
