"""The threads of a source that pulls: one that receives, and a few that settle and renew.

What it is: the calls of a `Puller`, and the account of its locks under one condition. What it is not: the decisions (`lock_account`), or the port
(`source`).

Invariants:
    I1. No more is received than was granted, and no more locked at once than `most`.
    I2. A settled message is completed at the system until it has answered, over as many connections as that takes.
    I3. After a failure no request is made until the source is opened again; the opening does not wait for a receive that waits for messages.
    I4. At the end, settled messages are completed and the others released, for `CLOSE_SECONDS`.
    I5. With `only_present` the end is reported only once the system has answered the settlement of all messages.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Exhausted, SourceLost, SourceOpened
from isthmus.connectors.pull.lock_account import Job, LockedMessage, Locks
from isthmus.connectors.pull.present import Present
from isthmus.connectors.pull.puller import Pulled, Puller, PullError
from isthmus.errors import IsthmusError

__all__ = ["PullThreads"]

# An empty source is polled again after so long, at first and at most.
FIRST_PAUSE_SECONDS = 0.05
# Shorter than a pool waits for its threads.
CLOSE_SECONDS = 4.0

StateEvent = SourceOpened | SourceLost | Exhausted


class PullThreads:
    """Reads a source.

    Args:
        puller: calls the system.
        parallel: settlements in flight at most.
        most: messages locked at most.
        pause_seconds: how long to wait at most before an empty source is polled again.
        only_present: deliver only messages that existed when it was first opened.
        wake: called when there are results.
    """

    def __init__(
        self,
        puller: Puller,
        *,
        parallel: int,
        most: int,
        pause_seconds: float,
        only_present: bool,
        wake: Callable[[], None],
    ) -> None:
        self._puller = puller
        self._most = most
        self._pause_seconds = pause_seconds
        self._wake = wake
        self._condition = threading.Condition()  # guards all that follows
        self._locks = Locks(puller.max_deliveries)
        self._present = Present() if only_present else None
        self._state_events: deque[StateEvent] = deque()
        self._credit = 0
        self._wants_open = self._is_open = self._stops = False
        self._close_by = 0.0
        self._threads = [threading.Thread(target=self._receive, name=f"pull-{puller.entity}", daemon=True)]
        self._threads += [
            threading.Thread(target=self._settle, name=f"settle-{puller.entity}", daemon=True) for _ in range(parallel)
        ]
        self._running = 0

    # ---- for the loop's thread

    def open(self) -> None:
        """Connects, or connects again."""
        with self._condition:
            self._wants_open = True
            self._condition.notify_all()
        if self._threads[0].ident is None:
            for thread in self._threads:
                self._start(thread)

    def _start(self, thread: threading.Thread) -> None:
        with self._condition:
            self._running += 1
        try:
            thread.start()
        except RuntimeError:  # the limit of threads is reached; the owner is told, and closes
            with self._condition:
                self._running -= 1
            raise

    def grant(self, credit: int) -> None:
        """Raises the credit by so many messages."""
        with self._condition:
            self._credit = credit
            self._condition.notify_all()

    def take(self) -> tuple[list[StateEvent], list[LockedMessage]]:
        """The events to report, and messages within the credit."""
        with self._condition:
            locked_messages = self._locks.take(self._credit)
            self._credit -= len(locked_messages)
            waits = len(self._locks) > 0  # one that cannot be set aside is delivered again
            state_events = [each for each in self._state_events if not (waits and isinstance(each, Exhausted))]
            self._state_events = deque(each for each in self._state_events if waits and isinstance(each, Exhausted))
        return state_events, locked_messages

    def settle(self, first: int, last: int, disposition: Disposition | None = None) -> None:
        """Completes messages, or sets them aside."""
        with self._condition:
            self._locks.settle(first, last, disposition)
            self._condition.notify_all()

    def release(self, first: int, last: int) -> None:
        """Releases messages."""
        with self._condition:
            self._locks.release(first, last)
            self._condition.notify_all()

    def stop(self) -> None:
        """Completes settled messages, releases the others, and ends."""
        with self._condition:
            self._stops = True
            self._close_by = time.monotonic() + CLOSE_SECONDS
            self._credit = 0
            self._locks.release_all()
            self._condition.notify_all()
        self._puller.interrupt()

    @property
    def has_started(self) -> bool:
        """Whether there is a thread to wait for."""
        return self._threads[0].ident is not None

    def join(self, timeout: float | None = None) -> None:
        """Waits for the threads."""
        limit = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if limit is None else max(0.0, limit - time.monotonic()))

    def is_alive(self) -> bool:
        """Whether a thread still runs."""
        return any(thread.is_alive() for thread in self._threads)

    # ---- both kinds of threads

    def _report(self, event: StateEvent) -> None:
        with self._condition:
            self._state_events.append(event)
        self._wake()

    def _lose(self, error: Exception, *, is_opening: bool = False) -> None:
        with self._condition:
            if self._stops or not (self._is_open or is_opening):
                return  # another thread's request has reported it
            self._is_open = False
            self._condition.notify_all()
        if threading.current_thread() is not self._threads[0]:
            self._puller.interrupt()  # locks would end while it waits
        is_fatal = error.is_fatal if isinstance(error, PullError) else not getattr(error, "retryable", True)
        text = (
            str(error)
            if isinstance(error, IsthmusError)
            else f"'{self._puller.entity}': {type(error).__name__}: {error}"
        )
        self._report(SourceLost(text, is_fatal))

    def _ended(self) -> None:
        """A thread ends; the last one closes the puller."""
        with self._condition:
            self._running -= 1
            is_last = not self._running
        if is_last:
            self._puller.close()

    # ---- receiving

    def _receive(self) -> None:
        try:
            while self._open():
                try:
                    self._read()
                except Exception as error:  # noqa: BLE001 - the owner must be told of any error, or the route stalls
                    self._lose(error)
        finally:
            self._ended()

    def _open(self) -> bool:
        """Opens when that is requested; returns False at the end."""
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._wants_open or self._is_open or self._stops)
                if self._stops:
                    return False
                if not self._wants_open:
                    return True
                self._wants_open = False
            try:
                identity = self._puller.open()
            except Exception as error:  # noqa: BLE001 - as above
                self._lose(error, is_opening=True)
                continue
            with self._condition:
                self._is_open = True
                self._condition.notify_all()
                if self._present is not None:
                    self._present.opened(self._now_ms())
            self._report(SourceOpened(identity))
            return True

    def _read(self) -> None:
        pause = 0.0
        while True:
            with self._condition:
                if pause:
                    self._condition.wait_for(lambda: self._stops or self._wants_open or not self._is_open, pause)
                self._condition.wait_for(
                    lambda: self._stops or self._wants_open or not self._is_open or self._room() > 0
                )
                if self._stops or self._wants_open or not self._is_open:
                    return
                room = self._room()
            pulled = self._puller.receive(min(room, self._puller.batch))
            has_arrived = self._take_in(pulled)
            pause = 0.0 if has_arrived else min(max(pause * 2, FIRST_PAUSE_SECONDS), self._pause_seconds)

    def _room(self) -> int:
        return min(self._credit - self._locks.waiting, self._most - len(self._locks))

    def _take_in(self, pulled: Sequence[Pulled]) -> bool:
        """Adds received messages; returns whether any of them is for the route."""
        present = self._present
        kept = present.split(pulled) if present is not None else pulled
        now = time.monotonic()
        with self._condition:
            is_stopped = self._stops
            is_new = not is_stopped and self._locks.arrive(kept, now)
            self._condition.notify_all()
        if is_stopped:
            self._puller.release([each.lease for each in pulled])
            return False
        if is_new:
            self._wake()
        if present is not None and not kept and not present.is_over and self._is_over(present, now):
            try:
                self._puller.release(present.leave())
            finally:  # if they cannot be released their locks end; there is no later report
                self._report(Exhausted())
        return bool(kept)

    def _is_over(self, present: Present, now: float) -> bool:
        """Whether there are no more messages. A message completed between the two counts still counts as waiting: the next poll corrects that."""
        waiting = self._puller.waiting()
        with self._condition:
            locked = len(self._locks)
        return present.polled(waiting, locked, now)

    def _now_ms(self) -> int:
        offset = self._puller.clock_offset_ms
        return round(time.time() * 1000) if offset is None else offset + round(time.monotonic() * 1000)

    # ---- settling

    def _settle(self) -> None:
        try:
            while True:
                with self._condition:
                    job, locked_messages = self._wait_job()
                if job is Job.NONE:
                    return
                try:
                    self._carry_out(job, locked_messages)
                except Exception as error:  # noqa: BLE001 - as in `_receive`
                    with self._condition:
                        self._locks.failed(locked_messages, time.monotonic())
                    if self._stops:
                        return
                    self._lose(error)
        finally:
            self._ended()

    def _wait_job(self) -> tuple[Job, list[LockedMessage]]:
        """The next request, under the condition; NONE at the end."""
        while True:
            now = time.monotonic()
            if self._stops and (now >= self._close_by or not self._locks.has_jobs or not self._is_open):
                self._condition.notify_all()
                return Job.NONE, []
            if self._is_open:
                job, locked_messages = self._locks.next_jobs(now, self._puller.settle_batch)
                if job is not Job.NONE:
                    return job, locked_messages
            due = self._close_by if self._stops else self._locks.next_renewal()
            self._condition.wait(max(0.0, min(due - now, 60.0)) if self._is_open or self._stops else None)

    def _carry_out(self, job: Job, locked_messages: list[LockedMessage]) -> None:
        puller = self._puller
        with self._condition:
            leases = [locked.lease for locked in locked_messages]
        if job is Job.RENEW:
            renewed = puller.renew(leases)
            with self._condition:
                self._locks.renewed(locked_messages, renewed, time.monotonic())
                self._condition.notify_all()
            return
        if job is Job.COMPLETE:
            taken = puller.complete(leases)
        elif job is Job.RELEASE:
            taken = puller.release(leases)
        else:
            locked = locked_messages[0]
            taken = [puller.set_aside(locked.lease, locked.message, locked.disposition or Disposition("dead-letter"))]
        with self._condition:
            self._locks.done(job, locked_messages, [lease.receipt for lease in leases], taken)
            is_last = not len(self._locks)
            self._condition.notify_all()
        if is_last and self._present is not None:
            self._wake()  # the end may be reported
