"""The common base of `ReplicatedReceiver` and `FailoverReceiver`: the methods of azure-servicebus's receiver, over an engine."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from isthmus.client.receive.branch import BranchState, Source
from isthmus.client.receive.engine import Engine
from isthmus.client.receive.failover import PRIMARY, SECONDARY
from isthmus.errors import InvalidArgumentError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

__all__ = ["PRIMARY", "SECONDARY", "ReceiverStatistics", "TwoRegionReceiver", "checked_source", "is_next"]

_WAIT_SECONDS = 60.0  # the wait of the SDK's `receive_messages` without a time


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverStatistics:
    """Statistics of a receiver since it was opened.

    Attributes:
        handed_over: messages that were handed over to the application; after a failed handler, a message counts again.
        handled: messages that the application completed, dead-lettered or deferred.
        suppressed: deliveries that were settled without being handed over: their messages were handled before.
        failed: messages that the application abandoned.
        skipped: deliveries that were settled without being handed over: older than the watermark (`FailoverReceiver`).
        handled_twice: messages that another receiver had also handled when this one completed them: the handler took longer than
            `max_lock_renewal`, or this process hung for longer than the list's lease.
        out_of_order: messages of a session that one namespace delivered and the leading one did not deliver within `order_wait`.
        waiting: messages that are ready for the application.
        held_by_others: deliveries of messages that another receiver has claimed at the moment.
        unsettled: all deliveries that are not settled.
        forgotten_early: ids that the list forgot within its window since it was full: raise `Bounds.max_count`.
        seen_errors: how often the list failed.
        namespaces: the state of each namespace, by `primary` and `secondary`.
    """

    handed_over: int
    handled: int
    suppressed: int
    failed: int
    skipped: int
    handled_twice: int
    out_of_order: int
    waiting: int
    held_by_others: int
    unsettled: int
    forgotten_early: int
    seen_errors: int
    namespaces: Mapping[str, BranchState]

    @classmethod
    def of(cls, engine: Engine) -> ReceiverStatistics:
        """The statistics of an engine."""
        state = engine.state()
        counts = state.counts
        return cls(
            handed_over=counts.handed_over,
            handled=counts.handled,
            suppressed=counts.suppressed,
            failed=counts.failed,
            skipped=state.skipped,
            handled_twice=state.handled_twice,
            out_of_order=counts.out_of_order,
            waiting=state.waiting,
            held_by_others=state.held_by_others,
            unsettled=state.unsettled,
            forgotten_early=state.forgotten_early,
            seen_errors=state.seen_errors,
            namespaces=state.namespaces,
        )


def checked_source(
    entity: str,
    subscription: str | None,
    sub_queue: str | None,
    session_id: Any,
    prefetch_count: int,
    receiver_options: Mapping[str, Any] | None,
    *,
    may_be_next: bool = False,
) -> Source:
    """The entity to read, from the arguments of a receiver.

    Raises:
        InvalidArgumentError: one is wrong.
    """
    if not entity:
        raise InvalidArgumentError("entity is empty; name the queue or topic to read")
    if not isinstance(session_id, str | None) and not (may_be_next and is_next(session_id)):
        raise InvalidArgumentError(
            "session_id has to be the name of a session"
            + (", or NEXT_AVAILABLE_SESSION" if may_be_next else ": the next one may be another at each namespace")
        )
    if prefetch_count < 1:
        raise InvalidArgumentError(f"prefetch_count is {prefetch_count}; it has to be at least 1")
    mode = (receiver_options or {}).get("receive_mode", "peeklock")
    mode = getattr(mode, "value", mode)
    if mode != "peeklock":  # a message that waits here would be lost with this process, and a copy with it
        raise InvalidArgumentError(
            f"receive_mode is {mode}; it has to be peeklock: messages are settled once they are handled"
        )
    return Source(
        entity=entity,
        subscription=subscription or "",
        sub_queue=sub_queue or "",
        session_id=session_id,
        options=tuple((receiver_options or {}).items()),
    )


def is_next(session_id: Any) -> bool:
    """Whether it is the SDK's constant for the next available session."""
    from azure.servicebus import NEXT_AVAILABLE_SESSION

    return session_id is NEXT_AVAILABLE_SESSION


class TwoRegionReceiver:
    """Iteration, receiving and settling; a subclass starts and ends the engine."""

    _engine: Engine
    _max_wait_time: float | None

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop: messages that are not settled are delivered again. Blocks for a few seconds at most, also if a namespace hangs."""
        self._engine.close()

    def __iter__(self) -> Iterator[ServiceBusReceivedMessage]:
        return self

    def __next__(self) -> ServiceBusReceivedMessage:
        found = self._receive(1, self._max_wait_time)
        if not found:
            raise StopIteration
        return found[0]

    def receive_messages(
        self, max_message_count: int = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Receive up to `max_message_count` messages; returns those that are ready once there is one.

        Args:
            max_message_count: the most messages that are returned.
            max_wait_time: seconds after which an empty list is returned; default: that of the receiver, or 60.

        Raises:
            ValueError: the receiver is closed, or a number is not positive.
        """
        return self._receive(max_message_count, self._checked_wait(max_message_count, max_wait_time))

    def _checked_wait(self, count: int, seconds: float | None) -> float:
        if count <= 0:
            raise ValueError("max_message_count must be greater than 0")
        if seconds is not None and seconds <= 0:
            raise ValueError("max_wait_time must be greater than 0")
        if self._engine.is_closed:
            raise ValueError("the receiver is closed")
        if seconds is not None:
            return seconds
        return self._max_wait_time if self._max_wait_time is not None else _WAIT_SECONDS

    def _receive(self, count: int, seconds: float | None) -> list[ServiceBusReceivedMessage]:
        limit = None if seconds is None else time.monotonic() + seconds
        self._engine.want(count)
        while not self._engine.is_closed:
            left = _WAIT_SECONDS if limit is None else limit - time.monotonic()
            if left <= 0:
                return self._engine.take(count)
            if self._engine.wait_ready(left) and (found := self._engine.take(count)):
                return found
        return []

    # ---- settling, as the SDK's receivers do

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        """The message is handled. When this returns, the list of seen messages has it on disk; the namespaces are settled afterwards.

        A message of `receive_deferred_messages` is completed at its namespace first, which may raise the errors of `defer_message`.

        Raises:
            SeenStoreError: the list does not answer; call again.
            MessageAlreadySettled: it is settled already.
            ValueError: it was not received by this receiver.
        """
        self._engine.complete(message)

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """The handler failed. The copy is handed over next if there is one; otherwise the message, when its namespace delivers it again.

        Raises:
            MessageAlreadySettled: it is settled already.
            ValueError: it was not received by this receiver.
        """
        self._engine.abandon(message)

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Move the message to the dead-letter queue of its namespace, or, if that is unavailable, of the other one if it delivered the message too.

        Raises:
            ConnectionError: neither namespace is connected; the message is delivered again.
            TimeoutError: no answer arrived; the message is delivered again, or is in the dead-letter queue nevertheless.
            ServiceBusError: the namespace refused; the message is delivered again.
        """
        self._engine.settle(message, "dead_letter_message", reason=reason, error_description=error_description)

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Defer the message at its namespace, and count it as handled.

        From then on only that namespace (`namespace_of`) has it; get it by its sequence number with `receive_deferred_messages`.

        Raises:
            ConnectionError: its namespace is not connected; the message, or its copy at the other, is delivered again.
            TimeoutError: no answer arrived; the message is delivered again, or is deferred nevertheless: get it by its sequence number.
            ServiceBusError: the namespace refused; the message is delivered again.
        """
        self._engine.settle(message, "defer_message")

    def renew_message_lock(self, message: ServiceBusReceivedMessage) -> datetime:
        """Renew the lock now, in addition to the automatic renewal.

        Raises:
            MessageLockLostError: the lock is lost; the message may still be completed.
            TimeoutError: the namespace did not answer.
        """
        return self._engine.renew(message)

    def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, namespace: str = PRIMARY
    ) -> list[ServiceBusReceivedMessage]:
        """Messages that were deferred at a namespace, to be settled like other messages.

        Args:
            sequence_numbers: of the messages there.
            namespace: `primary` or `secondary`, as `namespace_of` returned it.

        Raises:
            ConnectionError: the namespace is not connected.
            ServiceBusError: the namespace refused.
        """
        return self._engine.receive_deferred(namespace, sequence_numbers)

    def namespace_of(self, message: ServiceBusReceivedMessage) -> str:
        """The namespace that delivered a message: `primary` or `secondary`.

        Raises:
            ValueError: it was not received by this receiver.
        """
        return self._engine.side_of(message)
