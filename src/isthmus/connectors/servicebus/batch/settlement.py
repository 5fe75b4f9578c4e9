"""The settlement of batches that Spark has committed, at the driver.

What it is: completes, by lock token, the messages of batches that Spark has committed; also those that an earlier run
left, which are listed in the batch's files. A message that could not be settled because its lock had expired is noted by sequence
number, and completed when it is delivered again, without becoming a row a second time. What it is not: the decision that a batch
is committed, which is Spark's: its next call names the last one.

Invariants:
    I1. Nothing is settled before Spark has committed the batch.
    I2. Nothing is settled of a batch of which Spark never read all rows; that is an error, raised once.
    I3. Nothing is settled that was received for a batch after its settlement.
    I4. A batch's files are deleted only after each of its messages is settled, or noted as late.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence

import numpy as np

from isthmus.connectors.servicebus.batch.error import BatchReadInPartError
from isthmus.connectors.servicebus.batch.node import Node
from isthmus.connectors.servicebus.batch.store import BatchStore, Index
from isthmus.connectors.servicebus.head import peeked_message
from isthmus.connectors.servicebus.message.sequence import UNREADABLE, enqueued_ms_of
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.spark.disposition import TOKEN_CHUNK
from isthmus.errors import LockLostError
from isthmus.transport import Management

__all__ = ["BatchSettlement"]

# Requests in flight at most: a distant namespace answers each after a round trip.
PIPELINE = 32
LATE_QUERY_SECONDS = 5.0
LATE_PAGE, LATE_PAGES = 100, 4
# The state of a message that is received by its number only.
DEFERRED = 1


class BatchSettlement:
    """The settlement of one query.

    Args:
        options: the read's options.
        store: the query's batches.
    """

    def __init__(self, options: SourceOptions, store: BatchStore) -> None:
        self._path = options.entity.strip("/")
        self._store = store
        self._node = Node(options, "isthmus-commit")
        self._late_query = 0.0

    def settle_through(self, batch: int) -> None:
        """Spark has committed all batches up to `batch`.

        Raises:
            BatchReadInPartError: one of them was not read as a whole; it is not settled.
            IsthmusError: the namespace is unreachable; the same call settles the rest.
        """
        partial: BatchReadInPartError | None = None
        settled = self._store.settled()
        for number, reader in self._store.listed("index"):
            if number > batch:
                break
            index = self._store.index(number, reader)
            if number <= settled:  # received by an attempt that outlived its batch: its rows were dropped
                self._store.guard()
            elif index is not None and index.count and not self._store.was_taken(number, reader):
                partial = partial or BatchReadInPartError(self._path, number, index.count)
                self._store.guard()
            elif index is not None:
                self._settle(index)
            self._store.remove(number, reader)
        for number, reader in self._store.listed("payloads"):
            if (
                number <= batch
            ):  # of a reader that died before its index was written, and that the repeated batch did not have
                self._store.remove(number, reader)
        self._store.set_settled(max(batch, settled))  # Spark's checkpoint may have been set back
        self._forget_late(time.monotonic())
        if partial is not None:
            raise partial

    def _settle(self, index: Index) -> None:
        tokens = index.token_list()
        chunks = [range(at, min(at + TOKEN_CHUNK, len(tokens))) for at in range(0, len(tokens), TOKEN_CHUNK)]
        refused = self._complete(tokens, chunks)
        # One lost lock fails its whole request.
        lost = self._complete(tokens, [range(at, at + 1) for chunk in refused for at in chunk])
        if lost:
            self._store.add_late(index.batch, index.reader, self._late_messages(index, [at.start for at in lost]))
            self._store.guard()

    def _complete(self, tokens: Sequence[bytes], chunks: Sequence[range]) -> list[range]:
        """Completes messages; returns the chunks that were refused because one of their locks is lost."""
        refused: list[range] = []
        for start in range(0, len(chunks), PIPELINE):
            part = chunks[start : start + PIPELINE]

            def settle(management: Management, part: Sequence[range] = part) -> list[range]:
                replies = [management.start_disposition("completed", tokens[each.start : each.stop]) for each in part]
                found = []
                for each, reply in zip(part, replies, strict=True):
                    try:
                        management.finish(reply)
                    except LockLostError:
                        found.append(each)
                return found

            refused += self._node.call(settle)
        return refused

    def _late_messages(self, index: Index, rows: Iterable[int]) -> list[tuple[int, int]]:
        stops = np.cumsum(index.sizes, dtype=np.int64)
        late = []
        with self._store.payloads(index.batch, index.reader) as data:
            for row in rows:
                message = bytes(data[int(stops[row]) - int(index.sizes[row]) : int(stops[row])])
                with contextlib.suppress(*UNREADABLE):
                    late.append((int(index.sequences[row]), enqueued_ms_of(message)))
        return late

    def _forget_late(self, now: float) -> None:
        listed = self._store.listed("late")
        if not listed or now < self._late_query:
            return
        self._late_query = now + LATE_QUERY_SECONDS
        for number, reader in listed:
            if not self._comes_again({sequence for sequence, _ in self._store.late(number, reader)}):
                self._store.remove_late(number, reader)

    def _comes_again(self, sequences: set[int]) -> bool:
        """Whether one of these messages still exists, and will be delivered: a deferred one still exists, and is not delivered.

        Where other messages are among them, and exceed `LATE_PAGES`, that is unknown, and the result is True.
        """
        at, last = min(sequences, default=0), max(sequences, default=-1)
        for _ in range(LATE_PAGES):
            page = self._node.call(lambda management, at=at: management.peek(at, LATE_PAGE))  # type: ignore[misc]
            for found in map(peeked_message, page):
                if found.sequence > last:
                    return False
                if found.sequence in sequences and found.state != DEFERRED:
                    return True
                at = found.sequence + 1
            if not page or at > last:
                return False
        return True

    def close(self) -> None:
        """Closes the connection."""
        self._node.close()
