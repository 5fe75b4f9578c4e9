"""isthmus.connectors.rabbitmq_streams.continuity."""

from __future__ import annotations

import pytest

from harness.bridge.rabbitmq_stream_broker import OPTIONS, record
from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.rabbitmq_streams.continuity import Continuity
from isthmus.connectors.rabbitmq_streams.opening import StreamMadeAgainError
from isthmus.connectors.rabbitmq_streams.option import read_source
from isthmus.connectors.rabbitmq_streams.record import StreamReader, digest_of
from isthmus.errors import ConnectionLostError


class Source:
    """A source that was read up to a checkpoint, whose consumer is going to begin."""

    def __init__(self, kept: int, last: int, **options: str) -> None:
        reader = StreamReader("orders")
        self.reading = Reading(reader, only_present=False, keeps=False, seconds=1.0)
        self.continuity = Continuity(read_source({**OPTIONS, **options}), self.reading)
        self.first: dict[int, Checkpoint] = {}
        self._last = last
        self._kept = {0: Checkpoint(kept, digest_of(record(kept)))} if kept >= 0 else {}
        self.decide()

    def decide(self) -> None:
        """The consumer of a connection is going to begin."""
        self.continuity.decide((self._last, digest_of(record(self._last))), self._kept, self.first)

    def come(self, *offsets: int) -> list[int]:
        """Records come; the offsets of those that are wanted."""
        wanted = [each for each in offsets if self.continuity.is_wanted(each, record(each))]
        self.reading.put(0, [(each, record(each)) for each in wanted])
        return wanted

    @property
    def asks(self) -> int:
        assert self.continuity.opening is not None
        return self.continuity.opening.ask


def test_what_comes_is_wanted_from_behind_the_checkpoint() -> None:
    source = Source(kept=4, last=9)
    assert source.asks == 4
    assert source.come(4, 5, 6) == [5, 6]


def test_i1_what_was_removed_is_reported_once() -> None:
    source = Source(kept=4, last=20)
    with pytest.raises(ConnectionLostError, match="offsets 5 to 8 were removed"):
        source.come(9)
    source.continuity.reset()
    source.decide()
    assert source.come(9, 10) == [9, 10]


def test_i2_the_first_record_is_compared_with_what_was_done_with() -> None:
    source = Source(kept=4, last=9)
    with pytest.raises(StreamMadeAgainError, match="offset 4 differs from"):
        source.continuity.is_wanted(4, record(4, b"other"))


@pytest.mark.parametrize("released", [(), (5, 6)])
def test_i2_the_last_record_that_was_read_is_compared_too(released: tuple[int, ...]) -> None:
    """A stream that has lost its end after the checkpoint gives the offsets to new messages, which would count as read."""
    source = Source(kept=4, last=9)
    source.reading.queue.credit = 10
    source.come(4, 5, 6, 7)
    source.reading.take()
    for offset in released:
        source.reading.release(offset, offset)
    source.continuity.reset()
    source.decide()
    assert source.come(4, 5, 6) == list(released)
    with pytest.raises(StreamMadeAgainError, match="offset 7 differs from"):
        source.continuity.is_wanted(7, record(7, b"new"))


def test_what_a_lost_connection_had_read_is_not_wanted_again() -> None:
    source = Source(kept=4, last=9)
    source.come(4, 5, 6, 7)
    source.continuity.reset()
    source.decide()
    assert source.come(4, 5, 6, 7, 8) == [8]


def test_i3_a_gap_is_looked_at_once() -> None:
    source = Source(kept=4, last=20)
    source.come(4, 5, 8)
    assert source.continuity.take_gap()
    assert source.asks == 5
    assert not source.continuity.take_gap(), "the look is under way"
    assert source.come(5, 8, 9) == [9], "the message before the gap is there"
    assert not source.continuity.take_gap()


def test_i3_a_gap_whose_previous_message_was_removed_is_lost() -> None:
    source = Source(kept=4, last=20)
    source.come(4, 5, 8)
    assert source.continuity.take_gap()
    with pytest.raises(ConnectionLostError, match="offsets 6 to 7 were removed"):
        source.come(8)
    assert not source.continuity.take_gap()


def test_what_was_given_back_is_read_again() -> None:
    source = Source(kept=4, last=9)
    source.reading.queue.credit = 10
    source.come(4, 5, 6, 7)
    source.reading.take()
    assert not source.continuity.take_return()
    source.reading.release(6, 6)
    assert source.continuity.take_return()
    assert source.asks == 6
    assert not source.continuity.take_return()


def test_where_a_source_begins_without_checkpoint_is_kept_first() -> None:
    source = Source(kept=-1, last=9, start="latest")
    assert source.first == {0: Checkpoint(9, digest_of(record(9)))}
    assert source.come(9, 10) == [10]


def test_another_connection_decides_again() -> None:
    source = Source(kept=4, last=9)
    source.continuity.reset()
    assert source.continuity.opening is None
    assert not source.continuity.is_wanted(5, record(5))
