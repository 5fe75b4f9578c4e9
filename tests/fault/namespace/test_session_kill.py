"""Kills a namespace with sessions under load, and compares what is there afterwards with the answers that its clients got.

K1. What was acknowledged is there exactly once, unless its completion was asked for; what was completed never comes back.
K2. Messages of a session are in the order of sending.
K3. Delivery counts are at least those of answered abandonments.
K4. The state of a session is the last that was answered, or one that was asked for after it.
K5. All sessions are free after the start.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from harness.client.fault_client import AnsweredReceiver, AnsweringClient, connected, look, read_message
from isthmus.amqp import section
from isthmus.amqp.performative import Modified
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Reply, Sender

CONFIG = """
queues:
  sessions: {requires_session: true, lock_duration: 5m, max_delivery_count: 1000000}
  spread: {requires_session: true, enable_partitioning: true, lock_duration: 5m, max_delivery_count: 1000000}
"""
SESSIONS = [f"s{number}" for number in range(8)]
ROUNDS = 40
PARTITIONED_ROUNDS = 20
# In each round, at least.
ACKED = 100
COMPLETED = 50
SENT_AHEAD = 200


class Load:
    """What clients asked for and which answers they got, over all rounds."""

    def __init__(self, chance: random.Random, queue: str) -> None:
        self.chance = chance
        self.queue = queue
        self.next = 0
        self.session_of: dict[int, str] = {}
        self.acked: set[int] = set()
        self.asked: set[int] = set()
        self.completed: set[int] = set()
        self.abandons_asked: Counter[int] = Counter()
        self.abandons: Counter[int] = Counter()
        self.states: dict[str, list[bytes]] = {session: [b""] for session in SESSIONS}  # last answered, then asked for
        self.states_set = 0

    def run(self, ns: NamespaceProcess, seconds: float) -> None:
        """Send, receive and set states until the kill ends it, which comes so long after the load is under way."""
        killer = threading.Thread(target=self.kill, args=(ns, seconds))
        with connected(ns, self.queue) as client:
            killer.start()
            try:
                with suppress(IsthmusError):
                    self.work(client)
            finally:
                killer.join()

    def kill(self, ns: NamespaceProcess, seconds: float) -> None:
        acked, completed = len(self.acked) + ACKED, len(self.completed) + COMPLETED
        limit = time.monotonic() + 60
        while (len(self.acked) <= acked or len(self.completed) <= completed) and time.monotonic() < limit:
            time.sleep(0.01)
        time.sleep(seconds)
        ns.kill()

    def work(self, client: AnsweringClient) -> None:
        sender = Sender(client, self.queue).wait_ready()
        management = Management(client, self.queue)
        first = self.next
        try:
            while client.error is None:
                receiver = AnsweredReceiver(client, self.queue, in_session=True)
                receiver.grant(20)
                by_id: dict[int, tuple[int, bool]] = {}
                state: tuple[Reply, bytes] | None = None
                until = time.monotonic() + 0.1
                try:
                    while time.monotonic() < until:
                        self.send(sender)
                        client.wait(0.002)
                        self.take(sender, first)
                        if receiver.session_id is not None and state is None:
                            self.states_set += 1
                            wanted = b"%d" % self.states_set
                            self.states[receiver.session_id].append(wanted)
                            body = {"session-id": receiver.session_id, "session-state": wanted}
                            state = management.start("set-session-state", body), wanted
                        self.settle(receiver, by_id)
                        self.read_answers(receiver, by_id, state)
                        if client.error is not None:
                            raise client.error
                finally:
                    self.read_answers(receiver, by_id, state)
                receiver.close()
        finally:
            self.take(sender, first)

    def send(self, sender: Sender) -> None:
        while sender.outstanding < SENT_AHEAD and sender.sendable:
            session = self.session_of[self.next] = self.chance.choice(SESSIONS)
            properties = {"message_id": str(self.next), "group_id": session}
            sender.send([section.encode_message(b"%d" % self.next, properties=properties)])
            self.next += 1

    def take(self, sender: Sender, first: int) -> None:
        while sender.outcomes:
            low, high, error = sender.outcomes.popleft()
            if error is None:
                self.acked.update(range(first + low, first + high + 1))

    def settle(self, receiver: AnsweredReceiver, by_id: dict[int, tuple[int, bool]]) -> None:
        for run in receiver.take():
            for index, payload in enumerate(run.payloads):
                number, delivery = int(read_message(payload).body), run.first_id + index
                complete = self.chance.random() < 0.8
                by_id[delivery] = number, complete
                if complete:
                    self.asked.add(number)
                    receiver.ask(delivery, delivery)
                else:
                    self.abandons_asked[number] += 1
                    receiver.ask(delivery, delivery, Modified(delivery_failed=True))
        if receiver.credit < 10:
            receiver.grant(20)

    def read_answers(
        self, receiver: AnsweredReceiver, by_id: dict[int, tuple[int, bool]], state: tuple[Reply, bytes] | None
    ) -> None:
        for first, last, _ in receiver.answers:
            for delivery in range(first, last + 1):
                number, complete = by_id[delivery]
                if complete:
                    self.completed.add(number)
                else:
                    self.abandons[number] += 1
        receiver.answers.clear()
        if state is not None and state[0].done and state[0].error is None and receiver.session_id is not None:
            states = self.states[receiver.session_id]
            if state[1] in states:
                del states[: states.index(state[1])]

    def faults(self, ns: NamespaceProcess) -> list[str]:
        """What contradicts the answers that clients got."""
        found = []
        with connected(ns, self.queue) as client:
            seen = [(int(one.body), one) for one in look(client, self.queue)]
            times = Counter(number for number, _ in seen)
            found += [f"K1: {n} is there {times[n]} times" for n in self.acked - self.asked if times[n] != 1]
            found += [f"K1: {n} came back" for n in self.completed if times[n]]
            found += [f"K1: {n} is there {count} times" for n, count in times.items() if count > 1]
            for session in SESSIONS:
                numbers = [number for number, _ in seen if self.session_of[number] == session]
                if numbers != sorted(numbers):
                    found.append(f"K2: {session}: {numbers}")
            for number, one in seen:
                if not self.abandons[number] <= one.delivery_count <= self.abandons_asked[number]:
                    found.append(
                        f"K3: {number} has count {one.delivery_count}, abandoned {self.abandons[number]} times"
                    )
                self.abandons[number] = one.delivery_count
                self.abandons_asked[number] = one.delivery_count
            management = Management(client, self.queue)
            for session, states in self.states.items():
                receiver = AnsweredReceiver(client, self.queue, in_session=True, session_id=session).wait_attached()
                reply = management.finish(management.start("get-session-state", {"session-id": session}))
                state = reply["session-state"] or b""
                if state not in states:
                    found.append(f"K4: {session} has state {state!r}, expected one of {states}")
                states[:] = [state]
                receiver.close()
        return found


@pytest.mark.parametrize("queue", ["sessions", "spread"])
def test_a_killed_namespace_keeps_sessions(
    tmp_path: Path, long_count: Callable[[int], int], counted: Callable[[str, str], None], queue: str
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    load, rounds = Load(chance, queue), long_count(ROUNDS if queue == "sessions" else PARTITIONED_ROUNDS)
    with namespace(tmp_path, config=CONFIG) as ns:
        for number in range(rounds):
            load.run(ns, chance.uniform(0.0, 1.2))
            ns.start()
            faults = load.faults(ns)
            assert not faults, f"seed {seed}, round {number}: {faults[:10]}"
    counted(
        f"{rounds} kills of a namespace with sessions in '{queue}'",
        f"{rounds} kills, {len(load.acked)} messages acknowledged, {len(load.completed)} completed, seed {seed}",
    )
    assert len(load.acked) > ACKED * rounds
    assert len(load.completed) > COMPLETED * rounds
    assert load.abandons
    assert any(states != [b""] for states in load.states.values())
