"""Load for the kill tests: streams of numbered messages that keep what was reported to them, and the threads that run them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

from harness.client.fault_client import AnsweredReceiver, Seen, connected, make_message, read_message
from isthmus.amqp import BATCH_FORMAT
from isthmus.amqp.performative import Accepted
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess
from isthmus.transport import Management, Reply, Sender
from isthmus.transport.sender import envelope

UNSETTLED = 120  # messages that each receiver keeps locked before it completes the oldest
SENT_AHEAD = 200
# Messages that may wait: more would make the looks at the queue longer, and nothing else.
BACKLOG = 5_000


class Stream:
    """One queue with one sender and one receiver, and what was reported to both, over all rounds."""

    def __init__(self, queue: str, batch: int = 0, source: str = "") -> None:
        self.queue = queue
        self.source = source or queue  # where it is received: a subscription of a topic
        self.batch = batch
        self.next = 0
        self.acked: set[int] = set()
        self.units: list[range] = []  # sent and not acknowledged in this round
        self.asked: set[int] = set()
        self.completed: set[int] = set()
        self.resent: set[int] = set()
        self.unsettled = 0
        self.received = 0
        self.backlog_at_start = 0
        self.sent_at_start = 0
        self.faults: list[str] = []

    @property
    def sent_in_round(self) -> int:
        """Messages sent since the last look."""
        return self.next - self.sent_at_start

    @property
    def waiting(self) -> int:
        """About how many messages wait in the queue."""
        return self.backlog_at_start + self.sent_in_round - self.received

    def message(self, number: int) -> bytes:
        return make_message(b"%d" % number, f"{self.queue}-{number}")

    # ---- clients

    def send(self, ns: NamespaceProcess, stop: threading.Event) -> None:
        open_units: dict[int, range] = {}
        with connected(ns, self.queue) as client:
            sender = Sender(client, self.queue).wait_ready()
            try:
                while not stop.is_set() and client.error is None and sender.error is None:
                    ahead = SENT_AHEAD // self.batch if self.batch else SENT_AHEAD
                    if sender.outstanding < ahead and self.waiting < BACKLOG:
                        unit = range(self.next, self.next + (self.batch or 1))
                        messages = [self.message(number) for number in unit]
                        self.next = unit.stop
                        open_units[sender.sent] = unit
                        if self.batch:
                            sender.send([envelope(messages)], message_format=BATCH_FORMAT)
                        else:
                            sender.send(messages)
                    client.wait(0.001)
                    self.take_outcomes(sender, open_units)
            finally:
                self.take_outcomes(sender, open_units)
                self.units += open_units.values()

    def take_outcomes(self, sender: Sender, open_units: dict[int, range]) -> None:
        while sender.outcomes:
            first, last, error = sender.outcomes.popleft()
            for ordinal in range(first, last + 1):
                unit = open_units.pop(ordinal)
                if error is None:
                    self.acked.update(unit)
                else:
                    self.faults.append(f"{self.queue}: {unit} was refused: {error}")

    def receive(self, ns: NamespaceProcess, stop: threading.Event) -> None:
        with connected(ns, self.source) as client:
            receiver = AnsweredReceiver(client, self.source).wait_attached()
            management = Management(client, self.source)
            by_id: dict[int, int] = {}
            replies: list[tuple[Reply, list[int]]] = []
            waiting: list[tuple[int, list[bytes], list[int]]] = []
            latest = -1
            receiver.grant(200)
            try:
                while not stop.is_set() and client.error is None:
                    client.wait(0.005)
                    for run in receiver.take():
                        numbers = [int(read_message(payload).body) for payload in run.payloads]
                        latest = self.check_run(numbers, latest)
                        waiting.append((run.first_id, list(run.tags), numbers))
                        self.unsettled += len(numbers)
                        self.received += len(numbers)
                    if receiver.credit < 100:
                        receiver.grant(200)
                    if self.unsettled > UNSETTLED and waiting:
                        first, tags, numbers = waiting.pop(0)
                        self.asked.update(numbers)
                        if first % 2:
                            replies.append((management.start_disposition("completed", tags), numbers))
                        else:
                            by_id.update(enumerate(numbers, first))
                            receiver.ask(first, first + len(numbers) - 1)
                        self.unsettled -= len(numbers)
                    self.take_answers(receiver, by_id, replies)
            finally:
                self.take_answers(receiver, by_id, replies)

    def check_run(self, numbers: list[int], latest: int) -> int:
        for number in numbers:
            if number in self.completed:
                self.faults.append(f"{self.queue}: {number} was completed and came back")
            if number in self.resent:
                continue
            if number <= latest:
                self.faults.append(f"{self.queue}: {number} came after {latest}")
            latest = number
        return latest

    def take_answers(
        self, receiver: AnsweredReceiver, by_id: dict[int, int], replies: list[tuple[Reply, list[int]]]
    ) -> None:
        for first, last, state in receiver.answers:
            numbers = [by_id.pop(delivery_id) for delivery_id in range(first, last + 1)]
            if isinstance(state, Accepted):
                self.completed.update(numbers)
            else:
                self.faults.append(f"{self.queue}: completion of {numbers[:3]}… was answered {state}")
        receiver.answers.clear()
        for reply, numbers in [each for each in replies if each[0].done]:
            if reply.error is None:
                self.completed.update(numbers)
        replies[:] = [each for each in replies if not each[0].done]

    # ---- the account

    def check(self, found: list[Seen]) -> list[str]:
        """What is wrong with the contents of the queue."""
        faults, self.faults = self.faults, []
        numbers = [int(each.body) for each in found]
        times = Counter(numbers)
        here = set(times)
        faults += [f"doubled: {number}" for number, count in times.items() if count > 1]
        faults += [f"came back: {number}" for number in sorted(here & self.completed)]
        faults += [f"lost: {number}" for number in sorted(self.acked - here - self.asked - self.completed)]
        for unit in self.units:
            part = (here | self.asked).intersection(unit)
            if part and len(part) != len(unit):
                faults.append(f"torn: {unit}")
            self.acked.update(part)  # from now on it has to stay
        self.units.clear()
        self.completed |= self.asked - here
        ordered = [number for number in numbers if number not in self.resent]
        faults += [f"order: {b} after {a}" for a, b in pairwise(ordered) if b <= a]
        sequences = [each.sequence for each in found]
        faults += [f"sequence: {b} after {a}" for a, b in pairwise(sequences) if b <= a]
        self.asked.clear()
        self.unsettled = self.received = 0
        self.backlog_at_start, self.sent_at_start = len(numbers), self.next
        return [f"{self.queue}: {fault}" for fault in faults]


@contextmanager
def working(jobs: list[Callable[[NamespaceProcess, threading.Event], None]], ns: NamespaceProcess) -> Iterator[None]:
    """Runs jobs in threads; what ends one other than the loss of the namespace is raised."""
    stop = threading.Event()
    raised: list[Exception] = []

    def run(job: Callable[[NamespaceProcess, threading.Event], None]) -> None:
        try:
            job(ns, stop)
        except IsthmusError as error:
            if not error.retryable:
                raised.append(error)
        except Exception as error:  # noqa: BLE001 - raised below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
        if raised:
            raise raised[0]
