"""Receives messages, passes each on, and completes it.

What it is: peek-lock with a small window, for one operator at a terminal or a script; it is smaller where the network is slow. What it is not: an application's receiver;
locks are not renewed, because each message is completed as soon as it was passed on.

Invariants:
    I1. A message is completed only after it was passed on. If that fails, the messages passed on before are completed, and the rest is
        released.
    I2. No more messages are locked than requested.
    I3. Messages that arrived and were not passed on before the end was requested are released: their delivery counts stay unchanged.
    I4. It ends only when nothing arrives: a large message may need longer than the time to wait.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from isthmus.amqp.performative import Accepted, Released
from isthmus.errors import OperationTimeoutError
from isthmus.operations.window import Window
from isthmus.transport import Client, Receiver
from isthmus.transport.motion import LEAST_BYTES
from isthmus.transport.receiver import Deliveries

__all__ = ["Received", "receive"]

_WINDOW = 50
_ANSWER_SECONDS = 30.0
_NEXT_SESSION_SECONDS = 5.0


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
    take: Callable[[bytes], object],
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
        take: gets each encoded message.
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
        for run in receiver.take():
            window.learn(run.payloads)
            hands.hand_on(run)
            last_event_at = time.monotonic()
        if receiver.error is not None:
            raise receiver.error
        is_enough = count and hands.taken >= count
        if not is_ending and (hands.is_stopped() or is_enough or time.monotonic() - last_event_at >= wait_seconds):
            # Messages that were sent before the answer to the drain arrive in this loop too.
            is_ending = True
            receiver.drain()
        elif not receiver.arrived:
            wanted = min(window.size, count - receiver.received) if count else window.size  # I2
            if not is_ending and wanted > 0 and not receiver.credit:
                receiver.grant(wanted)
            began, before = time.monotonic(), client.received_bytes
            client.wait(0.1 if is_ending else min(0.5, wait_seconds))
            window.carried(client.received_bytes - before, time.monotonic() - began)
            came += client.received_bytes - before
            if came >= LEAST_BYTES:  # a part of a message (I4); heartbeats are less
                came, last_event_at = 0, time.monotonic()
    for run in receiver.take():
        hands.hand_on(run)
    session = receiver.session_id
    receiver.close()
    if hands.failure is not None:
        raise hands.failure
    return Received(hands.completed, hands.taken - hands.completed, session)


class _Hands:
    """Passes messages on and settles them.

    Attributes:
        taken: messages that were passed on.
        completed: those of them that the namespace has removed.
        failure: of `take`; nothing is passed on after it.
    """

    def __init__(
        self, client: Client, receiver: Receiver, take: Callable[[bytes], object], is_stopped: Callable[[], bool]
    ) -> None:
        self.taken = self.completed = 0
        self.failure: Exception | None = None
        self._client, self._receiver, self._take, self._is_stopped = client, receiver, take, is_stopped

    def is_stopped(self) -> bool:
        """Whether nothing is passed on any more."""
        return self.failure is not None or self._is_stopped()

    def hand_on(self, run: Deliveries) -> None:
        """Pass a run on, complete the messages taken, and release the rest."""
        taken = 0
        for payload in run.payloads:
            if self.is_stopped():
                break
            try:
                self._take(payload)
            except Exception as error:  # noqa: BLE001 - raised once the messages taken before are completed
                self.failure = error
                break
            taken += 1
        self.taken += taken
        self.completed += _settle(self._client, self._receiver, run.first_id, taken)
        _settle(self._client, self._receiver, run.first_id + taken, len(run.payloads) - taken, Released())


def _settle(client: Client, receiver: Receiver, first: int, count: int, state: Released | None = None) -> int:
    """Complete a run of deliveries, or give it another outcome, and wait for the answers; returns how many the namespace has removed."""
    if not count:
        return 0
    receiver.dispose(first, first + count - 1, state)
    answered = accepted = 0
    while answered < count:
        client.wait_answer(
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
