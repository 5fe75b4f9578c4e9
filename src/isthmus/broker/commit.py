"""Group commit: everything staged since the last sync becomes durable with the next one.

What it is: the loop that writes what the engine has staged, syncs the store, and then lets the engine acknowledge. What it
is not: aware of links or messages; acknowledgements are the callbacks that were given to the engine.

Invariants:
    I1. No acknowledgement of a durable operation is sent before the sync that covers it has returned: callbacks run only in
        `Engine.end_commit`, which runs only after the sync.
    I2. One sync runs at a time, in a thread of its own, except for a small one where syncs have been quick
        (`QUICK_SECONDS`): on average the event loop waits for the disk no longer than a thread switch would take.
    I3. A failed write or sync fails the operations that it covered, is logged once, and the loop continues with the next
        group.
    I4. No exception in a callback, in the engine or in the store ends the loop: staged operations are still committed, and
        `wait_idle` returns.
    I5. Operations that no one waits for are written at most `PATIENCE_SECONDS` after they were staged, with all others.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable
from queue import SimpleQueue

from isthmus.entities import Commit, Engine, Journal
from isthmus.errors import StoreError

__all__ = ["COMMIT_SECONDS", "PATIENCE_SECONDS", "CommitLoop"]

_log = logging.getLogger(__name__)

# Upper bounds of the classes into which the time from write to acknowledgement is counted.
COMMIT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)

# A settlement for which the client wants no answer waits so long for a group to join. Committed alone, at a few hundred
# messages a second, such groups were half of all.
PATIENCE_SECONDS = 0.005

# The two thread switches around a sync cost more than a quick sync takes, and messages that arrive one by one have a sync
# each. Syncs run on the loop while their recent mean is below this; one long stall ends that at once.
QUICK_SECONDS = 0.001
SYNCS_IN_MEAN = 16
FIRST_SYNC_SECONDS = 0.010


class CommitLoop:
    """Commits the operations that an engine stages; must be created on the running loop that owns the engine.

    Args:
        engine: its `on_staged` is taken over.
        store: the engine's store, synced here.
        on_committed: called after each group has been acknowledged or has failed.
        quick_bytes: groups of at most so many bytes may be synced on the loop; 0: none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        engine: Engine,
        store: Journal,
        on_committed: Callable[[], None] = lambda: None,
        *,
        quick_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._store = store
        self._on_committed = on_committed
        self._loop = asyncio.get_running_loop()
        self._clock = clock
        self._syncer = _Syncer(self._timed_sync, self._loop, self._end)
        self._quick_bytes = quick_bytes
        self._sync_mean = FIRST_SYNC_SECONDS
        self._on_loop = False
        self._scheduled = False
        self._timer: asyncio.TimerHandle | None = None
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
        """Commits soon: at the next iteration of the loop, or when the running sync is done; operations that no one waits for, later."""
        if self._scheduled or self._syncing is not None:
            return
        self._idle.clear()
        if not self._engine.is_awaited:
            self._timer = self._timer or self._loop.call_later(PATIENCE_SECONDS, self._begin_if_free)
            return
        self._scheduled = True
        # Not at once: everything that this iteration of the loop still stages belongs to the same group.
        self._loop.call_soon(self._begin_if_free)

    def when_durable(self, on_durable: Callable[[], None], on_failed: Callable[[Exception], None]) -> None:
        """Calls one of the two once everything staged now is durable or has failed; at once if nothing is staged."""
        self._engine.promise(on_durable, on_failed)

    async def wait_durable(self) -> None:
        """Waits until everything staged now is durable.

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
        """Waits until nothing is staged and no sync is running."""
        await self._idle.wait()

    async def close(self) -> None:
        """Commits what is staged and ends the worker thread."""
        await self.wait_idle()
        self._engine.on_staged = None
        self._syncer.close()

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
        # Operations staged by acknowledgements are often committed already, with the group that followed at once.
        if self._syncing is None:
            self._begin()

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._began_at = self._clock()
        try:
            commit = self._engine.begin_commit()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next group is tried
            self._report(error)
            self._settled(failed=True)
            return
        if commit is None:
            # A group has failed meanwhile, and everything staged with it.
            self._settled()
            return
        self._syncing = commit
        is_quick = self._quick_bytes > 0 and self._sync_mean < QUICK_SECONDS
        self._on_loop = is_quick and self._store.unsynced_bytes <= self._quick_bytes
        if self._on_loop:
            self._end(commit, *self._timed_sync())
            return
        try:
            self._syncer.submit(commit)
        except RuntimeError as error:  # no thread can be started
            self._loop.call_soon(self._end, commit, error, 0.0)

    def _end(self, commit: Commit, error: BaseException | None, sync_seconds: float) -> None:
        self._syncing = None
        self._sync_mean += (sync_seconds - self._sync_mean) / SYNCS_IN_MEAN
        if error is None:
            self._commits += 1
            self._failure = ""
            seconds = self._clock() - self._began_at
            self._seconds += seconds
            self._operations += len(commit)
            self._classes[bisect_left(COMMIT_SECONDS, seconds)] += 1
            self._guard(lambda: self._engine.end_commit(commit))
        else:
            failure = error if isinstance(error, StoreError) else StoreError(type(error).__name__)
            self._report(failure)
            self._guard(lambda: self._engine.fail_commit(commit, failure))
        self._settled(failed=error is not None)

    def _timed_sync(self) -> tuple[BaseException | None, float]:
        """The exception of the store's sync, and how many seconds it took."""
        error: BaseException | None = None
        began = self._clock()
        try:
            self._store.sync()
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it belongs to the commit
            error = raised
        return error, self._clock() - began

    def _settled(self, *, failed: bool = False) -> None:
        self._guard(self._on_committed)
        if self._engine.has_staged:
            # Operations staged during the sync need no further wait: commit them at once. After a failure other callbacks
            # run first, because the next group is likely to fail too.
            self._idle.clear()
            # After a sync on the loop the sockets are served first, too.
            if failed or self._on_loop or not self._engine.is_awaited:
                self.wake()
            else:
                self._begin()
        elif self._syncing is None and not self._scheduled:
            self._idle.set()

    @staticmethod
    def _guard(run: Callable[[], None]) -> None:
        """Runs a callback; its exception is logged and does not end the loop (I4)."""
        try:
            run()
        except StoreError as error:
            _log.warning("the store is not back: reason=%s", error)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("a fault after a commit")

    def _report(self, error: Exception) -> None:
        self._failures += 1
        self._failure = str(error) if isinstance(error, StoreError) else type(error).__name__
        if isinstance(error, StoreError):
            _log.warning("commit failed: reason=%s", error)
        else:
            _log.error("commit failed by a fault", exc_info=error)


class _Syncer:
    """The thread that waits for the disk; it starts with the first sync.

    A queue and a call into the loop instead of an executor: its futures took a tenth of the processor time of a message that
    arrives alone.

    Args:
        sync: waits for the disk, with the GIL released; returns the exception or None, and how many seconds it took.
        loop: where `on_end` is called.
        on_end: takes the commit, and the result of `sync`.
    """

    def __init__(
        self,
        sync: Callable[[], tuple[BaseException | None, float]],
        loop: asyncio.AbstractEventLoop,
        on_end: Callable[[Commit, BaseException | None, float], None],
    ) -> None:
        self._sync = sync
        self._loop = loop
        self._on_end = on_end
        self._commits: SimpleQueue[Commit | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, commit: Commit) -> None:
        """Sync for a commit.

        Raises:
            RuntimeError: no thread can be started.
        """
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="isthmus-sync", daemon=True)
            thread.start()
            self._thread = thread
        self._commits.put(commit)

    def close(self) -> None:
        """Ends the thread; no sync may be running."""
        if self._thread is not None:
            self._commits.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (commit := self._commits.get()) is not None:
            error, seconds = self._sync()
            try:
                self._loop.call_soon_threadsafe(self._on_end, commit, error, seconds)
            except RuntimeError:  # the loop is closed: there is no one to notify
                return
            # Objects that the callbacks reference must not stay here until the next commit.
            del commit
