"""A reader of an event hub under random faults, by seed: deliveries, reported losses, and checkpoints.

W1. A reader delivers no event twice that was not released, and none beyond the credit; events of a partition are in order.
W2. No checkpoint passes an existing event without outcome that this reader has delivered.
W3. Events reported as lost were removed, and a reader reports them once.
W4. In the end every existing event was delivered and settled, and each that the retention removed before its settlement was reported.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from isthmus.bridge.port import PARTITION_SHIFT, Arrived, SourceLost
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError
from isthmus.connectors.checkpoint.thread import Loaded, Written
from isthmus.connectors.eventhubs import settlement as settlement_module
from isthmus.connectors.eventhubs import source as source_module
from isthmus.connectors.eventhubs.option import read_source
from isthmus.connectors.eventhubs.partition import growth as growth_module
from isthmus.connectors.eventhubs.partition import link_set
from isthmus.connectors.eventhubs.partition import loss as loss_module
from isthmus.connectors.eventhubs.partition.address import Begin
from isthmus.connectors.eventhubs.partition.hub_query import PartitionView
from isthmus.connectors.eventhubs.source import EventHubsSource
from isthmus.connectors.servicebus.port.end import Step
from isthmus.errors import ConnectionLostError

QUICK = 60
STEPS, LAST_ROUNDS = 150, 80
PARTITIONS = (0, 1)
_REPORTED = re.compile(r"partition (\d+): events (\d+) to (\d+)")


class Log:
    """A partition."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self.low = self.next = 0

    @property
    def view(self) -> PartitionView:
        return PartitionView(self.low, self.next - 1, str(self.next - 1), not self.there)


class Event(NamedTuple):
    """What a link gives, and what the reader makes of it."""

    sequence: int

    @property
    def offset(self) -> str:
        return str(self.sequence)

    @property
    def message(self) -> bytes:
        return b"m"


class Reader:
    def read(self, partition: int, payload: Event) -> Event:
        return payload


class Link:
    """Reads a partition; events come when the world says."""

    def __init__(self, client: Any, hub: str, group: str, partition: int, begin: Begin, *_: Any) -> None:
        self.log: Log = client.world.logs[partition]
        self.position = int(begin.offset) + 1 if begin.offset else max(0, begin.sequence)
        self.attached, self.error, self.credit = True, None, 0
        self.payloads: list[Event] = []
        client.world.links.append(self)

    @property
    def count(self) -> int:
        return len(self.payloads)

    def take(self) -> list[Event]:
        taken, self.payloads = self.payloads, []
        return taken

    def grant(self, credit: int) -> None:
        self.credit = credit

    def close(self) -> None:
        self.credit = -1

    def flow(self, count: int) -> None:
        for sequence in sorted(each for each in self.log.there if each >= self.position)[:count]:
            if self.credit <= 0:
                return
            self.payloads.append(Event(sequence))
            self.position, self.credit = sequence + 1, self.credit - 1


class Look:
    """A look at the hub, which is answered when the world says; the answer is from some time since it was asked for."""

    def __init__(self, client: Any, hub: str, mark: Any, wanted: Any = None) -> None:
        self._world, self._wanted = client.world, PARTITIONS if wanted is None else sorted(wanted)
        self.error: Exception | None = None
        self.is_done = False
        self.partitions = list(PARTITIONS)
        self.created_ms = 1
        self.views = self._seen()

    def _seen(self) -> dict[int, PartitionView]:
        return {number: self._world.logs[number].view for number in self._wanted}

    def advance(self) -> None:
        chance = self._world.chance.random()
        if not self.is_done and chance < 0.5:
            self.views = self._seen()
        self.is_done = self.is_done or chance < 0.7 or not self._world.is_flaky

    def close(self) -> None:
        pass


class Store:
    """Checkpoints, and the thread that keeps them, which has its answers when the world says."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: list[Any] = []
        self._answers: list[Any] = []
        self.ident = None

    def load(self, key: object, number: int) -> None:
        self._asked.append(number)

    def write(self, key: object, checkpoints: dict[int, Checkpoint]) -> None:
        self._asked.append(checkpoints)

    def take(self) -> list[Any]:
        taken, self._answers = self._answers, []
        return taken

    def stop(self) -> None:
        self.serve(len(self._asked))

    def serve(self, count: int) -> None:
        for asked in self._asked[:count]:
            error = CheckpointError("no") if self._world.is_flaky and self._world.chance.random() < 0.1 else None
            if isinstance(asked, int):
                self._answers.append(Loaded(asked, {} if error else dict(self._world.checkpoints), error))
                continue
            if error is None:
                for number, each in asked.items():
                    before = self._world.checkpoints.get(number, Checkpoint(-1))
                    if each.sequence > before.sequence:
                        self._world.wrote(number, each)
            self._answers.append(Written(asked, error))
        del self._asked[:count]


class World:
    """A hub, its readers one after the other, and what became of each event."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.chance = random.Random(seed)
        self.now = 1000.0
        self.is_flaky = True
        self.logs = {number: Log() for number in PARTITIONS}
        # As `apply` begins a group.
        self.checkpoints: dict[int, Checkpoint] = dict.fromkeys(PARTITIONS, Checkpoint(-1, "-1"))
        self.done: set[int] = set()
        self.lost: set[int] = set()
        self.retired: set[int] = set()  # removed by the retention
        monkeypatch.setenv("HUB", "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v")
        monkeypatch.setattr(link_set, "PartitionLink", Link)
        monkeypatch.setattr(source_module, "HubQuery", Look)
        monkeypatch.setattr(loss_module, "HubQuery", Look)
        monkeypatch.setattr(growth_module, "HubQuery", Look)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(source_module, "time", clock)
        monkeypatch.setattr(settlement_module, "time", clock)
        self.begin()

    def begin(self) -> None:
        """Another reader."""
        self.out: set[int] = set()
        self.settled: set[int] = set()
        self.back: set[int] = set()
        self.seen: dict[int, int] = {}
        self.reported: set[int] = set()
        self.credit = 0
        self.links: list[Link] = []
        self.store = Store(self)
        quiet = lambda *_: None  # noqa: E731
        pool: Any = SimpleNamespace(
            remote=quiet, mark=quiet, unmark=quiet, threads=SimpleNamespace(mark=quiet, unmark=quiet, add_leaving=quiet)
        )
        options = read_source({"connection": "env:HUB", "topic": "hub", "checkpoints": "/nowhere"})
        self.source = EventHubsSource(
            pool,
            1,
            options,
            only_present=False,
            reader=Reader(),  # type: ignore[arg-type]
            thread=lambda *_: self.store,  # type: ignore[arg-type,return-value]
        )

    # ---- what happens

    def publish(self) -> None:
        log = self.logs[self.chance.choice(PARTITIONS)]
        for _ in range(self.chance.randint(1, 8)):
            log.there.add(log.next)
            log.next += 1

    def retain(self) -> None:
        number = self.chance.choice(PARTITIONS)
        log = self.logs[number]
        log.low = self.chance.randint(log.low, log.next)
        removed = {each for each in log.there if each < log.low}
        log.there -= removed
        self.retired |= {number << PARTITION_SHIFT | each for each in removed}

    def compact(self) -> None:
        log = self.logs[self.chance.choice(PARTITIONS)]
        for each in [each for each in log.there if each < log.next - 1 and self.chance.random() < 0.15]:
            log.there.discard(each)

    def flow(self) -> None:
        for link in self.links:
            link.flow(self.chance.randint(0, 6))

    def serve(self) -> None:
        self.store.serve(self.chance.randint(0, 3))

    def grant(self) -> None:
        self.credit = self.chance.randint(0, 12)
        self.source.grant(self.credit)

    def poll(self) -> None:
        if self.source.step is Step.CLOSED:
            self.source.step, self.source.fault = Step.ATTACHING, None
            self.links = []
            client: Any = SimpleNamespace(
                error=None, world=self, namespace_id="ns", endpoint=SimpleNamespace(host="localhost")
            )
            self.source.client = client
            self.source.attach(client)
        for event in self.source.poll(self.now):
            if isinstance(event, Arrived):
                self.arrived(event.positions)
            elif isinstance(event, SourceLost):
                assert not event.is_fatal, event.text
                self.credit = 0
                self.on_report(event.text)

    def arrived(self, positions: Sequence[int]) -> None:
        self.credit -= len(positions)
        assert self.credit >= 0, "W1"
        for position in positions:
            assert position not in self.out, "W1"
            assert position not in self.settled, "W1"
            partition = position >> PARTITION_SHIFT
            assert position > self.seen.get(partition, -1) or position in self.back, "W1"
            self.seen[partition] = max(position, self.seen.get(partition, -1))
            self.back.discard(position)
            self.out.add(position)

    def settle(self) -> None:
        for position in sorted(self.out):
            if self.chance.random() < 0.6:
                self.source.settle(position, position)
                self.out.discard(position)
                self.settled.add(position)
                self.done.add(position)

    def give_back(self) -> None:
        for position in sorted(self.out):
            if self.chance.random() < 0.3:
                self.source.release(position, position)
                self.out.discard(position)
                self.back.add(position)

    def wait(self) -> None:
        self.now += self.chance.choice([0.1, 0.6, 3])

    def lose(self) -> None:
        self.source.fail(ConnectionLostError("gone"))

    def kill(self) -> None:
        self.store.serve(self.chance.randint(0, 2))
        self.begin()

    def close(self) -> None:
        self.source.close()
        self.begin()

    # ---- what is reported and kept

    def on_report(self, text: str) -> None:
        for partition, first, last in _REPORTED.findall(text):
            for sequence in range(int(first), int(last) + 1):
                assert sequence not in self.logs[int(partition)].there, f"W3: {text}"
                position = int(partition) << PARTITION_SHIFT | sequence
                assert position not in self.reported, f"W3: {text}"
                self.reported.add(position)
        self.lost |= self.reported

    def wrote(self, partition: int, checkpoint: Checkpoint) -> None:
        for position in self.out | self.back:
            sequence = position & ((1 << PARTITION_SHIFT) - 1)
            if position >> PARTITION_SHIFT == partition and sequence in self.logs[partition].there:
                assert sequence > checkpoint.sequence, "W2"
        self.checkpoints[partition] = checkpoint

    def finish(self) -> None:
        self.is_flaky = False
        for log in self.logs.values():  # what is removed up to the end of a partition is reported with its next event
            log.there.add(log.next)
            log.next += 1
        for _ in range(LAST_ROUNDS):
            self.now += 1
            self.store.serve(10)
            self.credit = 100
            self.source.grant(100)
            self.poll()
            for link in self.links:
                link.flow(100)
            self.poll()
            for position in sorted(self.out):
                self.source.settle(position, position)
                self.settled.add(position)
                self.done.add(position)
            self.out.clear()
        there = {number << PARTITION_SHIFT | each for number, log in self.logs.items() for each in log.there}
        assert there <= self.done, f"W4: {sorted(there - self.done)}"
        unreported = self.retired - self.done - self.lost
        assert not unreported, f"W4: {sorted(unreported)}"


@pytest.mark.parametrize("seed", range(QUICK))
def test_reader_in_a_world_of_faults(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(seed, monkeypatch)
    acts = [
        *[world.publish] * 4,
        *[world.poll] * 12,
        *[world.flow] * 6,
        *[world.serve] * 6,
        *[world.grant] * 3,
        *[world.settle] * 4,
        *[world.give_back] * 2,
        *[world.wait] * 2,
        world.retain,
        world.compact,
        world.lose,
    ]
    for _ in range(STEPS):
        world.chance.choice(acts)()
        if world.chance.random() < 0.02:
            world.chance.choice([world.kill, world.close])()
    world.finish()
