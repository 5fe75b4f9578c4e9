"""Completes selected messages anywhere in an entity.

What it is: one pass over an entity under peek-lock: the selected messages are passed on, all others are kept locked, so that they
are not delivered again, and are released at the end. In an entity with sessions it is a pass over one session, which is locked
meanwhile. What it is not: the selection (`peek`).

Invariants:
    I1. Only messages named by sequence number are passed on, each once; later messages are left alone.
    I2. Other messages are released, not abandoned: their delivery counts stay unchanged, unless this process is killed.
    I3. A message is settled only after `take` has returned it, and counts as completed only once the namespace has confirmed it.
    I4. The locks of all received messages are renewed until they are settled, also while `take` runs: of those that wait behind the ones that it got, too.
    I5. New messages, however many, do not keep a pass from its end.
    I6. A pass does not end because renewals or `take` last long: it is quiet only while it waits, and nothing arrives.
    I7. A message whose lock is known to be lost is not passed on: it comes again. Passed on, it would stay, and be sent again by the next call.
    I8. Wanted messages count as not there only after the namespace has answered that it sends no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from isthmus.amqp import section
from isthmus.amqp.performative import Accepted, Released
from isthmus.entities.queue.run import RunSet
from isthmus.errors import IsthmusError, OperationTimeoutError
from isthmus.operations.message import sequence_of
from isthmus.operations.window import Window
from isthmus.transport import Client, Management, Receiver
from isthmus.transport.motion import LEAST_BYTES
from isthmus.transport.receiver import Deliveries

__all__ = ["RENEWAL_SECONDS", "Taken", "sweep"]

_PARTITION_BITS = 48
_WINDOW = 500
_FIRST_WINDOW = 20
_RENEWED_AT_ONCE = 500
_DEFAULT_LOCK_SECONDS = 30.0
RENEWAL_SECONDS = 1.5
"""The shortest lock of the service lasts 5 s, and a lock's duration is only known by two clocks, which may differ."""
_ANSWER_SECONDS = 60.0
_DRAIN_SECONDS = 30.0
# Of the time that the namespace needed to attach the link: as long as that, nothing can arrive.
_ROUND_TRIPS = 3

Take = Callable[[Sequence["Taken"], Callable[[], None]], Sequence["Taken"]]


class Taken(NamedTuple):
    """A locked message."""

    delivery_id: int
    tag: bytes
    payload: bytes


def sweep(
    client: Client,
    path: str,
    wanted: RunSet,
    take: Take,
    *,
    session_id: str | None = None,
    quiet_seconds: float = 3.0,
    at_once: int = 100,
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Pass the wanted messages on and complete those that were taken.

    Args:
        client: connected.
        path: queue, subscription or dead-letter queue.
        wanted: sequence numbers; those that were passed on are removed from it.
        take: gets locked messages in order, and a function that renews their locks if that is due; returns those that it took, which
            are then completed.
        session_id: of the session whose messages they are; None in an entity without sessions.
        quiet_seconds: the pass ends when no part of a message, and no message that may be followed by a wanted one, has arrived for so long, or for
            several round trips: the others are locked by others, or removed.
        at_once: how many messages `take` gets at most; those behind them it gets only if their locks are still kept then.
        is_stopped: called repeatedly; the pass ends when it returns true.

    Returns:
        How many messages were completed. Those that were taken and whose locks were lost meanwhile are unchanged.

    Raises:
        LockLostError: another receiver has locked the session.
        IsthmusError: the namespace refused or is unreachable; uncompleted messages are unchanged once their locks have expired. Its attribute
            `completed` says how many were, as far as the namespace has confirmed it.
    """
    if not wanted:
        return 0
    began = time.monotonic()
    receiver = Receiver(
        client, path, confirms=True, in_session=session_id is not None, session_id=session_id
    ).wait_attached()
    quiet_seconds = max(quiet_seconds, _ROUND_TRIPS * (time.monotonic() - began))
    pass_ = _Pass(client, path, receiver, session_id)
    try:
        _carry(receiver, pass_, wanted, take, quiet_seconds, at_once, is_stopped)
        return pass_.finish()
    except IsthmusError as error:
        error.attributes["completed"] = pass_.completed()
        raise


def _carry(
    receiver: Receiver,
    pass_: _Pass,
    wanted: RunSet,
    take: Take,
    quiet_seconds: float,
    at_once: int,
    is_stopped: Callable[[], bool],
) -> None:
    """Pass the wanted messages on until no more of them arrive."""
    # By partition, whose number is in the top 16 bits: their messages arrive in rotation, each partition's in order.
    lasts: dict[int, int] = {}
    for _, last in wanted:
        lasts[last >> _PARTITION_BITS] = max(last, lasts.get(last >> _PARTITION_BITS, 0))
    quiet = 0.0

    def pass_on(came: Sequence[Deliveries]) -> None:
        nonlocal quiet
        pass_.keep(came)
        for run in came:
            chosen: list[tuple[int, Taken]] = []
            for number, (tag, payload) in enumerate(zip(run.tags, run.payloads, strict=True)):
                taken = Taken((run.first_id + number) & 0xFFFFFFFF, bytes(tag), payload)
                if not pass_.has(taken):  # it is delivered again
                    continue
                sequence = sequence_of(payload)
                partition = sequence >> _PARTITION_BITS
                if partition in lasts:
                    # A message of a finished partition does not indicate that any will arrive from the others.
                    quiet = 0.0
                    if sequence >= lasts[partition]:
                        del lasts[partition]
                if sequence in wanted:
                    chosen.append((sequence, taken))
            pass_.learn(run.payloads)
            for start in range(0, len(chosen), at_once):
                pass_.renew()
                part: list[Taken] = []
                for sequence, taken in chosen[start : start + at_once]:
                    if sequence not in wanted:
                        continue
                    if not pass_.has(taken):
                        lasts[sequence >> _PARTITION_BITS] = max(sequence, lasts.get(sequence >> _PARTITION_BITS, 0))
                        continue
                    wanted.discard(sequence, sequence)
                    part.append(taken)
                if part:
                    pass_.settle([each.delivery_id for each in take(part, pass_.renew)])
                    quiet = 0.0

    while wanted and lasts and not is_stopped():
        if receiver.error is not None:
            raise receiver.error
        if quiet >= quiet_seconds:
            # Only the namespace's answer shows that there are no more: the network may have stalled (I8).
            before = wanted.count()
            pass_.drain()
            pass_on(receiver.take())
            if wanted.count() == before:
                return
        if receiver.credit <= pass_.window.size // 2:
            receiver.grant(pass_.window.size)
        waited, has_moved = pass_.wait(min(0.5, quiet_seconds))
        came = receiver.take()
        quiet = 0.0 if has_moved and not came else quiet + waited
        pass_on(came)
        pass_.renew()


class _Pass:
    """The locked messages of one sweep, and the confirmed settlements."""

    def __init__(self, client: Client, path: str, receiver: Receiver, session_id: str | None) -> None:
        self.window = Window(_WINDOW, _FIRST_WINDOW)
        self._came_bytes = 0
        self._client = client
        self._session_id = session_id
        self._receiver = receiver
        self._management = Management(client, path)
        # Lock tokens by delivery, and the partition of each.
        self._locked: dict[int, tuple[bytes, int]] = {}
        # Tokens of lost locks: one in a request costs many requests.
        self._lost: set[bytes] = set()
        # Settled, and not answered yet.
        self._asked: set[int] = set()
        self._completed = 0
        self._lock_seconds = _DEFAULT_LOCK_SECONDS
        self._renewed_at = time.monotonic()
        # Duration of the last renewal: some seconds for 100,000 locks.
        self._renewal_seconds = 0.0

    def wait(self, seconds: float) -> tuple[float, bool]:
        """Wait for messages and answers; returns how long that took, and whether bytes of them came. Those of renewals do not count."""
        began, before = time.monotonic(), self._client.received_bytes
        self._client.wait(seconds)
        waited, came = time.monotonic() - began, self._client.received_bytes - before
        self.window.carried(came, waited)
        self._came_bytes += came
        has_moved = self._came_bytes >= LEAST_BYTES
        if has_moved:
            self._came_bytes = 0
        return waited, has_moved

    def drain(self) -> None:
        """Take the credit back; messages that were sent before have arrived then.

        Raises:
            OperationTimeoutError: the namespace does not answer.
        """
        receiver = self._receiver
        receiver.drain()
        self._client.wait_answer(
            lambda: receiver.drained or receiver.error is not None, _DRAIN_SECONDS, f"'{receiver.path}': no answer"
        )

    def keep(self, came: Iterable[Deliveries]) -> None:
        """Keep the locks of messages."""
        for run in came:
            for number, (tag, payload) in enumerate(zip(run.tags, run.payloads, strict=True)):
                if bytes(tag) not in self._lost:
                    delivery_id = (run.first_id + number) & 0xFFFFFFFF
                    self._locked[delivery_id] = bytes(tag), sequence_of(payload) >> _PARTITION_BITS

    def has(self, taken: Taken) -> bool:
        """Whether the lock of a message is kept, as far as known."""
        return taken.tag not in self._lost

    def learn(self, payloads: Sequence[bytes]) -> None:
        """Measure how long locks last, and how many messages may be in transit."""
        payload = payloads[-1]
        self.window.learn(payloads)
        until = section.map_value(payload, section.locate(payload).message_annotations, "x-opt-locked-until")
        if isinstance(until, int):
            self._lock_seconds = max(1.0, until / 1000 - time.time())

    def completed(self) -> int:
        """How many messages the namespace has confirmed as completed."""
        self._record_answers()
        return self._completed

    def settle(self, ids: Sequence[int], state: Any = None) -> None:
        """Complete deliveries, or give them another outcome."""
        self._asked.update(ids)
        _dispose(self._receiver, ids, state)
        self._record_answers()

    def _record_answers(self) -> None:
        """Record the namespace's answers; a refused settlement had lost its lock."""
        outcomes = self._receiver.outcomes
        while outcomes:
            first, last, state = outcomes.popleft()
            for number in range(((last - first) & 0xFFFFFFFF) + 1):
                each = (first + number) & 0xFFFFFFFF
                if each in self._asked:
                    self._asked.discard(each)
                    self._locked.pop(each, None)
                    self._completed += isinstance(state, Accepted)

    def _await(self) -> None:
        """Wait for all answers.

        Raises:
            OperationTimeoutError: they did not arrive.
            IsthmusError: the link is closed.
        """

        def is_answered() -> bool:
            self._record_answers()
            return not self._asked or self._receiver.error is not None

        silent = 0.0
        while not is_answered():
            if silent >= _ANSWER_SECONDS:
                raise OperationTimeoutError(
                    f"'{self._receiver.path}': no answer to a settlement within {_ANSWER_SECONDS:g} s"
                )
            before = len(self._asked)
            waited, has_moved = self.wait(0.5)
            silent = 0.0 if has_moved or len(self._asked) < before else silent + waited
            self.renew()
        if self._asked and self._receiver.error is not None:
            raise self._receiver.error

    def renew(self) -> None:
        """Renew the locks of the locked messages, in time."""
        # If renewals take long, messages still arrive between them.
        interval = min(self._lock_seconds / 3, max(RENEWAL_SECONDS, 2 * self._renewal_seconds))
        began = time.monotonic()
        if began - self._renewed_at < interval:
            return
        if self._session_id is not None:
            self._management.renew_session(self._session_id)
        else:
            self._renew_messages()
        self._renewed_at = time.monotonic()
        self._renewal_seconds = self._renewed_at - began

    def _renew_messages(self) -> None:
        self.keep(self._receiver.arrived)  # while `take` runs
        by_partition: dict[int, list[bytes]] = {}
        for each, (tag, partition) in self._locked.items():
            if each not in self._asked:
                by_partition.setdefault(partition, []).append(tag)
        groups = [
            tokens[start : start + _RENEWED_AT_ONCE]
            for tokens in by_partition.values()  # one request renews those of one partition only
            for start in range(0, len(tokens), _RENEWED_AT_ONCE)
        ]
        lost = set(self._management.renew_groups(groups))
        if lost:  # they are delivered again, and are locked again
            self._lost |= lost
            self._locked = {each: held for each, held in self._locked.items() if held[0] not in lost}

    def finish(self) -> int:
        """Release everything that is locked or still in flight; returns how many messages were completed.

        Raises:
            IsthmusError: see `_await`.
        """
        receiver = self._receiver
        self._await()
        completed = self._completed
        self.drain()
        for run in receiver.take():
            for number, tag in enumerate(run.tags):
                self._locked[(run.first_id + number) & 0xFFFFFFFF] = bytes(tag), 0
        self.settle(sorted(self._locked), Released())
        self._await()
        self._management.close()
        receiver.close()
        return completed


def _dispose(receiver: Receiver, ids: Sequence[int], state: object = None) -> None:
    first = last = -1
    for each in ids:
        if first < 0:
            first = last = each
        elif each == last + 1:
            last = each
        else:
            receiver.dispose(first, last, state)
            first = last = each
    if first >= 0:
        receiver.dispose(first, last, state)
