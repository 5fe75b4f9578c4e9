"""Receives messages, passes each on, and completes it.

What it is: peek-lock with a small window, for one operator at a terminal or a script; it is smaller where the network is slow, or the reader of what
is passed on. What it is not: an application's receiver.

Invariants:
    I1. A message is completed only after it was passed on. If that fails, the messages passed on before are completed, and the rest is
        released.
    I2. No more messages are locked than requested.
    I3. Messages that arrived and were not passed on before the end was requested are released: their delivery counts stay unchanged.
    I4. It ends only when nothing arrives: a large message may need longer than the time to wait.
    I5. While passing a message on takes long, only that one stays locked: its lock is renewed, those before it are completed, and those behind it
        released. Else their locks would expire, and each time they would be passed on again, with a higher delivery count.
    I6. The lock of a session lasts as long as its messages are waited for.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from isthmus.amqp.performative import Accepted, Released
from isthmus.entities.queue.run import runs_of
from isthmus.errors import IsthmusError, OperationTimeoutError
from isthmus.operations.removal.sweep import RENEWAL_SECONDS
from isthmus.operations.window import Window
from isthmus.transport import Client, Management, Receiver
from isthmus.transport.motion import LEAST_BYTES
from isthmus.transport.receiver import Deliveries

__all__ = ["Received", "receive"]

_WINDOW = 50
_ANSWER_SECONDS = 30.0
_NEXT_SESSION_SECONDS = 5.0
# The shortest lock of the service lasts 5 s.
_LONG_SECONDS = 3.0

Take = Callable[[bytes, Callable[[], bool]], object]


class Received(NamedTuple):
    """The result.

    Attributes:
        completed: messages that were passed on and that the namespace has removed.
        left: messages that were passed on and whose lock was lost before; they are delivered again.
        session_id: of the session that was locked; None without one.
    """

    completed: int
    left: int
    session_id: str | None


def receive(
    client: Client,
    path: str,
    count: int,
    wait_seconds: float,
    take: Take,
    *,
    in_session: bool = False,
    session_id: str | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Received:
    """Receive messages until there are enough, or none has arrived for a while.

    Args:
        client: connected.
        path: queue, subscription or dead-letter queue.
        count: how many at most; 0 is all.
        wait_seconds: how long to wait for the next one.
        take: gets each encoded message, and a function that it calls repeatedly while it waits; that returns whether the end was requested.
        in_session: whether to lock a session.
        session_id: which; None is the next available one.
        is_stopped: called repeatedly; once it returns true no further message is passed on.

    Raises:
        IsthmusError: the namespace refused or is unreachable; uncompleted messages are delivered again once their locks have expired.
        Exception: of `take`; messages that it took before are completed.
    """
    is_next_session = in_session and session_id is None
    receiver = Receiver(client, path, confirms=True, in_session=in_session, session_id=session_id)
    try:
        receiver.wait_attached(max(_NEXT_SESSION_SECONDS if is_next_session else _ANSWER_SECONDS, wait_seconds))
    except OperationTimeoutError:
        if is_next_session:  # a namespace does not answer until there is one
            return Received(0, 0, None)
        raise
    hands = _Hands(client, receiver, take, is_stopped)
    window, is_ending, came = Window(_WINDOW, first=1), False, 0
    last_event_at = time.monotonic()
    while not (is_ending and receiver.drained):
        if runs := receiver.take():
            window.learn([payload for run in runs for payload in run.payloads])
            hands.hand_on(runs)
            last_event_at = time.monotonic()
        if receiver.error is not None:
            raise receiver.error
        is_enough = count and hands.taken >= count
        if not is_ending and (hands.is_stopped() or is_enough or time.monotonic() - last_event_at >= wait_seconds):
            # Messages that were sent before the answer to the drain arrive in this loop too.
            is_ending, last_event_at = True, time.monotonic()
            receiver.drain()
        elif is_ending and time.monotonic() - last_event_at >= _ANSWER_SECONDS:
            raise OperationTimeoutError(f"'{path}': no answer within {_ANSWER_SECONDS:g} s")
        elif not receiver.arrived:
            hands.keep_session()
            size = min(window.size, hands.most)
            wanted = min(size, count - hands.taken) if count else size  # I2
            if not is_ending and wanted > 0 and not receiver.credit:
                receiver.grant(wanted)
            began, before = time.monotonic(), client.received_bytes
            client.wait(0.1 if is_ending else min(0.5, wait_seconds))
            window.carried(client.received_bytes - before, time.monotonic() - began)
            came += client.received_bytes - before
            if came >= LEAST_BYTES:  # a part of a message (I4); heartbeats are less
                came, last_event_at = 0, time.monotonic()
    hands.hand_on(receiver.take())
    session = receiver.session_id
    receiver.close()
    if hands.failure is not None:
        raise hands.failure
    return Received(hands.completed, hands.taken - hands.completed, session)


class _Locked(NamedTuple):
    """A locked message."""

    delivery_id: int
    tag: bytes
    payload: bytes


class _Hands:
    """Passes messages on and settles them.

    Attributes:
        taken: messages that were passed on.
        completed: those of them that the namespace has removed.
        failure: of `take`; nothing is passed on after it.
        most: how many messages may be locked at once.
    """

    def __init__(self, client: Client, receiver: Receiver, take: Take, is_stopped: Callable[[], bool]) -> None:
        self.taken = self.completed = 0
        self.failure: Exception | None = None
        self.most = _WINDOW
        self._client, self._receiver, self._take, self._is_stopped = client, receiver, take, is_stopped
        self._management: Management | None = None
        self._waiting: deque[_Locked] = deque()
        self._passed: list[int] = []
        self._in_hand: _Locked | None = None
        self._until = self._renewed_at = 0.0

    def is_stopped(self) -> bool:
        """Whether nothing is passed on any more."""
        return self.failure is not None or self._is_stopped()

    def hand_on(self, runs: Sequence[Deliveries]) -> None:
        """Pass messages on, complete those taken, and release the rest."""
        for run in runs:
            for number, (tag, payload) in enumerate(zip(run.tags, run.payloads, strict=True)):
                self._waiting.append(_Locked(run.first_id + number, bytes(tag), payload))
        if not self._waiting:
            return
        self._until = time.monotonic() + _LONG_SECONDS
        while self._waiting and not self.is_stopped():
            self._in_hand = each = self._waiting.popleft()
            try:
                self._take(each.payload, self._meanwhile)
            except Exception as error:  # noqa: BLE001 - raised once the messages taken before are completed
                self.failure = error
                self._waiting.appendleft(each)
                break
            self.taken += 1
            self._passed.append(each.delivery_id)
            if time.monotonic() >= self._until:
                self._take_back()
        self._let_go()
        is_quick = time.monotonic() < self._until
        self.most = min(2 * self.most, _WINDOW) if is_quick else 1

    def _meanwhile(self) -> bool:
        """Keep the connection, and the lock of the message that is passed on; returns whether the end was requested."""
        self._client.service()
        if self._receiver.error is not None:
            raise self._receiver.error
        if time.monotonic() >= self._until and self._is_renewal_due():
            self._take_back()
            self._renew()
        return self._is_stopped()

    def keep_session(self) -> None:
        """Renew the lock of a session, in time: it ends also while messages are waited for."""
        if self._receiver.session_id is not None and self._is_renewal_due():
            self._renew()

    def _is_renewal_due(self) -> bool:
        return time.monotonic() - self._renewed_at >= RENEWAL_SECONDS

    def _renew(self) -> None:
        self._management = self._management or Management(self._client, self._receiver.path)
        with suppress(IsthmusError):  # a lost lock is reported by the link, or as a message that was not removed
            if self._receiver.session_id is not None:
                self._management.renew_session(self._receiver.session_id)
            elif self._in_hand is not None:
                self._management.renew([self._in_hand.tag])
        self._renewed_at = time.monotonic()

    def _take_back(self) -> None:
        """Complete the messages taken, and release all others, also those in transit."""
        self._let_go()
        receiver = self._receiver
        if receiver.credit:
            receiver.drain()
            self._client.wait_answer(
                lambda: receiver.drained or receiver.error is not None,
                _ANSWER_SECONDS,
                f"'{receiver.path}': no answer",
            )
        for run in receiver.take():
            self._settle(range(run.first_id, run.first_id + len(run.payloads)), Released())

    def _let_go(self) -> None:
        """Complete the messages taken, and release those that wait."""
        passed, self._passed = self._passed, []
        waiting = [each.delivery_id for each in self._waiting]
        self._waiting.clear()
        self.completed += self._settle(passed)
        self._settle(waiting, Released())

    def _settle(self, ids: Sequence[int], state: Released | None = None) -> int:
        """Complete deliveries, or give them another outcome, and wait for the answers; returns how many the namespace has removed."""
        receiver = self._receiver
        for first, last in runs_of(ids):
            receiver.dispose(first, last, state)
        answered = accepted = 0
        while answered < len(ids):
            self._client.wait_answer(
                lambda: bool(receiver.outcomes) or receiver.error is not None,
                _ANSWER_SECONDS,
                f"'{receiver.path}': a settlement was not answered",
            )
            if receiver.error is not None and not receiver.outcomes:
                raise receiver.error
            low, high, outcome = receiver.outcomes.popleft()
            answered += high - low + 1
            accepted += high - low + 1 if isinstance(outcome, Accepted) else 0
        return accepted
