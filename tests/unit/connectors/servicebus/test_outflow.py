"""Messages on their way into Spark: which rows go together, and when they are pushed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from isthmus.connectors.servicebus.lease_error import LeaseError
from isthmus.connectors.servicebus.lease_item import Block, Finish, LeaseEnd
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.outflow import Outflow, stream
from isthmus.connectors.servicebus.row import FLUSH_SEQUENCE

GAP = "nothing more is there yet"
TIME = "the time was over"


class Blocks:
    """A lease whose blocks are known beforehand, and when it had none."""

    def __init__(self, *items: Any) -> None:
        self.items = list(items)
        self.blocks = self
        self.flushes: list[tuple[int, int]] = []
        self.finish = 0

    def empty(self) -> bool:
        return not self.items or self.items[0] in (GAP, TIME)

    def take(self, until: float) -> Any:
        item = self.items.pop(0)
        if item == GAP:
            item = self.items.pop(0)
        if item == TIME:
            assert until < math.inf, "nothing was left to push"
            return None
        return item

    def note_flush(self, number: int, rows: int) -> None:
        self.flushes.append((number, rows))

    def note_finish(self, number: int) -> None:
        self.finish = number


def block(first: int, count: int = 1, size: int = 100) -> Block:
    return Block(range(first, first + count), [b"t" * 16] * count, [b"m" * size] * count)


def batches(lease: Blocks, **options: Any) -> list[list[int]]:
    """The sequence numbers of each batch, flush rows as -1."""
    settings = SourceOptions(connection="env:X", entity="q", **options)
    made = stream(settings, lease, Outflow(settings, PADDING_BYTES))  # type: ignore[arg-type]
    return [batch.column("sequence_number").to_pylist() for batch in made]


FLUSH = [FLUSH_SEQUENCE, FLUSH_SEQUENCE]
# Outside a worker of Spark's the last ones have to push what they cannot flush.
LAST = [FLUSH] * 4
END = (GAP, Finish(), LeaseEnd(None))
# So long that what is pushed in a test is not pushed because it waited.
LONG_MS = 3_600_000
PADDING_BYTES = 4096


def test_a_row_that_comes_alone_is_pushed_at_once_in_the_same_batch_i1() -> None:
    lease = Blocks(block(1), *END)
    assert batches(lease, flush_ms=LONG_MS) == [[1, *FLUSH], *LAST]
    assert lease.flushes == [(1, 1), (2, 1)]


def test_rows_that_come_soon_after_a_push_wait_for_the_next_together_i2() -> None:
    lease = Blocks(block(1), GAP, block(2), GAP, block(3, 2), block(9), TIME, *END)
    assert batches(lease, flush_ms=LONG_MS) == [[1, *FLUSH], [2, 3, 4, 9, *FLUSH], *LAST]
    assert lease.flushes == [(1, 1), (2, 5), (3, 5)]


def test_decoded_rows_are_pushed_by_a_batch_of_their_own() -> None:
    lease = Blocks(block(1), GAP, block(2), TIME, *END)
    assert batches(lease, flush_ms=LONG_MS, mode="decoded") == [[1], FLUSH, [2], FLUSH, *LAST]


def test_what_fills_a_batch_goes_at_once_and_is_pushed_in_its_time() -> None:
    lease = Blocks(block(1), GAP, block(2, 300, 1000), TIME, *END)
    assert batches(lease, flush_ms=LONG_MS) == [[1, *FLUSH], list(range(2, 302)), FLUSH, *LAST]
    assert lease.flushes == [(1, 1), (2, 301), (3, 301)]


def test_nothing_is_left_behind_at_the_end() -> None:
    lease = Blocks(block(1), GAP, block(2), *END)
    assert batches(lease, flush_ms=LONG_MS) == [[1, *FLUSH], [2], *LAST]
    assert lease.flushes == [(1, 1), (2, 2)]
    assert lease.finish == 2


def test_what_the_lease_ended_with_is_raised() -> None:
    with pytest.raises(LeaseError, match="gone"):
        batches(Blocks(block(1), LeaseEnd(LeaseError("gone"))))
