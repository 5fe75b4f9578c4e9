"""A partition's log against a small reference model: appends, commits, power cuts, restarts, retention, clock jumps."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isthmus.amqp import section
from isthmus.entities import Engine
from isthmus.entities.hub import Cursor, EventHubDescription, Selector, parse_selector
from isthmus.store import MemoryJournal, RocksJournal
from isthmus.testing.clock import ManualClock

RETENTION_MS = 100_000
SLACK_MS = RETENTION_MS // 16


def payload(name: str, size: int) -> bytes:
    return section.encode_message(name.encode() + b" " * size)


def name_of(event: bytes) -> str:
    start, end = section.locate(event).body
    return event[start + (8 if event[start + 3] == 0xB0 else 5) : end].decode().strip()


def annotations_of(event: bytes) -> dict[str, Any]:
    return section.decode_map(event, section.locate(event).message_annotations)


class PartitionMachine(RuleBasedStateMachine):
    """The model is a list: what was appended and is durable, at its sequence number; retention only moves `begin`."""

    @initialize()
    def begin(self) -> None:
        self.clock = ManualClock()
        self.journal = self.make_journal()
        self.names: list[str] = []  # durable, by sequence number
        self.times: list[int] = []
        self.arrivals: list[float] = []  # monotonic
        self.staged: list[str] = []
        self.count = 0
        self.floor = 0
        self.start()
        self.engine.hubs.create("hub", EventHubDescription(partition_count=1, message_retention_ms=RETENTION_MS))
        self.commit()

    def make_journal(self) -> Any:
        return MemoryJournal()

    def start(self) -> None:
        self.engine = Engine(self.journal, self.clock)
        hub = self.engine.hubs.find("hub")
        if hub is not None:
            self.attach()

    def attach(self) -> None:
        hub = self.engine.hubs.find("hub")
        assert hub is not None
        self.hub = hub
        self.partition = hub.partitions[0]
        self.live = Cursor(self.partition, self.partition.committed.next)
        self.partition.add_listener(lambda: None)

    def commit(self) -> None:
        commit = self.engine.begin_commit()
        self.journal.sync()
        if commit is not None:
            self.engine.end_commit(commit)
        if not hasattr(self, "hub"):
            self.attach()
        self.commit_names()

    @rule(sizes=st.lists(st.sampled_from([0, 10, 1000, 100_000]), min_size=1, max_size=6), batch=st.booleans())
    def append(self, sizes: list[int], batch: bool) -> None:
        names = [f"e{self.count + at}" for at in range(len(sizes))]
        self.count += len(sizes)
        payloads = [payload(name, size) for name, size in zip(names, sizes, strict=True)]
        if batch:
            self.hub.accept_batch(
                b"".join(b"\0Su" + b"\xb0" + len(p).to_bytes(4, "big") + p for p in payloads), payloads
            )
        else:
            self.hub.accept(payloads)
        self.staged += names

    @rule()
    def make_durable(self) -> None:
        self.commit()

    @rule()
    def write_without_sync(self) -> None:
        """Half of a commit: nothing of it may be seen, and a power cut loses it."""
        if self.staged:
            commit = self.engine.begin_commit()
            assert self.everything() == self.names[self.partition_begin() :]
            self.journal.sync()
            assert commit is not None
            self.engine.end_commit(commit)
            self.commit_names()

    def commit_names(self) -> None:
        self.names += self.staged
        last_ms = self.times[-1] if self.times else 0
        self.times += [max(self.clock.wall_ms(), last_ms)] * len(self.staged)
        self.arrivals += [self.clock.monotonic()] * len(self.staged)
        self.staged = []

    @rule()
    def power_cut(self) -> None:
        self.cut()
        self.staged = []
        self.start()

    def cut(self) -> None:
        self.journal.crash()

    @rule()
    def fail_to_sync(self) -> None:
        commit = self.engine.begin_commit()
        if commit is not None:
            self.journal.crash()
            self.engine.fail_commit(commit, RuntimeError("the disk is gone"))
            self.staged = []

    @rule(ms=st.sampled_from([-50_000, 1, 1_000, 20_000, RETENTION_MS]))
    def pass_time(self, ms: int) -> None:
        if ms > 0:
            self.clock.advance(ms)
        else:
            self.clock.set_wall(self.clock.wall_ms() + ms)

    @rule()
    def tick(self) -> None:
        now = self.clock.wall_ms()
        self.engine.hubs.due_ms = 0  # a peek a second at most: let it be now
        self.engine.hubs.tick(now)
        if not self.staged:
            self.commit()
            begin = self.partition.committed.begin
            # Nothing younger than the retention was removed, and nothing far older is left.
            # Age is derived from enqueued times, and by monotonic time while these lie in the future.
            since = self.clock.monotonic() - RETENTION_MS / 1000
            removed = zip(self.times[self.floor : begin], self.arrivals[self.floor : begin], strict=True)
            assert all(at + RETENTION_MS <= now or came <= since for at, came in removed)
            assert not any(at + RETENTION_MS + SLACK_MS <= now for at in self.times[begin : begin + 1])

    @rule(count=st.integers(1, 5))
    def follow(self, count: int) -> None:
        before = self.live.next
        events = self.live.take(count, 1 << 20)
        passed = max(before, self.partition_begin())
        assert [name_of(event) for event in events] == self.names[passed : passed + len(events)]

    def partition_begin(self) -> int:
        return self.partition._state.begin

    def everything(self) -> list[str]:
        cursor = Cursor(self.partition, 0)
        found: list[str] = []
        while events := cursor.take(3, 1 << 20):
            found += map(name_of, events)
        return found

    @invariant()
    def what_is_durable_is_there_in_order(self) -> None:
        state = self.partition.committed
        begin = self.partition_begin()
        assert state.next == len(self.names)
        assert state.begin >= self.floor
        self.floor = state.begin
        assert self.everything() == self.names[begin:]

    @rule(data=st.data())
    def every_position_leads_to_its_event(self, data: st.DataObject) -> None:
        begin, end = self.partition_begin(), len(self.names)
        assert self.partition.locate(Selector()) == begin
        assert self.partition.locate(parse_selector("amqp.annotation.x-opt-offset > '@latest'")) == end
        if begin == end:
            return
        at = data.draw(st.integers(begin, end - 1))
        [event] = Cursor(self.partition, at).take(1, 1)
        marks = annotations_of(event)
        assert marks["x-opt-sequence-number"] == at
        assert marks["x-opt-enqueued-time"] == self.times[at]
        for name in ("x-opt-offset", "x-opt-sequence-number"):
            assert self.partition.locate(parse_selector(f"amqp.annotation.{name} >= '{marks[name]}'")) == at
            assert self.partition.locate(parse_selector(f"amqp.annotation.{name} > '{marks[name]}'")) == at + 1
        first = next(n for n in range(begin, end) if self.times[n] >= self.times[at])
        after = next((n for n in range(begin, end) if self.times[n] > self.times[at]), end)
        assert (
            self.partition.locate(parse_selector(f"amqp.annotation.x-opt-enqueued-time >= '{self.times[at]}'")) == first
        )
        assert (
            self.partition.locate(parse_selector(f"amqp.annotation.x-opt-enqueued-time > '{self.times[at]}'")) == after
        )


class RocksPartitionMachine(PartitionMachine):
    """The same on the disk; a restart instead of a power cut."""

    def make_journal(self) -> Any:
        self.folder = Path(tempfile.mkdtemp(prefix="isthmus-partition-"))
        return RocksJournal(self.folder)

    def cut(self) -> None:
        # What was accepted and not written is lost; a clean close syncs what was written, which here is everything.
        self.journal.close()
        self.journal = RocksJournal(self.folder)

    fail_to_sync = None  # only the journal in memory loses what was written

    def teardown(self) -> None:
        if hasattr(self, "journal"):
            self.journal.close()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.parametrize(("machine", "steps"), [(PartitionMachine, 10_000), (RocksPartitionMachine, 4_000)])
def test_a_partition_keeps_its_promises(machine, steps, run_model):
    run_model(machine, steps)
