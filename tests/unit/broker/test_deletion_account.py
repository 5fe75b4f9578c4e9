"""Clients that receive and delete, slowly, through small windows, large messages among the rest, and deferred ones by requests; links
that the namespace ends, a disk that waits and fails, and bodies that cannot be read at times: each message is in the namespace, or with one
client, until the stop and after it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.conftest import Broker, Client, body, message

from harness.check.until import passes, until_async
from isthmus.amqp import LinkDetached, Transfers, codec, section
from isthmus.amqp.performative import Source, Target
from isthmus.amqp.types import Array, Int, Long, Symbol, UInt
from isthmus.entities import EntityStatus, Large, QueueDescription
from isthmus.errors import IsthmusError, StoreError, UnauthorizedError
from isthmus.store import BlobFolder

ROUNDS = 60
STEPS = 250
QUEUE, SESSIONS = "big", "sessions"
LARGE_BYTES = (1 << 20) + 5_000
SETTINGS: dict[str, Any] = {"max_message_size_in_kilobytes": 4096, "max_delivery_count": 100, "lock_duration_ms": 5_000}
FILTER, TIMEOUT = Symbol("com.microsoft:session-filter"), Symbol("com.microsoft:timeout")


class Refusing(BlobFolder):
    """Bodies that cannot be read at times."""

    def __init__(self, folder: Path, seed: int) -> None:
        super().__init__(folder)
        self.chance = random.Random(seed)
        self.left = 0

    def open(self, number: int) -> Any:
        if self.left == 0 and self.chance.random() < 0.1:
            self.left = self.chance.choice([1, 2, 3])
        if self.left:
            self.left -= 1
            raise StoreError("too many open files")
        return super().open(number)


class SlowClient(Client):
    """One that reads only when it is asked to; the namespace notices that it does not after some bytes."""

    limit_bytes = 1 << 30
    was_full = False

    @property
    def unread_bytes(self) -> int:
        return sum(map(len, self.wrote))

    @property
    def is_writable(self) -> bool:  # type: ignore[override]
        is_full = self.unread_bytes >= self.limit_bytes
        self.was_full |= is_full
        return not is_full

    @is_writable.setter
    def is_writable(self, value: bool) -> None:
        """What it can be told is what it has not read."""

    @property
    def unsent_bytes(self) -> int:  # type: ignore[override]
        return self.unread_bytes

    def pump(self) -> None:
        super().pump()
        while self.was_full and not self.closed:
            self.was_full = False
            self.peer.writable()
            super().pump()


class Party:
    """One connection: its links that receive, and its links for requests."""

    def __init__(self, broker: Broker, chance: random.Random) -> None:
        window = chance.choice([1, 3, 5000])
        client: Any = SlowClient(broker, incoming_window=window, max_frame_size_bytes=chance.choice([1 << 12, 1 << 16]))
        self.client = client.open()
        client.limit_bytes = chance.choice([1, 10_000, 1 << 30])
        self.read = 0
        self.links: list[Any] = []
        self.replies: list[Any] = []
        self.reattach()

    def reattach(self) -> None:
        session = self.client.session
        node = f"{QUEUE}/$management"
        count = len(self.replies)
        self.requests = session.attach_sender(f"q{count}", Target(address=node), source=Source(address="me"))
        self.replies.append(session.attach_receiver(f"a{count}", Source(address=node), target=Target(address="me")))
        self.client.send_only()
        self.replies[-1].grant(1000)


class Account:
    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.queue: Any = broker.engine.receiver(QUEUE)
        self.parties = [Party(broker, self.chance) for _ in range(3)]
        self.state: dict[str, str] = {}
        self.got: Counter[str] = Counter()
        self.deferred: list[int] = []
        self.count = 0
        self.requested = 0

    # ---- what comes

    def send(self) -> None:
        chance = self.chance
        self.count += 1
        name = f"m{self.count}"
        path = chance.choice([QUEUE, SESSIONS])
        properties = {"message_id": name, "group_id": chance.choice("abc")}
        payload: Any = message(name, properties=properties)
        if chance.random() < 0.25:
            files, blobs = self.broker.engine.blobs.files, self.broker.engine.blobs
            assert files is not None
            number = blobs.reserve()
            writer = files.create(number)
            content = b"\0Su\xb0" + LARGE_BYTES.to_bytes(4, "big") + name.encode().ljust(LARGE_BYTES, b" ")
            writer.write([content])
            writer.sync()
            writer.close()
            front = section.encode_message(b"", properties=properties)
            payload = Large(front[: section.locate(front).body[0]], blobs.whole(number, len(content)))
        elif chance.random() < 0.4:
            payload = message(name.ljust(chance.choice([9_000, 200_000])), properties=properties)
        self.state[name] = "perhaps"

        def durable() -> None:
            self.state[name] = "there"

        try:
            self.broker.engine.sender(path).accept([payload], durable, lambda _: None)
        except IsthmusError:
            del self.state[name]

    def defer(self) -> None:
        if self.broker.engine.get_queue(QUEUE).status is not EntityStatus.ACTIVE:  # type: ignore[union-attr]
            return
        try:
            acquired = self.queue.acquire(self.chance.choice([1, 3]))
            if acquired is not None:
                self.queue.defer(acquired.tags)
                self.deferred += acquired.sequences
        except StoreError:
            pass

    # ---- what clients do

    def hear_all(self) -> None:
        """Read as fast as the namespace sends: a stop does not wait without a limit."""
        for party in self.parties:
            heard = -1
            while heard < party.read:
                heard = party.read
                self.hear(party)

    def hear(self, party: Party) -> None:
        """Take what the namespace has said."""
        client = party.client
        client.pump()
        events, party.read = client.events[party.read :], len(client.events)
        for event in events:
            match event:
                case Transfers() if event.link in party.replies:
                    for payload in event.payloads:
                        self.take_reply(payload)
                case Transfers():
                    self.got.update(name_of(payload) for payload in event.payloads)
                case LinkDetached():
                    if event.link in party.replies or event.link is party.requests:
                        assert event.error is not None
                        assert event.error.condition == "amqp:unauthorized-access", event.error
                    if event.link is party.requests:
                        party.reattach()
                    if event.link in party.links:
                        party.links.remove(event.link)

    def take_reply(self, payload: bytes) -> None:
        found = section.locate(payload)
        status = section.decode_map(payload, found.application_properties)["statusCode"]
        value, _ = codec.decode(payload, found.body[0] + 3)
        if status == 200 and all("lock-token" in each for each in value["messages"]):
            self.got.update(name_of(each["message"]) for each in value["messages"])

    def step(self) -> None:
        chance = self.chance
        party = chance.choice(self.parties)
        client = party.client
        match chance.choices(range(11), [14, 5, 14, 20, 8, 3, 5, 3, 2, 3, 3])[0]:
            case 0:
                self.send()
            case 1 if len(party.links) < 2:
                self.attach(party)
            case 2:
                for link in party.links:
                    link.grant(chance.choice([0, 1, 5]), drain=chance.random() < 0.2)
            case 3:
                self.hear(party)
            case 4:
                client.send_only()
            case 5:
                self.defer()
            case 6:
                self.request(party)
            case 7:
                self.end_a_link(party)
            case 8:
                self.disturb()
            case 9:
                gate = self.broker.store.gate
                if gate.is_set() and chance.random() < 0.3:
                    gate.clear()
                else:
                    gate.set()
            case 10:
                self.detach(party)

    def attach(self, party: Party) -> None:
        self.count += 1
        wanted = self.chance.choice([None, None, *"abc"])
        is_plain = self.chance.random() < 0.5
        link = party.client.session.attach_receiver(
            f"r{self.count}",
            Source(address=QUEUE) if is_plain else Source(address=SESSIONS, filter={FILTER: wanted}),
            target=Target(address="me"),
            snd_settle_mode=1,
            rcv_settle_mode=0,
            properties={TIMEOUT: UInt(self.chance.choice([0, 3, 60_000]))},
        )
        party.links.append(link)
        link.grant(self.chance.choice([1, 10]))

    def detach(self, party: Party) -> None:
        """A client leaves a link when nothing is on its way: what is would be lost, as the mode says."""
        self.hear(party)
        handlers = {link.name: handler for link, handler in party.client.peer._links.handlers.items()}
        for link in party.links[:1]:
            handler: Any = handlers.get(link.name)
            if handler is not None and not handler.owes and not party.client.unread_bytes:
                link.detach()
                party.links.remove(link)
                party.client.send_only()

    def request(self, party: Party) -> None:
        chance = self.chance
        if chance.random() < 0.3 or not self.deferred:
            operation: tuple[str, Any] = ("peek-message", {"from-sequence-number": Long(0), "message-count": Int(3)})
        else:
            numbers = sorted({chance.choice(self.deferred) for _ in range(chance.choice([1, 3]))})
            wanted = {"sequence-numbers": Array(0x81, numbers), "receiver-settle-mode": UInt(0)}
            operation = ("receive-by-sequence-number", wanted)
        self.requested += 1
        if party.requests.sendable < 1:
            return
        party.requests.send(
            section.encode_message(
                operation[1],
                properties={"message_id": str(self.requested), "reply_to": "me"},
                application_properties={"operation": f"com.microsoft:{operation[0]}"},
                value_body=True,
            ),
            self.requested.to_bytes(4, "big"),
        )

    def end_a_link(self, party: Party) -> None:
        """From the namespace's side."""
        links = party.client.peer._links
        if self.chance.random() < 0.5:
            names = self.chance.choice(["r", "r", "qa"])  # both links to a node, as where a token expires
            for link in [each for each in links.handlers if each.name[0] in names][: 1 if names == "r" else None]:
                links.drop(link, UnauthorizedError("expired"))
        else:
            engine = self.broker.engine
            status = self.chance.choice([EntityStatus.ACTIVE, EntityStatus.ACTIVE, EntityStatus.RECEIVE_DISABLED])
            path = self.chance.choice([QUEUE, SESSIONS])
            try:
                engine.update_queue(path, described(path, status))
            except StoreError:
                return
            for each in self.parties:
                each.client.peer.tick()

    def disturb(self) -> None:
        store = self.broker.store
        was_refusing, store.fail_writes = store.fail_writes is not None, None
        match self.chance.randrange(4):
            case 0:
                store.error = StoreError("the disk is gone")
            case 1 if not was_refusing:
                store.fail_writes = OSError("no room")
            case _:
                self.broker.clock.advance(self.chance.choice([100, 5_000]))
                self.broker.namespace.tick_engine()

    # ---- the end

    async def stop(self) -> None:
        """The namespace stops; what clients have not asked for by then stays."""
        store, namespace = self.broker.store, self.broker.namespace
        store.fail_writes = store.error = None
        store.gate.set()
        if self.chance.random() < 0.5:  # else with whatever is on its way
            for path in (QUEUE, SESSIONS):
                namespace.engine.update_queue(path, described(path))
            for party in self.parties:
                await party.client.settle()
        stopping = asyncio.create_task(namespace.disconnect())
        await until_async(lambda: self.hear_all() or stopping.done(), seconds=20)
        await stopping
        self.hear_all()
        await namespace.commits.wait_idle()

    def check(self) -> None:
        left: Counter[str] = Counter()
        for place in (QUEUE, f"{QUEUE}/$DeadLetterQueue", SESSIONS, f"{SESSIONS}/$DeadLetterQueue"):
            queue: Any = self.broker.engine.receiver(place)
            left.update(name_of(payload) for payload in queue.peek(0, 10_000))
        wrong = []
        for name, state in self.state.items():
            count = left[name] + self.got[name]
            if count > 1 or (count < 1 and state == "there"):
                wrong.append((name, state, left[name], self.got[name]))
        assert not wrong, wrong


def described(path: str, status: EntityStatus = EntityStatus.ACTIVE) -> QueueDescription:
    return QueueDescription(status=status, requires_session=path == SESSIONS, **SETTINGS)


def name_of(payload: Any) -> str:
    if isinstance(payload, Large):
        return str(section.decode_properties(payload.front, section.locate(payload.front).properties)["message_id"])
    return body(payload).rstrip().decode()


async def test_what_is_deleted_for_a_client_is_with_it(
    tmp_path: Path,
    long_count: Callable[[int], int],
    counted: Callable[[str, str], None],
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr("isthmus.broker.peer._RETRY_SECONDS", 0.01)
    monkeypatch.setattr("isthmus.broker.link.sender_link.RETRIES", 1)
    for module in ("stream", "body_check"):
        monkeypatch.setattr(f"isthmus.broker.large.{module}.RETRY_SECONDS", 0.01)
    first = random.SystemRandom().randrange(1 << 32) if request.config.getoption("--soak") else 1
    rounds = long_count(ROUNDS)
    tally: Counter[str] = Counter()
    for seed in range(first, first + rounds):
        broker = Broker()
        await broker.namespace.commits.wait_idle()
        broker.engine.blobs.files = Refusing(tmp_path / str(seed), seed)
        for path in (QUEUE, SESSIONS):
            broker.engine.create_queue(path, described(path))
        await broker.namespace.commits.wait_idle()
        account = Account(broker, seed)
        try:
            for _ in range(STEPS):
                account.step()
                for _ in range(account.chance.choice([0, 1, 4])):
                    await asyncio.sleep(0)
                if account.chance.random() < 0.05:
                    await passes(2)
            await account.stop()
            account.check()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        finally:
            broker.store.gate.set()
            for peer in list(broker.namespace.peers):
                peer.lost()
            await broker.namespace.close()
        tally += Counter({"received": account.got.total(), "sent": len(account.state)})
    counted(f"{rounds} rounds", f"{rounds * STEPS} steps, {dict(tally)}, seeds from {first}")
    assert min(tally.values()) > 0
