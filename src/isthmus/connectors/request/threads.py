"""The threads that make a target's requests.

What it is: a queue of messages, a few threads that take batches from it, and the answers. What it is not: the port (`target`).

Invariants:
    I1. With one thread, requests are made in the order of the messages, and the next one after the answer to the one before.
    I2. Nothing is sent before the pause that a system asked for has passed, also across openings, which the bridge begins meanwhile.
    I3. After a failure nothing more is sent; messages without answer are given up.
    I4. A failure is reported once the other requests in flight have ended: their answers count.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping, Sequence

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.request.requester import BusyError, Requester, RequestError
from isthmus.errors import IsthmusError

__all__ = ["LONGEST_WAIT_SECONDS", "RequestThreads"]

# A system that asks for a longer pause is tried again after so long.
LONGEST_WAIT_SECONDS = 300.0


class RequestThreads:
    """Sends messages by requests.

    Args:
        requester: makes the requests.
        parallel: threads, and so requests in flight at most.
        wake: called when there are answers.
        pauses: until when systems asked for a pause, by identity and entity, for all threads of the process.

    Attributes:
        identity: of the system; None until it has answered.
        lost: why nothing more is sent; None while there is no failure.
    """

    def __init__(
        self,
        requester: Requester,
        parallel: int,
        wake: Callable[[], None],
        pauses: MutableMapping[tuple[str, str], float] | None = None,
    ) -> None:
        self._requester = requester
        self._wake = wake
        self._pauses = {} if pauses is None else pauses
        self._condition = threading.Condition()
        self._queue: deque[tuple[int, bytes]] = deque()
        self._accepted: list[int] = []
        self._refused: list[tuple[int, Refusal]] = []
        self._is_stopped = False
        self._in_flight = 0
        self._failure: Refusal | None = None
        self._wait_until = 0.0
        self.identity: str | None = None
        self.lost: Refusal | None = None
        name = f"request-{requester.entity}"
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(parallel)]

    def start(self) -> None:
        """Connects, and begins."""
        self._threads[0].start()

    def send(self, first: int, payloads: Sequence[bytes]) -> None:
        """Queues messages, numbered from `first` on."""
        with self._condition:
            self._queue.extend(enumerate(payloads, first))
            self._condition.notify(len(payloads))

    def take(self) -> tuple[list[int], list[tuple[int, Refusal]]]:
        """The answers since the last call: numbers of messages that were accepted, and refusals by number."""
        with self._condition:
            answers = self._accepted, self._refused
            self._accepted, self._refused = [], []
        return answers

    def stop(self) -> None:
        """Ends the threads; messages without answer are not waited for."""
        with self._condition:
            self._is_stopped = True
            self._queue.clear()
            self._condition.notify_all()
        self._requester.close()

    def join(self, timeout: float | None = None) -> None:
        """Waits for the threads."""
        limit = None if timeout is None else time.monotonic() + timeout
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(None if limit is None else max(0.0, limit - time.monotonic()))

    def is_alive(self) -> bool:
        """Whether a thread still runs."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def waits_until(self) -> float:
        """Until when nothing is sent, in monotonic seconds, at the system's request."""
        return self._wait_until

    # ---- the threads

    def _run(self) -> None:
        try:
            if threading.current_thread() is self._threads[0]:
                identity = self._requester.open()
                with self._condition:
                    if self._is_stopped:
                        return
                    self.identity = identity
                    self._wait_until = self._pauses.get((identity, self._requester.entity), 0.0)
                    for thread in self._threads[1:]:
                        thread.start()
                self._wake()
            while batch := self._next():
                try:
                    self._carry_out(batch)
                finally:
                    with self._condition:
                        self._in_flight -= 1
                        self._report_failure()
                    self._wake()
        except RequestError as error:
            self._fail(error.refusal)
        except IsthmusError as error:
            kind = RefusalKind.UNKNOWN if error.retryable else RefusalKind.FATAL
            self._fail(Refusal(kind, error.code, str(error)))
        except Exception as error:  # noqa: BLE001 - a thread that ends silently would leave its route waiting
            self._fail(Refusal(RefusalKind.UNKNOWN, "", f"{self._requester.entity}: {type(error).__name__}: {error}"))

    def _carry_out(self, batch: list[tuple[int, bytes]]) -> None:
        try:
            refusals = self._requester.send([payload for _, payload in batch])
        except BusyError as error:
            with self._condition:
                pause = min(error.seconds, LONGEST_WAIT_SECONDS)
                self._wait_until = max(self._wait_until, time.monotonic() + pause)
                self._pauses[self.identity or "", self._requester.entity] = self._wait_until
                self._answered([error.answered.get(at, error.refusal) for at in range(len(batch))], batch)
            return
        except RequestError as error:
            with self._condition:
                answers = sorted(error.answered.items())
                self._answered([refusal for _, refusal in answers], [batch[at] for at, _ in answers])
            raise
        with self._condition:
            self._answered(refusals, batch)

    def _answered(self, refusals: Sequence[Refusal | None], batch: Sequence[tuple[int, bytes]]) -> None:
        for (number, _), refusal in zip(batch, refusals, strict=True):
            if refusal is None:
                self._accepted.append(number)
            else:
                self._refused.append((number, refusal))

    def _next(self) -> list[tuple[int, bytes]]:
        """The next messages to send; empty at the end."""
        with self._condition:
            while not self._is_stopped:
                wait = self._wait_until - time.monotonic()
                if self._queue and wait <= 0:
                    break
                self._condition.wait(wait if wait > 0 else None)
            if self._is_stopped:
                return []
            batch = [self._queue.popleft()]
            size = len(batch[0][1])
            while self._queue and len(batch) < self._requester.batch:
                size += len(self._queue[0][1])
                if size > self._requester.batch_bytes:
                    break
                batch.append(self._queue.popleft())
            self._in_flight += 1
            return batch

    def _fail(self, refusal: Refusal) -> None:
        with self._condition:
            if self._is_stopped:
                return
            self._is_stopped = True
            self._failure = refusal
            self._queue.clear()
            self._condition.notify_all()
            self._report_failure()
        self._wake()

    def _report_failure(self) -> None:
        """Reports a failure where no request is in flight any more (I4), under the condition."""
        if not self._in_flight:
            self.lost = self._failure
