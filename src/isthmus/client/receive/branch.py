"""One namespace of a receiver: a thread that owns the SDK's receiver there and executes commands.

What it is: the only caller of one azure-servicebus receiver: it opens it, receives, settles, renews, and opens it again after a failure,
with the delays of a circuit. What it is not: decisions; `merge` makes them. A call that does not return, since a namespace hangs, delays
only this thread. Over 400 lines: one class, since one thread with one receiver does all of it.

Invariants:
    B1. Every call to the SDK's receiver is made by this thread, and no thread of the SDK reads its connection.
    B2. After a failure the receiver is discarded, and `on_lost` is called before the next one is opened.
    B3. A call that exceeds its time by far is ended by shutting its socket down: some calls of the SDK wait without
        end for a remote side that accepts a connection and sends nothing.
    B4. `stop` returns within its time limit, whatever the namespace does.
    B5. A delivery is settled only on the link that delivered it: its number identifies another message on any other link.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from isthmus.client import sdk
from isthmus.client.circuit import Circuit
from isthmus.client.endpoint import Endpoint
from isthmus.client.failure import Failure, classify
from isthmus.client.receive.merge import Action
from isthmus.message.name import NAMESPACE_ID
from isthmus.unsent import received_bytes

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceivedMessage, ServiceBusReceiver

__all__ = ["Branch", "BranchOwner", "BranchState", "Source", "break_connection"]

POLL_SECONDS = 0.2
# A connection on which nothing arrives is checked with a peek: the SDK itself notices an unreachable remote side only when TCP does, after
# a quarter of an hour. A peek is billed as one operation.
QUIET_SECONDS = 60.0
PEEK_SECONDS = 10.0
# Fewer bytes, such as those of keep-alives, are no part of a message.
LEAST_BYTES = 1 << 10
# While nothing is received, since the application has enough messages, the connection is kept alive: namespaces close an idle one.
LISTEN_SECONDS = 5.0
# Nothing is read from the socket: `receive_messages` returns the messages that have arrived already.
_AT_ONCE = 1e-9
_TAKEN_AT_ONCE = 200
_RENEW_TIMEOUT_SECONDS = 10.0
_FLUSH_SECONDS = 5.0
# A branch that is closed settles, gives back what the SDK has prefetched, and closes: a few round trips.
_END_SECONDS = 15.0
# Beyond every time-out that is given to a call.
_OPEN_GRACE_SECONDS = 2.0
_POLL_LIMIT_SECONDS = 60.0
_USUAL_PORTS = (":5671", ":5672", ":443")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The entity that is read at a namespace.

    Attributes:
        entity: queue or topic.
        subscription: of the topic; empty for a queue.
        sub_queue: `deadletter` or `transferdeadletter`; empty for the entity itself.
        session_id: the session to read, or the SDK's constant for the next available one; None for an entity without sessions.
        prefetch: credit beyond the requested messages.
        max_wait_time: seconds that the namespace may take to find a session; None for its default.
        options: further arguments of the SDK's receiver.
    """

    entity: str
    subscription: str = ""
    sub_queue: str = ""
    session_id: Any = None
    prefetch: int = 20
    max_wait_time: float | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def path(self) -> str:
        """The path of the entity that is read, the same for all its receivers."""
        parts = [self.entity, *(("subscriptions", self.subscription) if self.subscription else ()), self.sub_queue]
        return "/".join(part for part in parts if part)

    def receiver(self, client: ServiceBusClient) -> ServiceBusReceiver:
        """A receiver of the SDK; not open yet."""
        chosen: dict[str, Any] = {**sdk.WITHOUT_THREAD, "prefetch_count": self.prefetch, **dict(self.options)}
        if self.session_id is not None:
            chosen["session_id"] = self.session_id
        if self.max_wait_time is not None:
            chosen["max_wait_time"] = self.max_wait_time
        return self._of(client, chosen)

    def browser(self, client: ServiceBusClient) -> ServiceBusReceiver:
        """A receiver for a peek: it locks no session, and takes no message."""
        return self._of(client, dict(self.options))

    def _of(self, client: ServiceBusClient, chosen: dict[str, Any]) -> ServiceBusReceiver:
        if self.sub_queue:
            chosen["sub_queue"] = self.sub_queue
        if self.subscription:
            return client.get_subscription_receiver(self.entity, self.subscription, **chosen)
        return client.get_queue_receiver(self.entity, **chosen)


@dataclass(frozen=True, slots=True)
class BranchState:
    """The part of `statistics()` that describes one namespace.

    Attributes:
        is_open: whether its receiver is open.
        received: deliveries so far.
        failures: how often its receiver was lost, or could not be opened.
        settle_failures: settlements that failed; their messages are delivered again, and are suppressed.
        last_error: the last failure; empty if there was none. Never contains a key.
    """

    is_open: bool
    received: int
    failures: int
    settle_failures: int
    last_error: str

    def after(self, earlier: BranchState | None) -> BranchState:
        """The state with the counts of an earlier branch of the same namespace added."""
        if earlier is None:
            return self
        return BranchState(
            self.is_open,
            self.received + earlier.received,
            self.failures + earlier.failures,
            self.settle_failures + earlier.settle_failures,
            self.last_error or earlier.last_error,
        )

    def ended(self, earlier: BranchState | None) -> BranchState:
        """The state of a closed branch; its thread may not have ended yet."""
        return replace(self.after(earlier), is_open=False)


class BranchOwner(Protocol):
    """The callbacks; every method is called by the branch's thread."""

    def on_open(self, side: str, identity: str) -> None:
        """The receiver is open; `identity` distinguishes the namespace from others."""
        ...

    def on_messages(self, side: str, messages: list[ServiceBusReceivedMessage]) -> None:
        """Messages arrived."""
        ...

    def on_lost(self, side: str, failure: Failure, error: BaseException) -> None:
        """The receiver is lost, or could not be opened."""
        ...

    def on_poll(self, side: str) -> int:
        """A cycle of the loop begins. Returns how many messages to take."""
        ...


class Branch:
    """The thread of one namespace.

    Args:
        side: name of the namespace.
        endpoint: the address of the namespace.
        source: the entity that is read there.
        owner: gets the callbacks.
        connect_seconds: the longest time for opening.
        circuit: decides when to open again.
        opened: a client and its open receiver, to begin with.
    """

    def __init__(
        self,
        side: str,
        endpoint: Endpoint,
        source: Source,
        owner: BranchOwner,
        *,
        connect_seconds: float = 15.0,
        circuit: Circuit | None = None,
        opened: tuple[Any, Any] | None = None,
    ) -> None:
        self.side = side
        self._opened = opened
        self._endpoint = endpoint
        self._source = source
        self._owner = owner
        self._connect_seconds = connect_seconds
        self._circuit = circuit or Circuit(0.2, 5.0)
        self._client: ServiceBusClient | None = None
        self._receiver: ServiceBusReceiver | None = None
        self._closing: ServiceBusReceiver | None = None
        self._delivered: weakref.WeakSet[Any] = weakref.WeakSet()  # by the open link
        self._commands: deque[Callable[[ServiceBusReceiver], None]] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._is_closed = self._is_finished = False
        self._end_by = math.inf
        self._received = self._failures = self._settle_failures = 0
        self._last_error = ""
        self._renew_at = 0.0
        self._received_at = self._listen_at = 0.0
        self._came_bytes = 0
        self._at_work: tuple[float, Any] | None = None
        self._thread = threading.Thread(target=self._run, name=f"isthmus-receiver-{side}", daemon=True)

    # ---- called by others

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def state(self) -> BranchState:
        """The state since the start."""
        return BranchState(
            self._receiver is not None, self._received, self._failures, self._settle_failures, self._last_error
        )

    def check(self, now: float) -> None:
        """End a call that hangs (B3); has to be called about once a second."""
        at_work = self._at_work
        if at_work is not None and now > at_work[0]:
            self._at_work = None
            break_connection(at_work[1])
        elif now > self._end_by and not self._is_finished:
            break_connection(self._receiver or self._closing)

    @property
    def received_bytes(self) -> int:
        """Bytes that have come over the present connection; 0 where that is not known."""
        return received_bytes(sdk.socket_of(getattr(self._receiver, "_handler", None)))

    @property
    def is_ended(self) -> bool:
        """Whether the thread has done all its work."""
        return self._is_finished

    def settle(self, message: ServiceBusReceivedMessage, action: Action) -> None:
        """Settle a message asynchronously; a failure is counted."""
        self._add(lambda receiver: self._settle(receiver, message, action))

    def renew(self, message: ServiceBusReceivedMessage) -> None:
        """Renew a message's lock asynchronously; a failure is ignored: the message is delivered again."""
        self._add(lambda receiver: self._renew(receiver, message))

    def call(self, what: Callable[[ServiceBusReceiver], Any]) -> Future[Any]:
        """Call a function with the receiver; the future has its result, or the error if the receiver is lost before."""
        future: Future[Any] = Future()

        def command(receiver: ServiceBusReceiver) -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(what(receiver))
            except Exception as error:  # for the caller to judge
                future.set_exception(error)
                if classify(error).region_may_be_gone:
                    raise

        command.future = future  # type: ignore[attr-defined]
        self._add(command)
        return future

    def settle_by(self, message: ServiceBusReceivedMessage, what: str, *arguments: Any, **options: Any) -> Future[Any]:
        """Settle a message by a method of the SDK's receiver, confirmed by its namespace; as `call`, or MessageLockLostError if its link is lost."""
        from azure.servicebus.exceptions import MessageLockLostError

        def settle(receiver: ServiceBusReceiver) -> Any:
            if not self._is_settleable(message):
                raise MessageLockLostError(
                    message=f"the link to {self.side} that delivered the message is lost; it is delivered again"
                )
            with sdk.confirmed(receiver, message), sdk.without_lock_check(message):
                return getattr(receiver, what)(message, *arguments, **options)

        return self.call(settle)

    def stop(self, seconds: float = _FLUSH_SECONDS) -> None:
        """Execute the remaining commands, and end; blocks `seconds` at most."""
        if not self._stopping.is_set():
            self._end_by = time.monotonic() + _END_SECONDS
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    # ---- the thread

    def _add(self, command: Callable[[ServiceBusReceiver], None]) -> None:
        self._commands.append(command)
        self._wake.set()
        if self._is_closed:  # the caller had found the branch before it was closed
            self._drop_commands(ConnectionError("the receiver is closed"))

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                receiver = self._receiver or self._open()
                if receiver is not None:
                    self._at_work = (time.monotonic() + _POLL_LIMIT_SECONDS, receiver)
                    self._poll(receiver)
            except Exception as error:  # noqa: BLE001 - whatever the SDK raises ends its receiver, never this thread
                self._lose(error)
            finally:
                self._at_work = None
        self._finish()

    def _open(self) -> ServiceBusReceiver | None:
        if not self._circuit.allows(time.monotonic(), trial_seconds=self._connect_seconds):
            self._drop_commands(TimeoutError(f"{self.side} is not connected: {self._last_error}"))
            self._owner.on_poll(self.side)
            self._stopping.wait(min(POLL_SECONDS, self._circuit.retry_in(time.monotonic())))
            return None
        receiver: ServiceBusReceiver
        if self._opened is not None:
            (self._client, receiver), self._opened = self._opened, None
        else:
            self._client = self._endpoint.client(retry_total=0, try_timeout=self._connect_seconds)
            receiver = self._source.receiver(self._client)
            self._at_work = (time.monotonic() + self._connect_seconds + _OPEN_GRACE_SECONDS, receiver)
            receiver.__enter__()
        self._receiver = receiver
        self._renew_at = 0.0
        self._received_at, self._came_bytes = time.monotonic(), self.received_bytes
        self._circuit.succeeded()
        if self._stopping.is_set():
            return None
        self._owner.on_open(self.side, _identity(receiver, self._endpoint))
        return receiver

    def _poll(self, receiver: ServiceBusReceiver) -> None:
        self._wake.clear()
        self._do_commands(receiver)
        if self._source.session_id is not None and time.monotonic() >= self._renew_at:
            self._renew_session(receiver)
        room = self._owner.on_poll(self.side)
        messages: list[ServiceBusReceivedMessage] = []
        if self._commands:
            pass
        elif room > 0:
            messages = receiver.receive_messages(1, max_wait_time=POLL_SECONDS)
        else:
            self._wake.wait(POLL_SECONDS)
            if time.monotonic() >= self._listen_at:
                self._listen_at = time.monotonic() + LISTEN_SECONDS
                sdk.listen(receiver)
        # Messages that the SDK has already are taken whether there is room or not: their locks are renewed from then on.
        messages += receiver.receive_messages(_TAKEN_AT_ONCE, max_wait_time=_AT_ONCE)
        if self._stopping.is_set():
            self._delivered.update(messages)
            for message in messages:
                self._settle(receiver, message, Action.GIVE_BACK)
        elif messages:
            self._received_at, self._came_bytes = time.monotonic(), self.received_bytes
            self._received += len(messages)
            self._delivered.update(messages)
            self._owner.on_messages(self.side, messages)
        elif time.monotonic() - self._received_at > QUIET_SECONDS:
            came, self._came_bytes = self._came_bytes, self.received_bytes
            if (
                self._came_bytes < came + LEAST_BYTES
            ):  # else a large message is on its way, and the answer would wait behind it
                receiver.peek_messages(1, timeout=PEEK_SECONDS)
            self._received_at = time.monotonic()

    def _do_commands(self, receiver: ServiceBusReceiver) -> None:
        while self._commands:
            self._commands.popleft()(receiver)

    def _lose(self, error: BaseException) -> None:
        self._failures += 1
        self._last_error = f"{type(error).__name__}: {error}"[:500]
        self._circuit.failed(time.monotonic())
        self._drop_commands(error)
        self._close()
        if not self._stopping.is_set():  # another branch may have replaced it by then
            self._owner.on_lost(self.side, classify(error), error)

    def _drop_commands(self, error: BaseException) -> None:
        while True:
            try:
                command = self._commands.popleft()
            except IndexError:
                return
            future = getattr(command, "future", None)
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(error)

    def _close(self) -> None:
        receiver, client = self._receiver, self._client
        self._closing = receiver  # set first, so that `check` always finds it
        self._receiver = self._client = None
        self._delivered = weakref.WeakSet()
        for each in (receiver, client):
            if each is not None:
                with contextlib.suppress(Exception):  # it is unusable anyway
                    each.close()
        self._closing = None

    def _finish(self) -> None:
        if self._opened is not None:  # and not used
            (self._client, self._receiver), self._opened = self._opened, None
        receiver = self._receiver
        if receiver is not None:
            with contextlib.suppress(Exception):  # unsettled messages are delivered again, and are recognised
                self._do_commands(receiver)
        self._is_closed = True
        self._drop_commands(ConnectionError("the receiver is closed"))
        self._close()
        self._is_finished = True

    def _is_settleable(self, message: ServiceBusReceivedMessage) -> bool:
        """Whether the open link delivered the message (B5), or it is settled by its lock token, as deferred ones are."""
        return message in self._delivered or bool(getattr(message, "_is_deferred_message", False))

    def _settle(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, action: Action) -> None:
        if not self._is_settleable(message):
            self._settle_failures += 1
            return
        try:
            with _without_waiting(receiver), sdk.without_lock_check(message):
                if action is Action.COMPLETE:
                    receiver.complete_message(message)
                elif action is Action.ABANDON or not _give_back(receiver, message):
                    receiver.abandon_message(message)
        except Exception as error:
            self._settle_failures += 1
            if classify(error).region_may_be_gone:
                raise

    def _renew_session(self, receiver: ServiceBusReceiver) -> None:
        sdk.without_session_clock(receiver)
        until = receiver.session.renew_lock(timeout=_RENEW_TIMEOUT_SECONDS)
        sdk.without_session_clock(receiver)
        self._renew_at = time.monotonic() + sdk.renew_seconds(until, None)

    def _renew(self, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        try:
            receiver.renew_message_lock(message, timeout=_RENEW_TIMEOUT_SECONDS)
        except Exception as error:
            if classify(error).region_may_be_gone:
                raise


def break_connection(receiver: Any) -> None:
    """Shuts down the socket of a receiver whose call does not return: the call then ends with an error."""
    connection = getattr(getattr(receiver, "_handler", None), "_connection", None)
    sock = getattr(getattr(connection, "_transport", None), "sock", None)
    if sock is not None:
        with contextlib.suppress(OSError, AttributeError):
            sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _without_waiting(receiver: Any) -> Any:
    """Newer SDKs wait for the namespace to confirm each settlement: the list of seen messages makes this round trip unnecessary."""
    if not hasattr(receiver, "_await_settlement_outcome"):
        yield
        return
    waits = receiver._await_settlement_outcome
    receiver._await_settlement_outcome = False
    try:
        yield
    finally:
        receiver._await_settlement_outcome = waits


def _give_back(receiver: Any, message: Any) -> bool:
    """Settles as `released`, which does not count as an attempt, as the SDK does with prefetched messages; False where it is impossible."""
    try:
        receiver._handler.settle_messages(message._delivery_id, message._delivery_tag, "released")
    except AttributeError:
        return False
    return True


def _identity(receiver: Any, endpoint: Endpoint) -> str:
    """The identity that the namespace sends when a connection opens, as routes record it in provenance; else its host's name."""
    connection = getattr(getattr(receiver, "_handler", None), "_connection", None)
    identity = (getattr(connection, "_remote_properties", None) or {}).get(NAMESPACE_ID.encode())
    if identity:
        return identity.decode() if isinstance(identity, bytes) else str(identity)
    host = endpoint.host.lower()
    for port in _USUAL_PORTS:
        host = host.removesuffix(port)
    return host
