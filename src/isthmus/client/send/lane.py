"""Sending to one namespace, with enforced time-outs.

What it is: one thread that owns the SDK's client and sender of one entity and sends the given messages in order. The caller
waits for its time-out and no longer: an attempt that takes longer is abandoned with its connection, and the next one gets
a new thread and a new connection. What it is not: a policy; it neither retries nor chooses.

Invariants:
    I1. Attempts of one connection are made one after the other, in the order in which they were given.
    I2. No attempt begins after its deadline: an attempt that was given up before it began is certainly not sent.
    I3. After an error after which the region may be unavailable no connection is used again.
    I4. The caller waits no longer than its time-out, whatever the SDK does; for a patient attempt that begins again as long as bytes arrive there.
    I5. Attempts that waited behind a refused attempt get the same refusal, not a lost connection.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Any

from azure.servicebus.exceptions import OperationTimeoutError

from isthmus.client import sdk
from isthmus.client.endpoint import Endpoint
from isthmus.client.failure import Failure, classify
from isthmus.client.send.parcel import Parcel
from isthmus.unsent import delivered_bytes

__all__ = ["Attempt", "Lane", "Sending"]

_log = logging.getLogger(__name__)

REFRESH_SECONDS = 240.0
"""Service Bus detaches a link after 10 minutes without a message (Microsoft Learn, "AMQP errors in Azure Service Bus"); a
standby whose link is renewed before that can send immediately."""
LISTEN_SECONDS = 30.0
"""How often an idle connection is read and kept alive, as the SDK's own keep-alive thread does. Closing a connection, and so each refusal
of a link, would wait up to a second for the end of that thread."""
_PROGRESS_BYTES, _PATIENT_SECONDS = 1 << 10, 86_400.0  # fewer bytes, such as those of keep-alives, are no progress


@dataclass(frozen=True, slots=True)
class Attempt:
    """The outcome of one attempt.

    Attributes:
        error: the SDK's exception; None if the namespace accepted the messages.
        failure: its meaning; None if the namespace accepted the messages.
        is_definite: whether the messages were certainly not accepted; meaningless without a failure.
        was_sent: whether the link was open and the SDK was called to send, so that a refusal concerns the messages.
        was_open: whether the link was open before, so that its connection may have been lost meanwhile.
        seconds: how long it took.
    """

    error: BaseException | None = None
    failure: Failure | None = None
    is_definite: bool = True
    was_sent: bool = False
    was_open: bool = False
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the namespace accepted the messages."""
        return self.failure is None


@dataclass(slots=True)
class _Task:
    parcel: Parcel | None  # None: open the link
    deadline: float
    done: Future[Attempt]
    has_begun: bool = False
    is_patient: bool = False
    arrived_bytes: int = 0  # of the connection, when last looked at


class Lane:
    """The connection to one entity of one namespace; its methods may be called from any thread.

    Args:
        endpoint: the namespace.
        entity: queue or topic.
        connect_timeout: seconds for opening a connection in the background.
        idle_refresh: seconds without a message after which the link is closed and opened again; 0: never.

    Attributes:
        has_been_open: whether a link was ever opened.
        max_message_bytes: the largest message that the link accepts; 0 while unknown.
        max_batch_bytes: the largest batch that the link accepts.
    """

    def __init__(
        self, endpoint: Endpoint, entity: str, *, connect_timeout: float = 15.0, idle_refresh: float = REFRESH_SECONDS
    ) -> None:
        self.endpoint = endpoint
        self.entity = entity
        self.has_been_open = False
        self.max_message_bytes = 0
        self.max_batch_bytes = 0
        self._connect_timeout = connect_timeout
        self._idle_refresh = idle_refresh
        self._lock = threading.Lock()
        self._worker: _Worker | None = None
        self._is_closed = False

    @property
    def is_open(self) -> bool:
        """Whether a link is open, as far as known."""
        worker = self._worker
        return worker is not None and worker.is_open and not worker.has_ended

    def open_soon(self, timeout: float | None = None) -> Future[Attempt]:
        """Begin to open the link in the background; the outcome arrives within `timeout` seconds or not at all."""
        return self.start_opening(self._connect_timeout if timeout is None else timeout).done

    def start_opening(self, timeout: float) -> Sending:
        """As `open_soon`, for callers that give the opening up: nothing else ends an opening that hangs."""
        return Sending(self, *self._give(None, timeout), timeout)

    def send(self, parcel: Parcel, timeout: float, *, is_patient: bool = False) -> Attempt:
        """Send, and wait no longer than `timeout` seconds; a patient attempt continues while bytes arrive there, however slowly."""
        return Sending(self, *self._give(parcel, timeout, is_patient=is_patient), timeout).wait()

    def start(self, parcel: Parcel, timeout: float) -> Sending:
        """Begin to send; the outcome may be waited for until `timeout` seconds after this call."""
        return Sending(self, *self._give(parcel, timeout), timeout)

    def not_started(self, error: Exception) -> Sending:
        """The attempt that replaces one for which `start` raised: certainly not sent."""
        task = _Task(None, time.monotonic() + 1.0, Future())
        task.done.set_result(Attempt(error, Failure.GONE))
        return Sending(self, None, task, 0.0)

    def abandon(self) -> None:
        """Abandon the current attempt with its connection; its waiter returns at once."""
        worker = self._worker
        if worker is not None:
            worker.abandon()

    def close(self, timeout: float = 2.0) -> None:
        """Close the connection; waits for it `timeout` seconds at most."""
        with self._lock:
            self._is_closed = True
            worker, self._worker = self._worker, None
        if worker is not None:
            worker.finish(timeout)

    def _give(self, parcel: Parcel | None, timeout: float, *, is_patient: bool = False) -> tuple[_Worker, _Task]:
        task = _Task(parcel, time.monotonic() + timeout, Future(), is_patient=is_patient)
        with self._lock:
            if self._is_closed:
                raise ValueError(f"the sender of {self.entity!r} is closed; make a new one")
            if self._worker is None or not self._worker.give(task):
                self._worker = _Worker(self, self._connect_timeout, self._idle_refresh)
                self._worker.give(task)
            return self._worker, task


class Sending:
    """A pending attempt.

    Attributes:
        done: has the outcome once the SDK's call has returned, which may never happen.
        deadline: monotonic time after which it is given up.
    """

    __slots__ = ("_lane", "_task", "_timeout", "_worker")

    def __init__(self, lane: Lane, worker: _Worker | None, task: _Task, timeout: float) -> None:
        self._lane, self._worker, self._task, self._timeout = lane, worker, task, timeout

    @property
    def done(self) -> Future[Attempt]:
        return self._task.done

    @property
    def seconds_left(self) -> float:
        """Seconds until it is given up."""
        return max(0.0, self._task.deadline - time.monotonic())

    def wait(self) -> Attempt:
        """The outcome; blocks until the deadline at most, which a patient attempt puts off."""
        while True:
            try:
                return self._task.done.result(self.seconds_left)
            except FutureTimeoutError:
                if self._worker is None or not self._worker.progresses(self._task):
                    return self.expire()
                self._task.deadline = time.monotonic() + self._timeout

    def expire(self) -> Attempt:
        """Give it up: its connection is cut, and its outcome is unknown if it had begun."""
        if self._worker is not None:
            self._worker.abandon()
        error = TimeoutError(f"no answer from {self._lane.endpoint.given} within {self._timeout:g} seconds")
        return Attempt(error, Failure.UNKNOWN, not self._task.has_begun, self._task.has_begun, seconds=self._timeout)


class _Worker:
    """One thread with one connection."""

    def __init__(self, lane: Lane, connect_timeout: float, idle_refresh: float) -> None:
        self.is_open = False
        self.has_ended = False
        self._pid = os.getpid()
        self._lane = lane
        self._connect_timeout = connect_timeout
        self._idle_refresh = idle_refresh
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._client: Any = None
        self._sender: Any = None
        self._handler: Any = None
        self._socket: Any = None
        self._ended_by: Attempt | None = None
        self._thread = threading.Thread(target=self._run, name=f"isthmus-lane-{lane.entity}", daemon=True)
        self._thread.start()

    @property
    def _wire(self) -> Any:
        return self._socket or sdk.socket_of(self._handler)

    def give(self, task: _Task) -> bool:
        """Add a task; False if this worker accepts none any more."""
        with self._lock:
            if self.has_ended or self._pid != os.getpid():  # a forked child has no thread of its parent's
                return False
            self._tasks.put(task)
            return True

    def abandon(self) -> None:
        """Accept no more tasks, and cut the connection, so that a call that waits for it ends."""
        with self._lock:
            self.has_ended = True
        self._tasks.put(None)
        if self._pid == os.getpid():  # a forked child would shut down its parent's connection
            sdk.sever(self._wire)

    def progresses(self, task: _Task) -> bool:
        """Whether bytes of a patient attempt have arrived since the last look."""
        if not (task.is_patient and task.has_begun) or self.has_ended:
            return False
        before, task.arrived_bytes = task.arrived_bytes, delivered_bytes(self._wire)
        return task.arrived_bytes - before >= _PROGRESS_BYTES

    def finish(self, timeout: float) -> None:
        """Run the remaining tasks, and close."""
        with self._lock:
            self.has_ended = True
        self._tasks.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            self.abandon()
            self._thread.join(timeout)

    def _run(self) -> None:
        used_at = time.monotonic()
        try:
            while True:
                try:
                    task = self._tasks.get(timeout=LISTEN_SECONDS if self.is_open else None)
                except queue.Empty:
                    if self._idle_refresh and time.monotonic() - used_at >= self._idle_refresh:
                        self._refresh()
                        used_at = time.monotonic()
                    else:
                        self._listen()
                    continue
                if task is None:
                    break
                used_at = time.monotonic()
                attempt = self._attempt(task)
                if _ends_connection(attempt):
                    with self._lock:
                        self.has_ended = True
                    self._ended_by = attempt
                    self.is_open = False
                task.done.set_result(attempt)
                if self.has_ended:
                    break
        finally:
            with self._lock:
                self.has_ended = True
            self.is_open = False
            self._leave_tasks()
            self._close()

    def _attempt(self, task: _Task) -> Attempt:
        began = time.monotonic()
        if self.has_ended or began >= task.deadline:
            late = TimeoutError("the attempt was not begun in time")
            return Attempt(late, Failure.GONE)
        link_was_open, was_open = False, self.is_open
        try:
            self._open(task.deadline)
            if task.parcel is None:
                return Attempt(seconds=time.monotonic() - began)
            left = task.deadline - time.monotonic()
            if left <= 0 or self.has_ended:
                raise TimeoutError("the link was opened too late")
            batch = self._batch(task.parcel)
            task.arrived_bytes = delivered_bytes(self._wire)
            link_was_open = task.has_begun = True
            with sdk.writing_within(self._wire, None if task.is_patient else left):
                self._sender.send_messages(batch, timeout=_PATIENT_SECONDS if task.is_patient else left)
            self._socket = self._wire
        except Exception as error:  # noqa: BLE001  # any exception of the SDK is an outcome, which the caller judges
            failure = classify(error)
            definite = failure.is_definite(link_was_open) if link_was_open else True
            return Attempt(error, failure, definite, link_was_open, was_open, time.monotonic() - began)
        return Attempt(seconds=time.monotonic() - began)

    def _open(self, deadline: float) -> None:
        if self.is_open:
            return
        seconds = max(0.1, deadline - time.monotonic())
        self._client = self._lane.endpoint.client(retry_total=0, try_timeout=seconds)
        self._sender = self._client.get_queue_sender(self._lane.entity, **sdk.WITHOUT_THREAD)
        sdk.watch_handler(self._sender, self._note_handler, self._check_wanted)
        self._check_wanted()
        self._sender.__enter__()
        self._sender._config.try_timeout = None  # for the opening only; each send has its own
        self._lane.max_message_bytes, self._lane.max_batch_bytes = sdk.limits(self._sender)
        self._socket = sdk.socket_of(self._handler)
        self.is_open = self._lane.has_been_open = True

    def _note_handler(self, handler: Any) -> None:
        """The SDK opens a connection: the first one, or one that replaces another that it closed after a refusal."""
        sdk.release(self._socket)  # the SDK leaves some open
        self._handler, self._socket = handler, None
        self._check_wanted()

    def _check_wanted(self) -> None:
        """A connection that the SDK opened after the attempt was abandoned had no socket yet that `abandon` could shut down."""
        if self.has_ended:
            # An error of the SDK: any other exception during the opening is logged by the SDK with a traceback.
            raise OperationTimeoutError(message="the attempt was abandoned")

    def _batch(self, parcel: Parcel) -> Any:
        first = parcel.message_ids[0] if parcel.message_ids else None
        return sdk.batch_of(self._sender, parcel.payloads, first, parcel.session_id, parcel.partition_key)

    def _listen(self) -> None:
        """Keep an idle connection; one that was lost is closed, and the next attempt opens another."""
        try:
            sdk.listen(self._sender)
        except Exception as error:  # noqa: BLE001  # any exception of the SDK means that the connection is unusable
            _log.debug("an idle connection was lost: %s", error)
            self._close()

    def _refresh(self) -> None:
        """Close a link that has been idle and open it again, before the namespace detaches it."""
        self._close()
        try:
            self._open(time.monotonic() + self._connect_timeout)
        except Exception as error:  # noqa: BLE001  # the next attempt opens it, and reports the error
            _log.debug("opening an idle link again failed: %s", error)
            self._close()

    def _leave_tasks(self) -> None:
        while True:
            try:
                task = self._tasks.get_nowait()
            except queue.Empty:
                return
            if task is not None and not task.done.done():
                task.done.set_result(self._unbegun())

    def _unbegun(self) -> Attempt:
        """The outcome of a task that waited behind the one that ended the connection: a refusal of that one counts for it too."""
        ended = self._ended_by
        if ended is not None and ended.failure is not None and not ended.failure.region_may_be_gone:
            return Attempt(ended.error, ended.failure)
        return Attempt(ConnectionError("the connection was given up before this attempt was begun"), Failure.GONE)

    def _close(self) -> None:
        client, sender, sock = self._client, self._sender, self._wire
        self._client = self._sender = self._handler = self._socket = None
        self.is_open = False
        for each in (sender, client):
            if each is not None:
                try:
                    each.close()
                except Exception as error:  # noqa: BLE001  # a connection that is given up may fail in any way
                    _log.debug("closing a connection failed: %s", error)
        sdk.release(sock)


def _ends_connection(attempt: Attempt) -> bool:
    """Whether the connection must not be used again; the SDK has closed the link itself after most failures."""
    if attempt.failure is None:
        return False
    return not attempt.was_sent or attempt.failure not in (Failure.REFUSED, Failure.MISUSE, Failure.FULL, Failure.BUSY)
