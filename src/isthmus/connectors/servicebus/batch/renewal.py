"""The renewal of a batch's locks while Spark writes it.

What it is: a thread at the driver that renews the locks of every batch that was received and is not settled yet, however
long its sink or the query's trigger takes. What it is not: needed for safety; a message whose lock is lost is delivered again.

Invariants:
    I1. A lost lock does not prevent the renewal of the other messages of its batch.
    I2. Locks are renewed only while the driver runs: messages of an ended query are available once their locks have expired.
"""

from __future__ import annotations

import contextlib
import threading
import time

from isthmus.connectors.servicebus.batch.node import Node
from isthmus.connectors.servicebus.batch.store import BatchStore
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.spark.disposition import TOKEN_CHUNK
from isthmus.errors import IsthmusError

__all__ = ["BatchRenewal"]

QUERY_SECONDS = 1.0
# A batch is received within a third of its locks' time, and renewed after another third.
LOCK_SHARE = 3.0


class BatchRenewal:
    """The renewal of one query.

    Args:
        options: the read's options.
        store: the query's batches.
    """

    def __init__(self, options: SourceOptions, store: BatchStore) -> None:
        self._store = store
        self._node = Node(options, "isthmus-renew")
        self._ended = threading.Event()
        self._due: dict[tuple[int, int], float] = {}
        self._known: set[tuple[int, int]] = set(store.listed("index"))  # of an earlier run: renewed at once
        self._thread = threading.Thread(target=self._run, name="batch-renewal", daemon=True)

    def start(self) -> BatchRenewal:
        """Starts the thread."""
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._ended.wait(QUERY_SECONDS):
            with contextlib.suppress(IsthmusError, OSError):
                self.renew_due(time.monotonic())

    def renew_due(self, now: float) -> None:
        """Renews the locks that are due."""
        listed = self._store.listed("index")
        self._due = {each: at for each, at in self._due.items() if each in listed}
        for each in listed:
            if each in self._due and now < self._due[each]:
                continue
            index = self._store.index(*each)
            if index is None or not index.count:
                continue
            if each in self._due or each in self._known:
                tokens = index.token_list()
                for start in range(0, len(tokens), TOKEN_CHUNK):
                    self._renew(tokens[start : start + TOKEN_CHUNK])
            self._due[each] = now + index.lock_ms / 1000 / LOCK_SHARE

    def _renew(self, tokens: list[bytes]) -> None:
        # The settlement detects lost locks.
        self._node.call(lambda management: management.renew_all(tokens))

    def stop(self) -> None:
        """Ends the thread; waits for a request in flight."""
        self._ended.set()
        self._thread.join(5.0)
        self._node.close()
