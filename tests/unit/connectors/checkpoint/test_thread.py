"""isthmus.connectors.checkpoint.thread."""

from __future__ import annotations

from collections.abc import Mapping

from harness.check.until import until
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError, GroupKey
from isthmus.connectors.checkpoint.thread import CheckpointThread, Loaded, Written

GROUP = GroupKey("namespace", "host", "hub", "group")


class Store:
    """A store whose account takes one key."""

    def __init__(self, account: Account, key: str) -> None:
        self._account, self._key = account, key

    def load(self, key: GroupKey) -> dict[int, Checkpoint]:
        self._check()
        return dict(self._account.kept)

    def write(self, key: GroupKey, checkpoints: Mapping[int, Checkpoint]) -> None:
        self._check()
        self._account.kept.update(checkpoints)

    def close(self) -> None:
        self._account.closed += 1

    def _check(self) -> None:
        if self._key != self._account.key:
            raise CheckpointError("the key is refused")


class Account:
    """A storage account, and the secret by which it is opened."""

    def __init__(self) -> None:
        self.key = self.secret = "old"
        self.kept: dict[int, Checkpoint] = {}
        self.opened = self.closed = 0

    def open(self) -> Store:
        self.opened += 1
        return Store(self, self.secret)


def test_i3_a_key_that_was_replaced_is_read_again() -> None:
    """Checkpoints would not be written any more, as long as the route runs."""
    account = Account()
    thread = CheckpointThread(account.open, lambda: None)

    def answered() -> Loaded | Written:
        answers: list[Loaded | Written] = []
        until(lambda: bool(answers.extend(thread.take()) or answers))
        return answers[0]

    thread.write(GROUP, {0: Checkpoint(1)})
    assert answered().error is None
    account.key = account.secret = "new"
    thread.write(GROUP, {0: Checkpoint(2)})
    assert answered().error is not None
    thread.write(GROUP, {0: Checkpoint(2)})
    assert answered().error is None
    thread.load(GROUP, 1)
    assert answered().checkpoints == {0: Checkpoint(2)}
    thread.stop()
    thread.join(10)
    assert (account.opened, account.closed) == (2, 2)
