"""Clients that send, settle, disconnect and reconnect at random, and a disk that is slow and fails: what was answered stays true.

A message that was accepted is there once until the answer to its completion; one with no answer is there once at most.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.unit.broker.conftest import Broker, Client, body, message

from isthmus.amqp import Disposed, LinkDetached, SentSettled, SessionEnded, Transfers
from isthmus.amqp.performative import Accepted, Modified, Rejected, Released, Source, Target
from isthmus.errors import StoreError

ROUNDS = 80
STEPS = 400
PATHS = {"orders": "orders", "flights": "flights/Subscriptions/all"}
OUTCOMES = (Accepted, Accepted, Accepted, Released, lambda: Modified(True, False), Rejected)


class Party:
    """One connection and what it waits for."""

    def __init__(self, broker: Broker) -> None:
        self.client = Client(broker).open()
        self.read = 0
        self.senders: dict[Any, str] = {}
        self.receivers: dict[Any, str] = {}
        self.sent: dict[tuple[Any, int], str] = {}
        self.got: dict[tuple[Any, int], str] = {}
        self.ending: dict[int, tuple[str, str]] = {}


class Account:
    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.parties: list[Party] = []
        self.state: dict[str, str] = {}
        self.path_of: dict[str, str] = {}
        self.sent_by: dict[str, tuple[int, int]] = {}
        self.count = 0
        self.tally: Counter[str] = Counter()

    def receive(self, party: Party) -> None:
        """Process what the broker has sent."""
        party.client.pump()
        events = party.client.events[party.read :]
        party.read += len(events)
        for event in events:
            match event:
                case Disposed():
                    for each in range(event.first, event.last + 1):
                        name = party.sent.pop((event.link, each), None)
                        if name is not None and isinstance(event.state, Accepted):
                            assert self.state[name] in ("perhaps", "perhaps removed", "removed"), name
                            if self.state[name] == "perhaps":
                                self.state[name] = "there"
                case Transfers():
                    for number, payload in enumerate(event.payloads):
                        name = body(payload).decode()
                        assert self.state[name] != "removed", f"{name} was completed, and is delivered"
                        party.got[event.link, event.first_delivery_id + number] = name
                case SentSettled():
                    for each in range(event.first, event.last + 1):
                        name, kind = party.ending.pop(each, ("", ""))
                        if kind == "complete" and isinstance(event.state, Accepted):
                            self.state[name] = "removed"
                case LinkDetached():
                    self.forget(party, event.link)
                case SessionEnded():
                    self.leave(party)

    def leave(self, party: Party) -> None:
        """The session has ended: nothing more arrives for what was under way in it."""
        party.senders.clear()
        party.receivers.clear()
        party.sent.clear()
        party.got.clear()
        party.ending.clear()

    def forget(self, party: Party, link: Any) -> None:
        party.senders.pop(link, None)
        party.receivers.pop(link, None)
        party.got = {key: name for key, name in party.got.items() if key[0] is not link}

    # ---- what clients do

    def step(self) -> None:
        chance = self.chance
        if len(self.parties) < 3:
            self.parties.append(Party(self.broker))
        party = chance.choice(self.parties)
        client = party.client
        match chance.choices(range(10), [3, 3, 20, 12, 20, 2, 1, 2, 6, 6])[0]:
            case 0 if len(party.senders) < 2:
                path = chance.choice(list(PATHS))
                self.count += 1
                link = client.session.attach_sender(f"s{self.count}", Target(address=path), source=Source(address="me"))
                party.senders[link] = path
            case 1 if len(party.receivers) < 2:
                path = chance.choice(list(PATHS.values()))
                self.count += 1
                link = client.session.attach_receiver(
                    f"r{self.count}", Source(address=path), target=Target(address="me"), rcv_settle_mode=1
                )
                party.receivers[link] = path
                link.grant(chance.choice([1, 10]))
            case 2:
                self.send(party)
            case 3:
                for link in party.receivers:
                    link.grant(chance.choice([0, 1, 5]))
            case 4:
                self.settle(party)
            case 5:
                for link in [*party.senders, *party.receivers][:1]:
                    link.detach()
            case 6:
                client.session.end()
                self.leave(party)
                self.receive(party)
                client.session = client.connection.begin()
            case 7:
                client.peer.lost()
                self.parties.remove(party)
                return
            case 8:
                gate = self.broker.store.gate
                if gate.is_set() and chance.random() < 0.3:
                    gate.clear()
                else:
                    gate.set()
            case 9:
                self.disturb()
        if chance.random() < 0.8:
            self.receive(party)

    def send(self, party: Party) -> None:
        if not party.senders:
            return
        link = self.chance.choice(list(party.senders))
        for _ in range(min(link.sendable, self.chance.choice([1, 3]))):
            self.count += 1
            name = f"m{self.count}"
            path = party.senders[link]
            self.state[name], self.path_of[name], self.sent_by[name] = "perhaps", PATHS[path], (id(link), self.count)
            party.sent[link, link.send(message(name), self.count.to_bytes(4, "big"))] = name

    def settle(self, party: Party) -> None:
        for (link, delivery_id), name in list(party.got.items())[: self.chance.choice([1, 4])]:
            if link.detached or link.amqp_session.ended:
                continue
            del party.got[link, delivery_id]
            outcome = self.chance.choice(OUTCOMES)()
            settled = self.chance.random() < 0.2
            link.dispose(delivery_id, delivery_id, outcome, settled)
            if isinstance(outcome, Accepted):
                self.state[name] = "perhaps removed"
            if not settled:
                party.ending[delivery_id] = (name, "complete" if isinstance(outcome, Accepted) else "")

    def disturb(self) -> None:
        store, clock = self.broker.store, self.broker.clock
        was_refusing, store.fail_writes = store.fail_writes is not None, None
        match self.chance.randrange(12):
            case 0:
                store.error = StoreError("the disk is gone")
            case 1 if not was_refusing:
                store.fail_writes = OSError("no room")
            case _:
                clock.advance(self.chance.choice([100, 5_000, 61_000]))
                self.broker.namespace.tick_engine()

    # ---- the end

    async def check(self) -> None:
        store, namespace = self.broker.store, self.broker.namespace
        store.fail_writes = store.error = None
        store.gate.set()
        for _ in range(5):
            await namespace.commits.wait_idle()
            namespace.engine.probe()
            for party in self.parties:
                await party.client.settle()
                self.receive(party)
        for party in self.parties:
            party.client.peer.lost()
        self.parties.clear()
        for _ in range(20):
            self.broker.clock.advance(61_000)
            namespace.tick_engine()
            await namespace.commits.wait_idle()
        found: Counter[str] = Counter()
        for path in PATHS.values():
            last: dict[int, int] = {}
            for entity in (path, f"{path}/$DeadLetterQueue"):
                queue: Any = self.broker.engine.receiver(entity)
                while (acquired := queue.acquire(50)) is not None:
                    for payload in acquired.payloads:
                        name = body(payload).decode()
                        assert self.path_of[name] == path
                        found[name] += 1
                        link, number = self.sent_by[name]
                        if entity == path:
                            assert number > last.get(link, 0), f"{name} comes after what was sent after it"
                            last[link] = number
                    queue.complete(acquired.tags)
                    await namespace.commits.wait_durable()
                assert not queue.active_count
        allowed = {"there": (1,), "removed": (0,)}
        wrong = [
            (name, state, found[name])
            for name, state in self.state.items()
            if found[name] not in allowed.get(state, (0, 1))
        ]
        assert not wrong, wrong
        self.tally += Counter(self.state.values())
        self.state.clear()


async def test_what_was_answered_holds(
    broker: Broker,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    first = random.SystemRandom().randrange(1 << 32) if request.config.getoption("--soak") else 1
    rounds = long_count(ROUNDS)
    tally: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        account = Account(broker, seed)
        try:
            for _ in range(STEPS):
                account.step()
                for _ in range(account.chance.choice([0, 1, 4])):
                    await asyncio.sleep(0)
            await account.check()
            tally += account.tally
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    counted(f"{rounds} rounds", f"{rounds * STEPS} steps, {dict(tally)}, seeds from {first}")
    assert min(tally[each] for each in ("there", "removed", "perhaps removed")) > 0
