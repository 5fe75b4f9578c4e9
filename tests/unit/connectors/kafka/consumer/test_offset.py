"""isthmus.connectors.kafka.consumer.offset: which offsets may be committed, and which records are read again."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.consumer.offset import OffsetAccount, PartitionOffsets


def read(account: PartitionOffsets, *offsets: int) -> list[int]:
    """Reads records; those that were delivered."""
    found = []
    for offset in offsets:
        if account.is_new(offset):
            account.deliver(offset)
            found.append(offset)
    return found


def test_commit_never_passes_a_hole() -> None:
    """I1."""
    account = PartitionOffsets()
    read(account, *range(10, 20))
    assert account.to_commit == 10
    account.settle(11, 19)
    assert account.to_commit == 10
    account.settle(10, 10)
    assert account.to_commit == 20


def test_offsets_that_no_record_has_delay_nothing() -> None:
    account = PartitionOffsets()
    read(account, 1, 2, 5, 9)
    account.settle(1, 2)
    account.settle(5, 5)
    assert account.to_commit == 9
    account.settle(9, 9)
    assert account.to_commit == 10


def test_after_a_return_only_what_was_given_back_comes_again() -> None:
    """I2."""
    account = PartitionOffsets()
    read(account, *range(6))
    account.settle(3, 3)
    assert account.release(1, 2)
    assert account.rewind() == 1
    assert account.to_commit == 0
    assert read(account, 1, 2, 3, 4, 5, 6) == [1, 2, 6]
    account.settle(0, 6)
    assert account.to_commit == 7


def test_what_was_given_back_and_was_removed_delays_nothing() -> None:
    """I3: compaction removed it meanwhile."""
    account = PartitionOffsets()
    read(account, *range(6))
    account.settle(0, 0)
    account.release(1, 5)
    account.rewind()
    assert read(account, 3, 5) == [3, 5]
    account.settle(3, 3)
    assert account.to_commit == 5
    account.settle(5, 5)
    assert account.to_commit == 6


def test_i5_a_record_before_those_that_came_is_reported_as_a_log_that_begins_again() -> None:
    account = PartitionOffsets()
    assert not account.begins_again(7), "nothing has come"
    read(account, 7, 8, 9)
    assert [account.begins_again(offset) for offset in (0, 9, 10, 20)] == [True, True, False, False]
    account.release(8, 8)
    account.rewind()
    assert [account.begins_again(offset) for offset in (7, 8, 9)] == [True, False, False]
    read(account, 8)
    assert account.begins_again(8)
    read(account, 9, 10)
    assert account.begins_again(10)


def test_nothing_is_committed_for_a_partition_that_was_revoked() -> None:
    """I4."""
    account = OffsetAccount()
    account.assign([0, 1])
    positions = [0 << PARTITION_SHIFT | 4, 1 << PARTITION_SHIFT | 7]
    account.deliver(positions)
    account.revoke([1])
    assert account.settle(positions[0], positions[1])
    assert account.to_commit() == {0: 5}


def test_positions_of_several_partitions_are_settled_at_once() -> None:
    account = OffsetAccount()
    account.assign([0, 1, 2])
    account.deliver([part << PARTITION_SHIFT | offset for part in range(3) for offset in range(3)])
    assert account.outstanding == 9
    assert account.settle(0 << PARTITION_SHIFT | 1, 2 << PARTITION_SHIFT | 1)
    assert account.to_commit() == {0: 0, 1: 3, 2: 2}
    assert account.release(0, 1 << 60) == [0, 2]


class Partition(RuleBasedStateMachine):
    """One partition against a plain model: every record is settled in the end, none that is settled comes again."""

    def __init__(self) -> None:
        super().__init__()
        self.account = PartitionOffsets()
        self.log = [offset for offset in range(200) if offset % 5]  # offsets have holes
        self.place = 0
        self.outstanding: set[int] = set()
        self.settled: set[int] = set()

    @rule(count=st.integers(1, 9))
    def fetch(self, count: int) -> None:
        for offset in self.log[self.place : self.place + count]:
            assert not self.account.begins_again(offset)
            if self.account.is_new(offset):
                assert offset not in self.outstanding | self.settled
                self.account.deliver(offset)
                self.outstanding.add(offset)
        self.place = min(self.place + count, len(self.log))

    @rule(data=st.data())
    def settle(self, data: Any) -> None:
        first, last = sorted(data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60))))
        self.account.settle(first, last)
        moved = {offset for offset in self.outstanding if first <= offset <= last}
        self.outstanding -= moved
        self.settled |= moved

    @rule(data=st.data())
    def give_back(self, data: Any) -> None:
        first, last = sorted(data.draw(st.tuples(st.integers(0, 60), st.integers(0, 60))))
        if self.account.release(first, last):
            self.outstanding -= {offset for offset in self.outstanding if first <= offset <= last}
            start = self.account.rewind()
            self.place = next(at for at, offset in enumerate(self.log) if offset >= start)

    @invariant()
    def commits_only_what_is_settled(self) -> None:
        """I1."""
        commit = self.account.to_commit
        assert {offset for offset in self.log if offset < commit} <= self.settled


TestPartition = Partition.TestCase
