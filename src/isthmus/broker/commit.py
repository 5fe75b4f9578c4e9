"""Group commit: everything staged since the last sync becomes durable with the next one.

What it is: the loop that writes what the engine has staged, syncs the store in one worker thread, and then lets the
engine acknowledge. What it is not: it knows no links and no messages; acknowledgements are the callbacks that were given
to the engine.

Invariants:
    I1. No acknowledgement of a durable operation leaves before the sync that covers it has returned: callbacks run in
        `Engine.end_commit` only, which runs after the sync only.
    I2. One sync runs at a time, in a thread of its own; the event loop never waits for the disk.
    I3. A failed write or sync fails what it covered, is logged once, and the loop goes on with the next group.
    I4. Nothing that is raised in a callback, in the engine or in the store ends the loop: what is staged is committed all
        the same, and `wait_idle` returns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from isthmus.entities import Commit, Engine, Journal
from isthmus.errors import StoreError

__all__ = ["COMMIT_SECONDS", "CommitLoop"]

_log = logging.getLogger(__name__)

# Upper bounds of the classes into which the time from write to acknowledgement is counted.
COMMIT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class CommitLoop:
    """Commits what an engine stages; must be made on the running loop that owns the engine.

    Args:
        engine: its `on_staged` is taken over.
        store: the engine's store, synced here.
        on_committed: called after each group has been acknowledged or has failed.
    """

    def __init__(self, engine: Engine, store: Journal, on_committed: Callable[[], None] = lambda: None) -> None:
        self._engine = engine
        self._store = store
        self._on_committed = on_committed
        self._loop = asyncio.get_running_loop()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="isthmus-sync")
        self._scheduled = False
        self._syncing: Commit | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure = ""
        self._commits = 0
        self._failures = 0
        self._began_at = 0.0
        self._operations = 0
        self._seconds = 0.0
        self._classes = [0] * (len(COMMIT_SECONDS) + 1)
        engine.on_staged = self.wake
        if engine.has_staged:
            self.wake()

    def wake(self) -> None:
        """Commit soon: at the next turn of the loop, or when the sync under way is done."""
        if self._scheduled or self._syncing is not None:
            return
        self._scheduled = True
        self._idle.clear()
        # Not at once: all that the turn of the loop still stages belongs to the same group.
        self._loop.call_soon(self._begin_if_free)

    def when_durable(self, on_durable: Callable[[], None], on_failed: Callable[[Exception], None]) -> None:
        """Call one of both once all that is staged now is durable or has failed; at once if nothing is."""
        self._engine.promise(on_durable, on_failed)

    async def wait_durable(self) -> None:
        """Until all that is staged now is durable.

        Raises:
            StoreError: it could not be stored.
        """
        done = self._loop.create_future()
        self.when_durable(
            lambda: None if done.done() else done.set_result(None),
            lambda error: None if done.done() else done.set_exception(error),
        )
        await done

    async def wait_idle(self) -> None:
        """Until nothing is staged and no sync is under way."""
        await self._idle.wait()

    async def close(self) -> None:
        """Commit what is staged and let go of the worker thread."""
        await self.wait_idle()
        self._engine.on_staged = None
        self._worker.shutdown()

    @property
    def is_healthy(self) -> bool:
        """Whether the last group could be stored."""
        return not self._failure

    @property
    def failure(self) -> str:
        """Why the last group could not be stored; empty where it could."""
        return self._failure

    def statistics(self) -> dict[str, int]:
        """Groups committed and failed since the start."""
        return {"commits": self._commits, "commit_failures": self._failures}

    def timing(self) -> tuple[list[int], float, int]:
        """Groups by time (one number for each of `COMMIT_SECONDS`, one for longer), seconds and operations in all."""
        return list(self._classes), self._seconds, self._operations

    def _begin_if_free(self) -> None:
        self._scheduled = False
        # What acknowledgements have staged is often on its way already, with the group that followed at once.
        if self._syncing is None:
            self._begin()

    def _begin(self) -> None:
        self._began_at = time.monotonic()
        try:
            commit = self._engine.begin_commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next group is tried
            self._report(error)
            self._settled(failed=True)
            return
        if commit is None:
            # Something has failed meanwhile, and all that was staged with it.
            self._settled()
            return
        self._syncing = commit
        try:
            syncing = self._worker.submit(self._store.sync)
        except RuntimeError as error:  # no thread can be had
            syncing = Future()
            syncing.set_exception(error)
        syncing.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._end, commit, done.exception()))

    def _end(self, commit: Commit, error: BaseException | None) -> None:
        self._syncing = None
        if error is None:
            self._commits += 1
            self._failure = ""
            seconds = time.monotonic() - self._began_at
            self._seconds += seconds
            self._operations += len(commit)
            self._classes[bisect_left(COMMIT_SECONDS, seconds)] += 1
            self._guard(lambda: self._engine.end_commit(commit))
        else:
            failure = error if isinstance(error, StoreError) else StoreError(type(error).__name__)
            self._report(failure)
            self._guard(lambda: self._engine.fail_commit(commit, failure))
        self._settled(failed=error is not None)

    def _settled(self, *, failed: bool = False) -> None:
        self._guard(self._on_committed)
        if self._engine.has_staged:
            # What came in during the sync needs no further wait: commit it at once. After a failure the others get their
            # turn first: it may well fail again.
            self._idle.clear()
            if failed:
                self.wake()
            else:
                self._begin()
        elif self._syncing is None and not self._scheduled:
            self._idle.set()

    @staticmethod
    def _guard(run: Callable[[], None]) -> None:
        """Run what belongs to others; what it raises is a fault of theirs, and no end of the loop (I4)."""
        try:
            run()
        except Exception:  # noqa: BLE001 - see above
            _log.exception("a fault after a commit")

    def _report(self, error: Exception) -> None:
        self._failures += 1
        self._failure = str(error) if isinstance(error, StoreError) else type(error).__name__
        if isinstance(error, StoreError):
            _log.warning("commit failed: reason=%s", error)
        else:
            _log.error("commit failed by a fault", exc_info=error)
