"""Kills a served namespace at random instants, under load, and compares what is there afterwards with what its
clients got as answers.

K1. What was acknowledged is there exactly once, unless its completion was asked for.
K2. What was completed, and answered so, never comes back.
K3. What was sent and not acknowledged is there at most once; an envelope is there as a whole or not at all.
K4. The order of a queue is the order of sending.
K5. Duplicate detection remembers over a kill.
K6. What a topic acknowledged is in every subscription, in the same order, or was completed there.
K7. Scheduled, deferred and dead-lettered messages and delivery counts are as answered.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.client.fault_client import (
    AnsweredReceiver,
    AnsweringClient,
    Seen,
    connected,
    look,
    make_message,
    read_message,
)
from harness.client.fault_stream import Stream, working
from isthmus.amqp.types import Array, Long, Timestamp, UInt
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Receiver, Sender

CONFIG = """
queues:
  batched: {lock_duration: 5m}
  singles: {lock_duration: 5m}
  detected: {lock_duration: 5m, requires_duplicate_detection: true}
  moved: {lock_duration: 5m, max_delivery_count: 1000000}
topics:
  fanned: {subscriptions: {read: {lock_duration: 5m}, left: {}}}
"""
LEFT = "fanned/Subscriptions/left"
ROUNDS = 100
MESSAGES = 1_000_000
RESENT = 200
FAR_AWAY_MS = 3_600_000


class Mover:
    """A queue whose messages are abandoned, deferred, dead-lettered, scheduled and cancelled, one answer at a time."""

    queue = "moved"

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.next = 0
        self.states: dict[int, Any] = {}  # number → (where, delivery count), None once removed
        self.pending: dict[int, Any] = {}  # number → what it becomes, unanswered
        self.sequences: dict[int, int] = {}
        self.answered = 0

    def work(self, ns: NamespaceProcess, stop: threading.Event) -> None:
        with connected(ns, self.queue) as client:
            sender = Sender(client, self.queue).wait_ready()
            receiver = AnsweredReceiver(client, self.queue).wait_attached()
            management = Management(client, self.queue)
            while not stop.is_set():
                with suppress(IsthmusError):
                    self.send(client, sender)
                    self.settle(client, receiver, management)
                    self.schedule(management)
                    self.finish_deferred(management)
                if client.error is not None:
                    return

    def number(self) -> int:
        self.next += 1
        return self.next

    def done(self, number: int) -> None:
        self.states[number] = self.pending.pop(number)
        self.answered += 1

    def send(self, client: AnsweringClient, sender: Sender) -> None:
        numbers = [self.number() for _ in range(8)]
        for number in numbers:
            self.states[number], self.pending[number] = None, ("active", 0)
        sender.send_all([make_message(b"%d" % number) for number in numbers])
        for number in numbers:
            self.done(number)

    def settle(self, client: AnsweringClient, receiver: AnsweredReceiver, management: Management) -> None:
        receiver.received = 0
        receiver.grant(8)
        client.wait_until(lambda: receiver.received == 8, 20, "messages")
        replies = []
        for run in receiver.take():
            for tag, payload in zip(run.tags, run.payloads, strict=True):
                seen = read_message(payload)
                number = int(seen.body)
                self.sequences[number] = seen.sequence
                _, count = self.states[number]
                status, becomes = self.random.choice([
                    ("abandoned", ("active", count + 1)),
                    ("abandoned", ("active", count + 1)),
                    ("defered", ("deferred", None)),
                    ("suspended", ("dead", None)),
                    ("completed", None),
                ])  # fmt: skip
                self.pending[number] = becomes
                replies.append((number, management.start_disposition(status, [tag])))
        for number, reply in replies:
            management.finish(reply)
            self.done(number)

    def schedule(self, management: Management) -> None:
        number = self.number()
        due = Timestamp(int(time.time() * 1000) + FAR_AWAY_MS)
        self.states[number], self.pending[number] = None, ("scheduled", None)
        payload = make_message(b"%d" % number, annotations={"x-opt-scheduled-enqueue-time": due})
        item = {"message-id": str(number), "message": payload}
        (sequence,) = management.finish(management.start("schedule-message", {"messages": [item]}))["sequence-numbers"]
        self.sequences[number] = int(sequence)
        self.done(number)
        if self.random.random() < 0.3:
            self.pending[number] = None
            body = {"sequence-numbers": Array(0x81, [Long(sequence)])}
            management.finish(management.start("cancel-scheduled-message", body))
            self.done(number)

    def finish_deferred(self, management: Management) -> None:
        deferred = [number for number, state in self.states.items() if state and state[0] == "deferred"]
        if len(deferred) < 20:
            return
        number = deferred[0]
        body = {
            "sequence-numbers": Array(0x81, [Long(self.sequences[number])]),
            "receiver-settle-mode": UInt(1),
        }
        (item,) = management.finish(management.start("receive-by-sequence-number", body))["messages"]
        assert int(read_message(item["message"]).body) == number
        self.pending[number] = None
        management.finish(management.start_disposition("completed", [item["lock-token"].bytes_le]))
        self.done(number)

    def check(self, found: list[Seen], dead: list[Seen]) -> list[str]:
        here: dict[int, tuple[str, int]] = {}
        faults = []
        names = {0: "active", 1: "deferred", 2: "scheduled"}
        for place, messages in ((None, found), ("dead", dead)):
            for seen in messages:
                number = int(seen.body)
                if number in here:
                    faults.append(f"doubled: {number}")
                here[number] = (place or names[seen.state], seen.delivery_count)
        for number, state in self.states.items():
            actual = here.get(number)
            allowed = [state] + ([self.pending[number]] if number in self.pending else [])
            if not any(_agrees(actual, each) for each in allowed):
                faults.append(f"{number} is {actual}, was reported to be {' or '.join(map(str, allowed))}")
            self.states[number] = actual
        self.pending.clear()
        return [f"moved: {fault}" for fault in faults]


class Left:
    """The subscription without a receiver while messages are under way; it is emptied after each look."""

    def __init__(self) -> None:
        self.latest = -1

    def check(self, ns: NamespaceProcess, stream: Stream) -> list[str]:
        """What is wrong with it, once `stream` knows what its own subscription holds."""
        with connected(ns, LEFT) as client:
            numbers = [int(seen.body) for seen in look(client, LEFT)]
            receiver = Receiver(client, LEFT, settled=True)
            receiver.grant(len(numbers))
            client.wait_until(lambda: receiver.received == len(numbers), 60, "messages")
        faults = [f"order: {b} after {a}" for a, b in pairwise([self.latest, *numbers]) if b <= a]
        wanted = {number for number in stream.acked if number > self.latest}
        faults += [f"lost: {number}" for number in sorted(wanted - set(numbers))]
        faults += [f"only here: {number}" for number in sorted(set(numbers) - stream.acked - stream.completed)]
        self.latest = max([self.latest, *numbers])
        return [f"{LEFT}: {fault}" for fault in faults]


def _agrees(actual: Any, reported: Any) -> bool:
    if actual is None or reported is None:
        return actual is reported
    return bool(actual[0] == reported[0] and reported[1] in (None, actual[1]))


def test_what_was_reported_stays_true_after_every_kill(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    streams = [
        Stream("batched", 20),
        Stream("singles"),
        Stream("detected"),
        Stream("fanned", 5, LEFT.replace("left", "read")),
    ]
    left = Left()
    mover = Mover(seed)
    with namespace(tmp_path / "data", config=CONFIG) as ns:
        rounds = long_count(ROUNDS)
        for round_number in range(rounds):
            moved = mover.answered
            wanted = chance.randrange(2 * MESSAGES // ROUNDS)
            jobs = [job for stream in streams for job in (stream.send, stream.receive)]
            with working([*jobs, mover.work], ns):
                limit = time.monotonic() + 60
                while (
                    min(stream.unsettled for stream in streams) < 100
                    or mover.answered < moved + 50
                    or sum(stream.sent_in_round for stream in streams) < wanted
                ):
                    assert time.monotonic() < limit, "the load does not get under way"
                    time.sleep(0.02)
                time.sleep(chance.uniform(0.0, 0.1))
                # Receivers that were late complete many at once, and hold few for a moment.
                while (unsettled := sum(stream.unsettled for stream in streams)) < 100:
                    assert time.monotonic() < limit, "the load does not stay under way"
                    time.sleep(0.001)
                ns.kill()
            ready = ns.start()
            print(
                f"round {round_number}: {sum(stream.sent_in_round for stream in streams)} sent, {unsettled} unsettled at the kill, ready after {ready:.2f} s"
            )
            faults = check_all(ns, streams, mover) + left.check(ns, streams[3])
            faults += resend(ns, streams[2])
            assert not faults, faults[:20]
        total = sum(stream.next for stream in streams) + mover.next
        completed = sum(len(stream.completed) for stream in streams)
        counted(
            f"{long_count(MESSAGES)} messages over {rounds} kill -9",
            f"{total} sent, {completed} of them completed, seed {seed}",
        )
        assert completed > 0
        assert "Traceback" not in ns.log()


def check_all(ns: NamespaceProcess, streams: list[Stream], mover: Mover) -> list[str]:
    faults: list[str] = []
    dead = f"{mover.queue}/$DeadLetterQueue"
    with connected(ns, mover.queue, dead, *(stream.source for stream in streams)) as client:
        for stream in streams:
            faults += stream.check(look(client, stream.source))
        faults += mover.check(look(client, mover.queue), look(client, dead))
    return faults


def resend(ns: NamespaceProcess, stream: Stream) -> list[str]:
    """Sends again what was not acknowledged, and the last that were: all is accepted, nothing is there twice (K5)."""
    again = range(max(0, stream.next - RESENT), stream.next)
    with connected(ns, stream.queue) as client:
        Sender(client, stream.queue).wait_ready().send_all([stream.message(number) for number in again])
        stream.resent.update(set(again) - stream.acked)
        stream.acked.update(set(again) - stream.completed)
        return stream.check(look(client, stream.queue))
