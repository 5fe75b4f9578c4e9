"""A receiver of two namespaces that hold the same messages, which hands over each message once.

What it is: `ReplicatedReceiver` for threads, with the methods of azure-servicebus's receiver; `isthmus.client.replicated_receiver_async` is
the same for asyncio. What it is not: the decisions (`isthmus.client.receive.merge`) and the connections (`isthmus.client.receive.branch`).
How to use it: docs/how-to/receive-from-two-regions.md.

Invariants:
    I1. A message is handed over until a handler of it has completed it, and never after `complete_message` returned, as long as the
        list of seen messages remembers it.
    I2. A copy is settled only once its message is handled: what only one namespace holds is never settled unhandled.
    I3. A namespace that is away or stands still delays no message of the other, and no call but `dead_letter_message`,
        `defer_message` and `renew_message_lock` of a message that came from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from isthmus.client.endpoint import Endpoint, EndpointLike
from isthmus.client.receive.branch import BranchState, Source
from isthmus.client.receive.engine import Engine
from isthmus.client.seen import Bounds, SeenStore, open_seen
from isthmus.errors import InvalidArgumentError

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

__all__ = ["PRIMARY", "SECONDARY", "ReceiverStatistics", "ReplicatedReceiver", "ReplicatedSession"]

PRIMARY = "primary"
SECONDARY = "secondary"
_WAIT_SECONDS = 60.0  # as the SDK's `receive_messages` waits where no time is given


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverStatistics:
    """What a receiver has done since it was opened.

    Attributes:
        handed_over: messages that the application was given; one whose handler failed counts again.
        handled: messages that the application completed, dead-lettered or deferred.
        suppressed: deliveries that were settled without being handed over: their message was handled.
        failed: messages that the application abandoned.
        skipped: deliveries that were settled without being handed over: older than the watermark (`FailoverReceiver`).
        handled_twice: messages that another receiver had handled too when this one completed them: the handler took longer than
            `max_lock_renewal`, or this process stood still for longer than the list's lease.
        out_of_order: messages of a session that one namespace delivered and the leading one did not, in `order_wait`.
        waiting: messages that are ready for the application.
        held_by_others: deliveries whose message another receiver has at the moment.
        unsettled: deliveries that are not settled, in all.
        forgotten_early: ids that the list forgot within its window since it was full: raise `Bounds.max_count`.
        seen_errors: how often the list failed.
        namespaces: of each namespace, by `primary` and `secondary`.
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
        """Of an engine."""
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


class ReplicatedSession:
    """The session that a `ReplicatedReceiver` reads, at both namespaces.

    Its locks are renewed by themselves. Its state is kept at each namespace; `get_state` reads that of the first one that answers.
    """

    def __init__(self, engine: Engine, session_id: str, sides: tuple[str, ...]) -> None:
        self._engine = engine
        self._sides = sides
        self.session_id = session_id

    def get_state(self) -> bytes | None:
        """The session's state, of the primary, or of the secondary where the primary does not answer.

        Raises:
            ConnectionError: neither answers.
        """
        error: Exception = ConnectionError("no namespace is connected")
        for side in self._sides:
            try:
                state: bytes | None = self._engine.call(side, lambda receiver: receiver.session.get_state())
                return state
            except Exception as failed:  # noqa: BLE001 - the other namespace is asked
                error = failed
        raise ConnectionError(f"no namespace gave the state of session {self.session_id}: {error}") from error

    def set_state(self, state: str | bytes | bytearray | None) -> None:
        """Sets the session's state at every namespace that is connected.

        Raises:
            ConnectionError: at none.
        """
        error: Exception = ConnectionError("no namespace is connected")
        done = 0
        for side in self._sides:
            try:
                self._engine.call(side, lambda receiver: receiver.session.set_state(state))
                done += 1
            except Exception as failed:  # noqa: BLE001 - the other namespace is asked
                error = failed
        if not done:
            raise ConnectionError(f"no namespace took the state of session {self.session_id}: {error}") from error


class ReplicatedReceiver:
    """Reads an entity at two namespaces and hands over each message once.

    For messages that were sent to both (`ReplicatedSender(mode="active")`), to either (`mode="passive"`), or that routes of isthmus copied.
    A message is known by where it entered, as its copies tell it, and by MessageId with a digest of its contents.

        with ReplicatedReceiver(primary, secondary, "orders", seen="/var/lib/shop/seen.db") as receiver:
            for message in receiver:
                handle(message)
                receiver.complete_message(message)

    Locks are renewed by themselves, for `max_lock_renewal` at most.

    Args:
        primary: connection string, `(host, credential)`, `env:NAME`, `file:/path`, or an `Endpoint`; leads where order is kept.
        secondary: the other.
        entity: queue or topic, the same at both.
        subscription: of the topic.
        seen: the durable list of handled messages: a path, `redis://…`, a store; None keeps it in memory, so that messages may be handled
            again after a restart.
        session_id: the session to read, of an entity that requires sessions; its messages are handed over in order.
        sub_queue: `deadletter` or `transferdeadletter`.
        max_wait_time: seconds without a message after which iteration ends; None for never.
        prefetch_count: messages of each namespace that wait for the application, beyond what it asks for.
        bounds: of the list.
        max_lock_renewal: how long a message may be with its handler before others get it.
        order_wait: with `session_id`, how long a message that only the secondary has delivered waits for the primary's.
        connect_timeout: seconds for opening a receiver.
        receiver_options: further arguments of the SDK's receivers.

    Raises:
        InvalidArgumentError: an argument is wrong.
        SeenStoreError: the list cannot be opened.
    """

    def __init__(
        self,
        primary: EndpointLike,
        secondary: EndpointLike,
        entity: str,
        subscription: str | None = None,
        *,
        seen: str | PathLike[str] | SeenStore | None = None,
        session_id: str | None = None,
        sub_queue: str | None = None,
        max_wait_time: float | None = None,
        prefetch_count: int = 20,
        bounds: Bounds | None = None,
        max_lock_renewal: timedelta = timedelta(minutes=5),
        order_wait: timedelta = timedelta(seconds=1),
        connect_timeout: float = 15.0,
        receiver_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not entity:
            raise InvalidArgumentError("entity is empty; name the queue or topic to read")
        if not isinstance(session_id, str | None):
            raise InvalidArgumentError(
                "session_id has to be the name of a session: the next available one may be another at each namespace"
            )
        if prefetch_count < 1:
            raise InvalidArgumentError(f"prefetch_count is {prefetch_count}; it has to be at least 1")
        self._endpoints = {PRIMARY: Endpoint.of(primary), SECONDARY: Endpoint.of(secondary)}
        self._source = Source(
            entity=entity,
            subscription=subscription or "",
            sub_queue=sub_queue or "",
            session_id=session_id,
            options=tuple((receiver_options or {}).items()),
        )
        self._max_wait_time = max_wait_time
        self._connect_timeout = connect_timeout
        path = f"{entity}/{subscription}" if subscription else entity
        self._engine = Engine(
            self._endpoints,
            self._source,
            open_seen(seen, path, bounds),
            prefetch=prefetch_count,
            max_renewal_seconds=max_lock_renewal.total_seconds(),
            order_wait_seconds=order_wait.total_seconds(),
            connect_seconds=connect_timeout,
        )

    def __enter__(self) -> Self:
        """Begin; returns once a namespace is connected, or `connect_timeout` is over.

        Raises:
            ServiceBusError: both namespaces answered that the entity is missing or not permitted.
        """
        self._engine.start()
        self._engine.wait_open(self._connect_timeout)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End: messages that are not settled come again. Blocks for some seconds at most, also if a namespace stands still."""
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
        """Up to so many messages; those that are there once there is one.

        Args:
            max_message_count: at most.
            max_wait_time: seconds until an empty list is returned; by default the receiver's, or 60.

        Raises:
            ValueError: the receiver is closed, or a number is not positive.
        """
        if max_message_count <= 0:
            raise ValueError("max_message_count must be greater than 0")
        if max_wait_time is not None and max_wait_time <= 0:
            raise ValueError("max_wait_time must be greater than 0")
        if self._engine.is_closed:
            raise ValueError("the receiver is closed")
        if max_wait_time is None:
            max_wait_time = self._max_wait_time if self._max_wait_time is not None else _WAIT_SECONDS
        return self._receive(max_message_count, max_wait_time)

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
        """The message is handled. When this returns the list of seen messages has it on disk; the namespaces are told afterwards.

        Raises:
            SeenStoreError: the list does not answer; call again.
            MessageAlreadySettled: it is settled.
            ValueError: it was not received by this receiver.
        """
        self._engine.complete(message)

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        """The handler failed. The copy is handed over next where there is one, otherwise the message when its namespace delivers it again.

        Raises:
            MessageAlreadySettled: it is settled.
            ValueError: it was not received by this receiver.
        """
        self._engine.abandon(message)

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        """Move the message to the dead-letter queue of its namespace, or where that is away of the other if that has delivered it too.

        Raises:
            ConnectionError: neither is connected; the message comes again.
            TimeoutError: no answer came; the message comes again.
            ServiceBusError: the namespace refused; the message comes again.
        """
        self._engine.settle(message, "dead_letter_message", reason=reason, error_description=error_description)

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        """Defer the message at its namespace, and count it as handled.

        From then on only that namespace has it (`namespace_of`); get it by its sequence number with `receive_deferred_messages`.

        Raises:
            ConnectionError: no namespace that delivered it is connected; the message comes again.
            TimeoutError: no answer came; the message comes again.
            ServiceBusError: the namespace refused; the message comes again.
        """
        self._engine.settle(message, "defer_message")

    def renew_message_lock(self, message: ServiceBusReceivedMessage) -> datetime:
        """Renew the lock now; it is renewed by itself as well.

        Raises:
            MessageLockLostError: the lock is gone; the message may still be completed.
            TimeoutError: the namespace did not answer.
        """
        return self._engine.renew(message)

    def receive_deferred_messages(
        self, sequence_numbers: int | list[int], *, namespace: str = PRIMARY
    ) -> list[ServiceBusReceivedMessage]:
        """Messages that were deferred at a namespace, to be settled as others.

        Args:
            sequence_numbers: of the messages there.
            namespace: `primary` or `secondary`, as `namespace_of` said.

        Raises:
            ConnectionError: the namespace is away.
            ServiceBusError: it refused.
        """
        return self._engine.receive_deferred(namespace, sequence_numbers)

    def namespace_of(self, message: ServiceBusReceivedMessage) -> str:
        """`primary` or `secondary`: which namespace delivered a message.

        Raises:
            ValueError: it was not received by this receiver.
        """
        return self._engine.side_of(message)

    @property
    def session(self) -> ReplicatedSession | None:
        """The session that is read; None for an entity without sessions."""
        session_id = self._source.session_id
        return None if session_id is None else ReplicatedSession(self._engine, session_id, tuple(self._endpoints))

    def statistics(self) -> ReceiverStatistics:
        """What was done so far."""
        return ReceiverStatistics.of(self._engine)
