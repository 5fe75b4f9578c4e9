"""Receives messages, hands each on, and completes it.

What it is: peek-lock with a small window, for one operator at a terminal or a script. What it is not: an application's receiver;
locks are not renewed, because each message is completed as soon as it was handed on.

Invariants:
    I1. A message is completed only after it was handed on; where that fails, its lock expires and it is delivered again.
    I2. No more messages are locked than were asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from isthmus.amqp.performative import Accepted
from isthmus.transport import Client, Receiver

__all__ = ["Received", "receive"]

_WINDOW = 50
_ANSWER_SECONDS = 30.0


class Received(NamedTuple):
    """What was done.

    Attributes:
        completed: messages that were handed on and that the namespace has removed.
        left: messages that were handed on and whose lock was lost before; they are delivered again.
        session_id: of the session that was held; None without one.
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
) -> Received:
    """Receive messages until there are enough, or none has come for a while.

    Args:
        client: connected.
        path: queue, subscription or dead-letter queue.
        count: how many at most; 0 is all.
        wait_seconds: how long to wait for the next one.
        take: gets each encoded message.
        in_session: whether to hold a session.
        session_id: which; None is the next available one.

    Raises:
        IsthmusError: the peer refused or is gone; what was not completed is delivered again once its lock has expired.
    """
    receiver = Receiver(client, path, confirms=True, in_session=in_session, session_id=session_id).wait_attached(
        max(30.0, wait_seconds)
    )
    taken = completed = left = 0
    is_ending = False
    heard_at = time.monotonic()
    while not (is_ending and receiver.drained):
        # What has arrived and was not taken yet counts, too (I2).
        wanted = min(_WINDOW, count - receiver.received) if count else _WINDOW
        if not is_ending and wanted > 0 and not receiver.credit:
            receiver.grant(wanted)
        for run in receiver.take():
            for payload in run.payloads:
                take(payload)
            taken += len(run.payloads)
            accepted = _settle(client, receiver, run.first_id, len(run.payloads))
            completed, left = completed + accepted, left + len(run.payloads) - accepted
            heard_at = time.monotonic()
        if receiver.error is not None:
            raise receiver.error
        if not is_ending and ((count and taken >= count) or time.monotonic() - heard_at >= wait_seconds):
            # What was sent before the drain is answered comes in this loop too.
            is_ending = True
            receiver.drain()
        elif not receiver.arrived:
            client.wait(0.1 if is_ending else min(0.5, wait_seconds))
    for run in receiver.take():
        for payload in run.payloads:
            take(payload)
        accepted = _settle(client, receiver, run.first_id, len(run.payloads))
        completed, left = completed + accepted, left + len(run.payloads) - accepted
    held = receiver.session_id
    receiver.close()
    return Received(completed, left, held)


def _settle(client: Client, receiver: Receiver, first: int, count: int) -> int:
    """Complete a run of deliveries and wait for the answers; how many the namespace has removed."""
    receiver.dispose(first, (first + count - 1) & 0xFFFFFFFF)
    answered = accepted = 0
    deadline = time.monotonic() + _ANSWER_SECONDS
    while answered < count:
        client.wait_until(
            lambda: bool(receiver.outcomes) or receiver.error is not None,
            deadline - time.monotonic(),
            f"'{receiver.path}': a completion was not answered",
        )
        if receiver.error is not None and not receiver.outcomes:
            raise receiver.error
        low, high, state = receiver.outcomes.popleft()
        answered += high - low + 1
        accepted += high - low + 1 if isinstance(state, Accepted) else 0
    return accepted
