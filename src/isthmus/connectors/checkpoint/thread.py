"""The thread that reads and writes the checkpoints of one source.

What it is: the only code that calls the store, whose calls block; requests of the loop's thread and answers pass under a lock.
What it is not: the decision what to write (`reading`).

Invariants:
    I1. Writes are made in the order in which they were requested.
    I2. After `stop` the last checkpoints are retried until they are written, for `CLOSE_SECONDS`.
    I3. After an error the store is opened again: the key that it was opened with may have been replaced.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError, CheckpointStore, GroupKey
from isthmus.errors import IsthmusError

__all__ = ["CheckpointThread", "Loaded", "Written"]

# Shorter than a pool waits for its threads.
CLOSE_SECONDS = 4.0
_AGAIN_SECONDS = 0.2


class Loaded(NamedTuple):
    """The answer to `load`: the existing checkpoints, or why they cannot be read."""

    number: int
    checkpoints: Mapping[int, Checkpoint]
    error: IsthmusError | None


class Written(NamedTuple):
    """The answer to `write`."""

    checkpoints: Mapping[int, Checkpoint]
    error: IsthmusError | None


class CheckpointThread(threading.Thread):
    """Uses a store.

    Args:
        opener: opens the store; called in this thread, again after an error.
        wake: called when there is an answer.
    """

    def __init__(self, opener: Callable[[], CheckpointStore], wake: Callable[[], None]) -> None:
        super().__init__(name="eventhubs-checkpoints", daemon=True)
        self._opener, self._wake = opener, wake
        self._is_due = threading.Condition()
        self._asked: deque[tuple[GroupKey, int, Mapping[int, Checkpoint] | None]] = deque()
        self._answers: deque[Loaded | Written] = deque()
        self._stops = False
        self._store: CheckpointStore | None = None

    # ---- for the loop's thread

    def load(self, key: GroupKey, number: int) -> None:
        """Reads the checkpoints of a group; the answer has `number`."""
        self._ask(key, number, None)

    def write(self, key: GroupKey, checkpoints: Mapping[int, Checkpoint]) -> None:
        """Writes checkpoints."""
        self._ask(key, 0, checkpoints)

    def take(self) -> list[Loaded | Written]:
        """The answers since the last call."""
        with self._is_due:
            answers = list(self._answers)
            self._answers.clear()
        return answers

    def stop(self) -> None:
        """Does what was requested, and ends."""
        with self._is_due:
            self._stops = True
            self._is_due.notify()

    def _ask(self, key: GroupKey, number: int, checkpoints: Mapping[int, Checkpoint] | None) -> None:
        with self._is_due:
            self._asked.append((key, number, checkpoints))
            self._is_due.notify()
        if self.ident is None:
            self.start()

    # ---- the thread

    def run(self) -> None:
        """Answers requests until it is stopped."""
        while True:
            with self._is_due:
                while not self._asked and not self._stops:
                    self._is_due.wait()
                if not self._asked:
                    break
                key, number, checkpoints = self._asked.popleft()
            answer = self._answer(key, number, checkpoints)
            with self._is_due:
                self._answers.append(answer)
            self._wake()
        self._close_store()

    def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _answer(self, key: GroupKey, number: int, checkpoints: Mapping[int, Checkpoint] | None) -> Loaded | Written:
        deadline: float | None = None
        while True:
            try:
                if self._store is None:
                    self._store = self._opener()
                if checkpoints is None:
                    return Loaded(number, self._store.load(key), None)
                self._store.write(key, checkpoints)
                return Written(checkpoints, None)
            except IsthmusError as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - the route must be told of any error
                failure = CheckpointError(f"checkpoints: {type(error).__name__}: {error}")
            self._close_store()
            if checkpoints is None:
                return Loaded(number, {}, failure)
            if not self._stops:
                return Written(checkpoints, failure)
            deadline = deadline or time.monotonic() + CLOSE_SECONDS
            if time.monotonic() >= deadline:
                return Written(checkpoints, failure)
            time.sleep(_AGAIN_SECONDS)
