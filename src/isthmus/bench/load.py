"""The load of a measurement: fills, drains and paces queues by the product's own client.

What it is: plain loops over `isthmus.transport`, as cheap as possible, because they share the processors of the measured
program. As a process (`python -m isthmus.bench.load RATE SECONDS QUEUE …`, connection string in BENCH_LOAD) it sends at a
steady rate to each queue. It measures nothing but time.

Invariants:
    I1. A message counts as sent when the namespace has accepted it, as received when its completion is written.
    I2. The last bytes of a message are its body, and these begin with the time of sending (monotonic seconds, the same
        for all processes of a machine) and the ordinal.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from isthmus.amqp import BATCH_FORMAT
from isthmus.amqp.section import Header, encode_message
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.errors import OperationTimeoutError
from isthmus.transport import Client, Endpoint, Receiver, Sender, SharedKeyCredential
from isthmus.transport.sender import envelope

__all__ = ["BODY_BYTES", "connect", "drain", "drain_sessions", "fill", "listen", "pace", "read", "stamp_of"]

BODY_BYTES = 1024
BATCH_MESSAGES = 100
# Envelopes in flight: enough that the next batches always wait for the namespace's next commit.
BATCHES_IN_FLIGHT = 20
SINGLES_IN_FLIGHT = 1000
CREDIT = 4000
_STAMP = struct.Struct("<dQ")
_STALL_SECONDS = 120.0


def endpoint(connection_string: str) -> Endpoint:
    """The endpoint of a connection string, which must have a key."""
    parsed = ConnectionString.parse(connection_string)
    assert parsed.key is not None
    return Endpoint(
        host=parsed.host,
        port=parsed.data_port,
        tls=parsed.tls,
        authority=parsed.authority,
        credential=SharedKeyCredential(parsed.key_name, parsed.key.reveal()),
        ca_file=os.environ.get("ISTHMUS_CA_FILE", ""),
    )


@contextmanager
def connect(connection_string: str, *queues: str) -> Iterator[Client]:
    """An open connection with the rights that its owner's key has on the queues."""
    with Client(endpoint(connection_string)).open() as client:
        for queue in queues:
            client.authorize(queue)
        yield client


class Mint:
    """Makes durable messages of 1 KiB with an id each, by splicing id and stamp into one encoded message."""

    def __init__(self, session_id: str | None = None) -> None:
        self._run = os.urandom(6).hex()
        mark = f"{self._run}-{0:019d}"
        whole = encode_message(
            bytes(_STAMP.size) + os.urandom(BODY_BYTES - _STAMP.size),
            header=Header(durable=True),
            properties={"message_id": mark, **({} if session_id is None else {"group_id": session_id})},
        )
        at = whole.index(mark.encode()) + len(self._run) + 1
        self._head, self._middle = whole[:at], whole[at + 19 : len(whole) - BODY_BYTES]
        self._tail = whole[len(whole) - BODY_BYTES + _STAMP.size :]

    def make(self, first: int, count: int) -> list[bytes]:
        """Encoded messages with the ordinals from `first` on, stamped with the time now."""
        head, middle, tail, pack, now = self._head, self._middle, self._tail, _STAMP.pack, time.monotonic()
        return [b"%b%019d%b%b%b" % (head, i, middle, pack(now, i), tail) for i in range(first, first + count)]


def stamp_of(payload: bytes) -> tuple[float, int]:
    """When a message was sent (monotonic seconds), and its ordinal."""
    sent, ordinal = _STAMP.unpack_from(payload, len(payload) - BODY_BYTES)
    return sent, ordinal


def fill(
    connection_string: str, queue: str, messages: int, *, batches: bool = True, sessions: Sequence[str] = ()
) -> float:
    """Send messages, by batches of 100 or one by one with 1,000 in flight; seconds until all are accepted.

    With `sessions` each batch belongs to one of them, in turn.

    Raises:
        IsthmusError: if one is refused.
        OperationTimeoutError: if nothing is accepted for two minutes.
    """
    mints = [Mint(session_id) for session_id in sessions] or [Mint()]
    unit, window = (BATCH_MESSAGES, BATCHES_IN_FLIGHT) if batches else (1, SINGLES_IN_FLIGHT)
    units = -(-messages // unit)
    with connect(connection_string, queue) as client:
        sender = Sender(client, queue).wait_ready()
        started, sent = time.monotonic(), 0
        while sender.settled < units:
            room = min(window - sender.outstanding, sender.sendable, units - sender.sent)
            if room <= 0:
                _await(client, sender, window)
                continue
            if batches:
                count = min(unit, messages - sent)
                mint = mints[sender.sent % len(mints)]
                sender.send([envelope(mint.make(sent, count))], message_format=BATCH_FORMAT)
            else:
                # A few hundred at once: the number in flight then changes smoothly instead of in steps of the whole window.
                count = min(room, 250)
                sender.send(mints[0].make(sent, count))
            sent += count
            client.service()
            sender.raise_refusal()
        return time.monotonic() - started


def _await(client: Client, sender: Sender, window: int) -> None:
    before = sender.settled
    limit = time.monotonic() + _STALL_SECONDS
    while sender.settled == before or not (sender.outstanding < window and sender.sendable):
        if client.error is not None:
            raise client.error
        if sender.error is not None:
            raise sender.error
        if sender.settled > before and sender.settled == sender.sent:
            break
        if time.monotonic() > limit:
            raise OperationTimeoutError(f"nothing was accepted for {_STALL_SECONDS:.0f} s")
        client.wait(1.0)
    sender.raise_refusal()


def drain(connection_string: str, queue: str, messages: int) -> float:
    """Receive and complete messages; seconds from the first credit to the last completion.

    Raises:
        OperationTimeoutError: if nothing arrives for two minutes.
    """
    with connect(connection_string, queue) as client:
        receiver = Receiver(client, queue).wait_attached()
        started = last_arrival = time.monotonic()
        receiver.grant(CREDIT)
        while receiver.received < messages:
            client.wait(1.0)
            if _take([receiver]):
                last_arrival = time.monotonic()
            elif time.monotonic() - last_arrival > _STALL_SECONDS:
                raise OperationTimeoutError(f"nothing arrived for {_STALL_SECONDS:.0f} s")
            client.flush()
        client.close()
        return time.monotonic() - started


def drain_sessions(connection_string: str, queue: str, messages: int, sessions: int, receivers: int) -> float:
    """Receive and complete messages that are in equal numbers in sessions; seconds from the first attach to the end.

    Each of `receivers` takes the next available session, empties it, and takes another.

    Raises:
        OperationTimeoutError: if nothing arrives for two minutes.
    """
    share = messages // sessions
    with connect(connection_string, queue) as client:
        started = last_arrival = time.monotonic()
        taken = done = 0
        working: list[Receiver] = []
        while done < sessions:
            while taken < sessions and len(working) < receivers:
                receiver = Receiver(client, queue, in_session=True)
                receiver.grant(CREDIT)
                working.append(receiver)
                taken += 1
            client.wait(1.0)
            if _take(working):
                last_arrival = time.monotonic()
            elif time.monotonic() - last_arrival > _STALL_SECONDS:
                raise OperationTimeoutError(f"nothing arrived for {_STALL_SECONDS:.0f} s")
            for receiver in [each for each in working if each.received >= share]:
                receiver.close()
                working.remove(receiver)
                done += 1
            client.flush()
        client.close()
        return time.monotonic() - started


def read(connection_string: str, paths: Sequence[str], events: int) -> float:
    """Read events from partitions of an event hub, from their start; seconds from the first credit to the last event.

    Raises:
        OperationTimeoutError: if nothing arrives for two minutes.
    """
    with connect(connection_string, *paths) as client:
        receivers = [Receiver(client, path, settled=True).wait_attached() for path in paths]
        started = last_arrival = time.monotonic()
        count = 0
        while count < events:
            for receiver in receivers:
                error = client.error or receiver.error
                if error is not None:
                    raise error
                if receiver.credit < CREDIT // 2:
                    receiver.grant(CREDIT)
                arrived = sum(len(run.payloads) for run in receiver.take())
                count += arrived
                last_arrival = time.monotonic() if arrived else last_arrival
            if time.monotonic() - last_arrival > _STALL_SECONDS:
                raise OperationTimeoutError(f"nothing arrived for {_STALL_SECONDS:.0f} s")
            if count < events:
                client.wait(1.0)
        return time.monotonic() - started


def listen(
    connection_string: str,
    queues: Sequence[str],
    on_payload: Callable[[bytes, float], None],
    stop: Callable[[], bool],
) -> None:
    """Receive and complete until `stop()` holds; calls `on_payload(payload, monotonic seconds of arrival)` for each."""
    with connect(connection_string, *queues) as client:
        receivers = [Receiver(client, queue).wait_attached() for queue in queues]
        for receiver in receivers:
            receiver.grant(CREDIT)
        while not stop():
            client.wait(0.05)
            now = time.monotonic()
            for payload in _take(receivers):
                on_payload(payload, now)
            client.flush()


def _take(receivers: Sequence[Receiver]) -> list[bytes]:
    """Completes and returns what has arrived; grants new credit."""
    taken: list[bytes] = []
    for receiver in receivers:
        error = receiver.client.error or receiver.error
        if error is not None:
            raise error
        if not receiver.arrived:
            continue
        for run in receiver.take():
            receiver.dispose(run.first_id, run.first_id + len(run.payloads) - 1)
            taken += run.payloads
        if receiver.credit < CREDIT // 2:
            receiver.grant(CREDIT)
    return taken


def pace(connection_string: str, queues: Sequence[str], rate: float, seconds: float) -> None:
    """Send at a steady rate to each queue, in turns; the ordinals count over all queues.

    Raises:
        IsthmusError: if a message is refused.
    """
    mint = Mint()
    rate *= len(queues)
    total = int(rate * seconds)
    with connect(connection_string, *queues) as client:
        senders = [Sender(client, queue).wait_ready() for queue in queues]
        started, sent = time.monotonic(), 0
        while sent < total:
            due = min(total, int((time.monotonic() - started) * rate) + 1)
            while sent < due and (sender := senders[sent % len(senders)]).sendable:
                sender.raise_refusal()
                sender.send(mint.make(sent, 1))
                sent += 1
            client.flush()
            client.service()
            # Outcomes are read when the next message is due: a load that woke for each would use the processors of the
            # measured program.
            left = started + sent / rate - time.monotonic()
            if left > 0:
                time.sleep(left)
            else:
                client.wait(0.001)
        for sender in senders:
            while sender.settled < sender.sent:
                _await(client, sender, window=1)


if __name__ == "__main__":
    pace(os.environ["BENCH_LOAD"], sys.argv[3:], float(sys.argv[1]), float(sys.argv[2]))
