"""isthmus.connectors.kafka.consumer.commit: which offsets are committed when."""

from __future__ import annotations

import pytest

from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.connectors.kafka.consumer.commit import ANSWER_SECONDS, COMMIT_SECONDS, Commits
from isthmus.connectors.kafka.consumer.offset import OffsetAccount


class Rig:
    """An account of two partitions, and its commits."""

    def __init__(self) -> None:
        self.account = OffsetAccount()
        self.account.assign([0, 1])
        self.commits = Commits(self.account)
        self.now = 100.0

    def settle(self, first: int, last: int, partition: int = 0) -> None:
        positions = [partition << PARTITION_SHIFT | offset for offset in range(first, last + 1)]
        self.account.deliver(positions)
        self.account.settle(positions[0], positions[-1])
        self.commits.settled(self.now)

    def begin(self, seconds: float = COMMIT_SECONDS) -> dict[int, int]:
        self.now += seconds
        return self.commits.begin(self.now)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_offsets_are_committed_together_after_a_while(rig: Rig) -> None:
    assert rig.begin() == {}
    rig.settle(0, 3)
    assert rig.begin(0.9 * COMMIT_SECONDS) == {}
    rig.settle(4, 6)
    assert rig.begin(0.2 * COMMIT_SECONDS) == {0: 7}
    rig.commits.answered({0: 7}, (), rig.now)
    rig.settle(0, 1, partition=1)
    assert rig.begin() == {1: 2}


def test_a_commit_without_an_answer_is_not_overtaken(rig: Rig) -> None:
    """I1. librdkafka may send the first one again behind the second: the group would keep the older offset."""
    rig.settle(0, 9)
    assert rig.begin() == {0: 10}
    rig.settle(10, 39)
    assert rig.begin(5) == {}
    rig.commits.answered({0: 10}, (), rig.now)
    assert rig.begin(0) == {0: 40}
    rig.settle(40, 49)
    assert rig.begin(ANSWER_SECONDS - 1) == {}
    assert rig.begin(2) == {0: 50}
    rig.commits.answered({0: 50}, (), rig.now)
    rig.commits.answered({0: 40}, (), rig.now)  # was not lost at all: the group was reset to an earlier offset
    assert rig.begin() == {0: 50}


@pytest.mark.parametrize("failed_early", [False, True])
def test_what_was_not_confirmed_is_committed_again(rig: Rig, failed_early: bool) -> None:
    """I2."""
    rig.settle(0, 9)
    rig.settle(0, 4, partition=1)
    assert rig.begin() == {0: 10, 1: 5}
    if failed_early:
        rig.commits.failed(rig.now)
        assert rig.begin() == {0: 10, 1: 5}
        return
    assert rig.commits.unconfirmed() == {0: 10, 1: 5}
    rig.commits.answered({0: 10, 1: 5}, [1], rig.now)
    assert rig.commits.unconfirmed() == {1: 5}
    assert rig.begin() == {1: 5}


def test_of_partitions_that_were_handed_over_nothing_is_committed(rig: Rig) -> None:
    """I3."""
    rig.settle(0, 9)
    rig.settle(0, 4, partition=1)
    assert rig.begin() == {0: 10, 1: 5}
    rig.account.revoke([0])
    rig.commits.forget([0])
    rig.commits.answered({1: 5}, (), rig.now)
    assert not rig.commits.is_outstanding
    rig.account.assign([0])
    assert rig.commits.unconfirmed() == {}
    rig.settle(3, 4)
    assert rig.begin() == {0: 5}


def test_a_consumer_that_is_spent_leaves_no_commit_outstanding(rig: Rig) -> None:
    rig.settle(0, 9)
    rig.begin()
    rig.commits.reset()
    assert not rig.commits.is_outstanding
    rig.settle(10, 19)
    assert rig.begin() == {0: 20}


def test_a_partition_that_has_to_wait_is_committed_as_soon_as_it_may_be(rig: Rig) -> None:
    rig.settle(0, 9)
    rig.settle(0, 4, partition=1)
    rig.now += COMMIT_SECONDS
    assert rig.commits.begin(rig.now, {0: -1}) == {1: 5}
    rig.commits.answered({1: 5}, (), rig.now)
    assert rig.commits.begin(rig.now, {0: -1}) == {}
    rig.settle(5, 5, partition=1)
    assert rig.commits.begin(rig.now) == {0: 10, 1: 6}


def test_a_partition_is_committed_up_to_its_limit_and_on_when_that_moves(rig: Rig) -> None:
    rig.settle(0, 9)
    rig.now += COMMIT_SECONDS
    assert rig.commits.begin(rig.now, {0: 4}) == {0: 4}
    rig.commits.answered({0: 4}, (), rig.now)
    assert rig.commits.begin(rig.now, {0: 7}) == {}
    rig.now += COMMIT_SECONDS
    assert rig.commits.begin(rig.now, {0: 7}) == {0: 7}
    rig.commits.answered({0: 7}, (), rig.now)
    assert rig.commits.unconfirmed(limits={0: 7}) == {}
    assert rig.commits.begin(rig.now) == {0: 10}
