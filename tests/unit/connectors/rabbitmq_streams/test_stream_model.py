"""A source of streams under random faults, by seed: deliveries, reported losses, and checkpoints.

W1. No message is delivered twice that was not released, none beyond the credit, and each with its offset.
W2. No checkpoint passes a message without outcome that is not reported as lost.
W3. Messages reported as lost were removed, were not delivered, and are reported once by a reader.
W4. In the end every existing message was delivered, and every missing one was reported.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from harness.bridge.rabbitmq_stream_broker import CLOCKS, Clock, Reader, Stream, Thread
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, SourceLost, SourceOpened
from isthmus.connectors.amqp import copy_limit
from isthmus.connectors.checkpoint.checkpoint import CheckpointError
from isthmus.connectors.rabbitmq.port.end import CHANNEL
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.rabbitmq_streams import source, waiting
from isthmus.connectors.servicebus.port import outcome_wait

QUICK = 40
STEPS, LAST_ROUNDS = 120, 150
ASIDE = Disposition("dead-letter", "Bad", "it is")


class World:
    """A stream, its readers one after the other, and what became of each message."""

    def __init__(self, seed: int, clock: Clock, logged: list[str]) -> None:
        self.chance = random.Random(seed)
        self.logged = logged
        self.clock, self.stream, self.thread = clock, Stream(), Thread()
        self.options = {"prefetch": str(self.chance.choice([1, 5, 20, 100])), "dead_letter_topic": "aside"}
        self.end = 0
        self.published: set[int] = set()
        self.given: set[int] = set()
        self.done: set[int] = set()  # settled, or set aside with a confirm that is in transit
        self.lost: set[int] = set()
        self.begin()

    def begin(self) -> None:
        """Another reader."""
        self.is_first = not self.thread.kept
        self.credit, self.is_open = 0, False
        self.out: set[int] = set()
        self.aside: set[int] = set()
        self.seen: set[int] = set()
        self.again: set[int] = set()  # may come again
        self.reported: set[int] = set()
        self.reader = Reader(self.stream, self.clock, self.thread, **self.options)
        self.reader.source.open()

    # ---- what is reported to the owner

    def serve(self, rounds: int) -> None:
        source = self.reader.source
        for _ in range(rounds):
            self.reader.serve()
            for each in source.poll(self.clock.now):
                self.take(each)
            if not source.is_open and source.connection is None and not self.reader.is_connecting:
                source.open()
        kept = self.thread.kept.get(0)
        if kept is not None:
            missed = {each for each in self.published if each <= kept.sequence} - self.done - self.lost
            assert not missed & (self.out | self.stream.messages.keys()), f"W2: {sorted(missed)[:5]}, {kept}"

    def take(self, event: Any) -> None:
        if isinstance(event, SourceOpened):
            self.is_open = True
        elif isinstance(event, SourceLost):
            self.is_open = False
            assert not event.is_fatal, event.text
            self.take_loss(event.text)
        elif isinstance(event, Arrived):
            self.take_messages(event.positions, event.payloads)

    def take_loss(self, text: str) -> None:
        ranges = text.partition(" were removed by the retention")
        for first, last in re.findall(r"(\d+) to (\d+)", ranges[0] if ranges[1] else ""):
            offsets = set(range(int(first), int(last) + 1))
            assert not offsets & (self.reported | self.out | self.stream.messages.keys()), f"W3: {text}"
            self.reported |= offsets
            self.lost |= offsets

    def take_messages(self, offsets: Sequence[int], payloads: Sequence[bytes]) -> None:
        if self.is_first:  # where there is no checkpoint reading begins with what is there
            self.is_first = False
            self.lost |= {each for each in self.published if each < offsets[0]}
        for offset, payload in zip(offsets, payloads, strict=True):
            assert payload.endswith(b"#%d" % offset), "W1"
            assert offset not in self.seen or offset in self.again, f"W1: {offset} came again"
            self.credit -= 1
        assert self.credit >= 0, "W1"
        self.again -= set(offsets)
        for found in (self.seen, self.out, self.given):
            found |= set(offsets)

    # ---- what happens

    def step(self) -> None:
        often = (self.publish, self.grant, self.settle, self.settle)
        happens = self.chance.choice((*often, *often[:3], self.remove, self.confirm, self.fault, self.wait))
        happens()
        self.serve(self.chance.randrange(1, 6))

    def publish(self) -> None:
        for _ in range(self.chance.randrange(1, 3)):
            first, self.end = self.end, self.end + self.chance.randrange(1, 9)
            self.stream.add(first, self.end)
            self.published |= set(range(first, self.end))
            self.end += self.chance.random() < 0.3  # a note of the broker

    def remove(self) -> None:
        if self.stream.messages and self.chance.random() < 0.5:
            self.stream.remove(0, self.stream.chunk_of(self.chance.choice(sorted(self.stream.messages))))

    def grant(self) -> None:
        if self.is_open:
            self.credit = self.chance.randrange(30)
            self.reader.source.grant(self.credit)

    def settle(self) -> None:
        if not self.out:
            return
        first = last = self.chance.choice(sorted(self.out))
        while last + 1 in self.out and self.chance.random() < 0.8:
            last += 1
        these = set(range(first, last + 1))
        self.out -= these
        kind = self.chance.random()
        if kind < 0.7:
            self.done |= these
            self.reader.source.settle(first, last)
        elif kind < 0.85:
            self.again |= these
            self.aside |= these
            self.reader.source.settle(first, last, ASIDE)
        else:
            self.again |= these
            self.reader.source.release(first, last)

    def confirm(self) -> None:
        if self.stream.published and self.reader.is_connected:
            self.done |= self.aside
            self.reader.confirm()

    def fault(self) -> None:
        kind = self.chance.random()
        if kind < 0.3 and self.reader.is_connected:
            self.reader.link.answers.append((CHANNEL, M.BASIC_CANCEL, b""))
        elif kind < 0.6:
            self.thread.error = CheckpointError("full") if self.chance.random() < 0.4 else None
        elif kind < 0.8:
            self.thread.is_slow = self.chance.random() < 0.5
        elif kind < 0.9:
            self.reader.source.close()
            if self.chance.random() < 0.7:
                self.confirm()
                self.reader.serve()
            for each in self.reader.owing:
                each.finish()
            for text in self.logged:
                self.take_loss(text)
            self.logged.clear()
            self.begin()
        else:
            self.begin()  # it is killed

    def wait(self) -> None:
        self.clock.now += self.chance.choice([0.1, 0.6, 3.0])

    def finish(self) -> None:
        """No faults any more."""
        self.thread.error, self.thread.is_slow = None, False
        for _ in range(LAST_ROUNDS):
            self.serve(3)
            if self.is_open:
                self.credit = 50
                self.reader.source.grant(50)
            self.serve(3)
            for each in sorted(self.out):
                self.done.add(each)
                self.reader.source.settle(each, each)
            self.out.clear()
            self.confirm()
            self.clock.now += 1
        left = self.published - self.given - self.lost
        assert not left, f"W4: {sorted(left)[:5]} of {self.end}"
        if self.given:
            assert self.thread.kept[0].sequence >= max(self.given), "W4"


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    clock = Clock()
    for name in CLOCKS:
        monkeypatch.setattr(name, clock)
    logged: list[str] = []
    monkeypatch.setattr(source, "_log", SimpleNamespace(error=lambda _, reported: logged.append(str(reported))))

    def play_seed(seed: int) -> None:
        monkeypatch.setattr(waiting, "KEPT_BYTES", [50, 200, 4 << 20][seed % 3])
        monkeypatch.setattr(copy_limit, "MOST_COPIES", [3, 1000][seed % 2])
        monkeypatch.setattr(outcome_wait, "OUTCOME_SECONDS", [4.0, 60.0][seed // 2 % 2])
        try:
            logged.clear()
            world = World(seed, clock, logged)
            for _ in range(STEPS):
                world.step()
            world.finish()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise

    return play_seed


@pytest.mark.parametrize("first", range(0, QUICK, 10))
def test_whatever_happens_each_message_is_given_or_reported_as_lost(first: int, play: Callable[[int], None]) -> None:
    for seed in range(first, first + 10):
        play(seed)


@pytest.mark.soak
def test_whatever_happens_each_message_is_given_or_reported_as_lost_for_long(
    play: Callable[[int], None], long_count: Callable[[int], int], counted: Callable[[str, str], None]
) -> None:
    first, count = random.SystemRandom().randrange(1 << 40), long_count(2_000)
    for seed in range(first, first + count):
        play(seed)
    counted(f"{count} seeds from {first}", "each message given or reported as lost")
