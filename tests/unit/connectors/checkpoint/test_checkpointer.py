"""isthmus.connectors.checkpoint.checkpointer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError, GroupKey
from isthmus.connectors.checkpoint.checkpointer import Checkpointer
from isthmus.connectors.checkpoint.thread import Loaded, Written

GROUP = GroupKey("namespace", "host", "hub", "group")
FIRST = {0: Checkpoint(9, "90")}
FULL = CheckpointError("the disk is full")


class Thread:
    """Keeps what it is asked, and answers what a test says."""

    ident: int | None = None

    def __init__(self) -> None:
        self.loads: list[int] = []
        self.written: list[dict[int, Checkpoint]] = []
        self.answers: list[Loaded | Written] = []
        self.is_stopped = False

    def load(self, key: GroupKey, number: int) -> None:
        self.loads.append(number)

    def write(self, key: GroupKey, checkpoints: Mapping[int, Checkpoint]) -> None:
        self.written.append(dict(checkpoints))

    def take(self) -> list[Loaded | Written]:
        taken, self.answers = self.answers, []
        return taken

    def stop(self) -> None:
        self.is_stopped = True


class Account:
    """An account of which a test says what is due."""

    def __init__(self) -> None:
        self.due: dict[int, Checkpoint] = {}
        self.left: dict[int, Checkpoint] = {}
        self.reported: list[bool] = []

    def begin_commit(self, now: float) -> dict[int, Checkpoint]:
        return self.due

    def unconfirmed(self) -> dict[int, Checkpoint]:
        return self.left

    def written(self, checkpoints: Mapping[int, Checkpoint], *, failed: bool, now: float) -> None:
        self.reported.append(failed)


@pytest.fixture
def thread() -> Thread:
    return Thread()


@pytest.fixture
def account() -> Account:
    return Account()


@pytest.fixture
def checkpointer(thread: Any, account: Account) -> Checkpointer:
    return Checkpointer(thread, account)


def test_i1_the_answer_to_an_earlier_opening_changes_nothing(checkpointer: Checkpointer, thread: Thread) -> None:
    checkpointer.load(GROUP)
    checkpointer.load(GROUP)
    thread.answers = [Loaded(thread.loads[0], FIRST, None), Loaded(thread.loads[0], {}, FULL)]
    assert checkpointer.take(0.0, is_opening=True) is None
    assert checkpointer.kept is None
    thread.answers = [Loaded(thread.loads[1], FIRST, None)]
    assert checkpointer.take(0.0, is_opening=True) is None
    assert checkpointer.kept == FIRST


def test_i1_an_answer_that_nothing_waits_for_changes_nothing(checkpointer: Checkpointer, thread: Thread) -> None:
    checkpointer.load(GROUP)
    thread.answers = [Loaded(thread.loads[0], FIRST, None)]
    assert checkpointer.take(0.0, is_opening=False) is None
    assert checkpointer.kept is None


def test_i2_a_first_checkpoint_is_written_again_until_that_succeeds(
    checkpointer: Checkpointer, thread: Thread, account: Account
) -> None:
    checkpointer.load(GROUP)
    checkpointer.first.update(FIRST)
    checkpointer.write_first()
    thread.answers = [Written(thread.written[0], FULL)]
    assert checkpointer.take(0.0, is_opening=True) is FULL
    checkpointer.write_first()
    assert thread.written == [FIRST, FIRST]
    thread.answers = [Written(thread.written[1], None)]
    assert checkpointer.take(0.0, is_opening=True) is None
    checkpointer.write_first()
    assert thread.written == [FIRST, FIRST]
    assert account.reported == [True, False]


def test_i2_the_end_writes_a_first_checkpoint_that_is_not_written(
    checkpointer: Checkpointer, thread: Thread, account: Account
) -> None:
    checkpointer.load(GROUP)
    checkpointer.first.update({0: Checkpoint(1, "10"), 1: Checkpoint(2, "20")})
    account.left = {0: Checkpoint(5, "50")}
    assert checkpointer.stop() is None
    assert thread.written == [{0: Checkpoint(5, "50"), 1: Checkpoint(2, "20")}]
    assert thread.is_stopped


def test_what_is_due_is_written_once_it_is_known_whose_it_is(
    checkpointer: Checkpointer, thread: Thread, account: Account
) -> None:
    account.due = FIRST
    checkpointer.commit(0.0)
    assert thread.written == []
    checkpointer.load(GROUP)
    checkpointer.commit(0.0)
    assert thread.written == [FIRST]
