"""A receiver of two namespaces with the same messages, which hands over each message once.

What it is: `ReplicatedReceiver` for threads, with the methods of azure-servicebus's receiver; `isthmus.client.replicated_receiver_async` is
the same for asyncio. What it is not: the decisions (`isthmus.client.receive.merge`) and the connections (`isthmus.client.receive.branch`).
How to use it: docs/how-to/receive-from-two-regions.md.

Invariants:
    I1. A message is handed over until a handler of it has completed it, and never after `complete_message` returned, as long as the
        list of seen messages remembers it.
    I2. A copy is settled only once its message is handled: a message that only one namespace has is never settled unhandled.
    I3. A namespace that is unavailable or hangs delays no message of the other, and no call but `dead_letter_message`,
        `defer_message` and `renew_message_lock` of a message from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from os import PathLike
from typing import Any, Self

from isthmus.client.endpoint import Endpoint, EndpointLike
from isthmus.client.receive.engine import Engine
from isthmus.client.receive.face import (
    PRIMARY,
    SECONDARY,
    ReceiverStatistics,
    TwoRegionReceiver,
    checked_source,
    is_next,
)
from isthmus.client.seen import Bounds, SeenStore, is_opened_here, open_seen

__all__ = ["PRIMARY", "SECONDARY", "ReceiverStatistics", "ReplicatedReceiver", "ReplicatedSession"]

_SESSION_SECONDS = 60.0  # the default wait of a namespace for a session


class ReplicatedSession:
    """The session that a `ReplicatedReceiver` reads, at both namespaces.

    The receiver renews its locks. Each namespace stores its state; `get_state` reads it from the first namespace that answers.
    """

    def __init__(self, engine: Engine, session_id: str, sides: tuple[str, ...]) -> None:
        self._engine = engine
        self._sides = sides
        self.session_id = session_id

    def get_state(self) -> bytes | None:
        """The session's state from the primary, or from the secondary if the primary does not answer.

        Raises:
            ConnectionError: no namespace answers.
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
            ConnectionError: it was set at no namespace.
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


class ReplicatedReceiver(TwoRegionReceiver):
    """Reads an entity at two namespaces and hands over each message once.

    For messages that were sent to both (`ReplicatedSender(mode="active")`), to either (`mode="passive"`), or that routes of isthmus copied.
    A message is identified by its entry point, which its copies record, and by MessageId with a digest of its contents.

        with ReplicatedReceiver(primary, secondary, "orders", seen="/var/lib/shop/seen.db") as receiver:
            for message in receiver:
                handle(message)
                receiver.complete_message(message)

    Locks are renewed automatically, for `max_lock_renewal` at most.

    Args:
        primary: connection string, `(host, credential)`, `env:NAME`, `file:/path`, or an `Endpoint`; it leads where order is kept.
        secondary: the other namespace, in the same forms.
        entity: queue or topic, the same at both.
        subscription: of the topic.
        seen: the durable list of handled messages: a path, `redis://…`, a store; None keeps it in memory, so that messages may be handled
            again after a restart.
        session_id: the session to read, of an entity that requires sessions; its messages are handed over in order. The SDK's
            `NEXT_AVAILABLE_SESSION` takes a session that has messages at either namespace and no reader at either; it searches for
            `max_wait_time`, or 60 s.
        sub_queue: `deadletter` or `transferdeadletter`.
        max_wait_time: seconds without a message after which iteration ends; None for never.
        prefetch_count: messages of each namespace that wait for the application, beyond what it asks for.
        bounds: of the list.
        max_lock_renewal: how long a message may stay with its handler before another receiver gets it.
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
        session_id: Any = None,
        sub_queue: str | None = None,
        max_wait_time: float | None = None,
        prefetch_count: int = 20,
        bounds: Bounds | None = None,
        max_lock_renewal: timedelta = timedelta(minutes=5),
        order_wait: timedelta = timedelta(seconds=1),
        connect_timeout: float = 15.0,
        receiver_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._endpoints = {PRIMARY: Endpoint.of(primary), SECONDARY: Endpoint.of(secondary)}
        self._source = checked_source(
            entity, subscription, sub_queue, session_id, prefetch_count, receiver_options, may_be_next=True
        )
        self._max_wait_time = max_wait_time
        self._connect_timeout = connect_timeout
        self._engine = Engine(
            self._endpoints,
            self._source,
            open_seen(seen, self._source.path, bounds),
            prefetch=prefetch_count,
            max_renewal_seconds=max_lock_renewal.total_seconds(),
            order_wait_seconds=order_wait.total_seconds(),
            connect_seconds=connect_timeout,
            closes_seen=is_opened_here(seen),
        )

    def __enter__(self) -> Self:
        """Start; returns once a namespace is connected, or after `connect_timeout`.

        Raises:
            ServiceBusError: both namespaces answered that the entity is missing or not permitted.
            OperationTimeoutError: no session is available.
        """
        try:
            if is_next(self._source.session_id):
                self._take_session()
            self._engine.start()
            self._engine.wait_open(self._connect_timeout)
        except BaseException:  # also an interruption: no caller could close what was started
            self._engine.close()
            raise
        return self

    def _take_session(self) -> None:
        from isthmus.client.receive.next_session import find_session

        seconds = _SESSION_SECONDS if self._max_wait_time is None else self._max_wait_time
        found = find_session(self._endpoints, self._source, seconds, self._connect_timeout)
        self._source = replace(self._source, session_id=found.session_id)
        self._engine.use_session(found)

    @property
    def session(self) -> ReplicatedSession | None:
        """The session that is read; None for an entity without sessions."""
        session_id = self._source.session_id
        return None if session_id is None else ReplicatedSession(self._engine, session_id, tuple(self._endpoints))

    def statistics(self) -> ReceiverStatistics:
        """Statistics since the receiver was opened."""
        return ReceiverStatistics.of(self._engine)
