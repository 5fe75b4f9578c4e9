"""isthmus.connectors.eventhubs.partition.reading and .flight."""

from __future__ import annotations

import pytest

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.bridge.delivery_event import Outcome
from isthmus.bridge.port import PARTITION_SHIFT
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.eventhubs.flight import Flight
from isthmus.connectors.eventhubs.mapping import EventReader
from isthmus.connectors.eventhubs.partition.reading import MOST_GAPS, Reading
from isthmus.entities.hub.event import EventReader as Broker
from isthmus.entities.hub.event import write_events


def events(first: int, stop: int) -> list[bytes]:
    plain = [section.encode_message(b"x")]
    return [write_events(Broker().read(plain), number, number * 10, 1)[0] for number in range(first, stop)]


def made(*, only_present: bool = False, keeps: bool = False) -> Reading:
    reading = Reading(EventReader("hub"), only_present=only_present, keeps=keeps, seconds=1.0)
    for partition in (0, 1):
        reading.assign(partition)
    reading.queue.credit = 100
    return reading


def taken(reading: Reading) -> list[tuple[int, int]]:
    mask = (1 << PARTITION_SHIFT) - 1
    return [(each >> PARTITION_SHIFT, each & mask) for batch in reading.take() for each in batch.positions]


def test_a_checkpoint_stays_below_what_is_outstanding() -> None:
    """I1."""
    reading = made()
    reading.put(0, events(5, 9))
    assert taken(reading) == [(0, 5), (0, 6), (0, 7), (0, 8)]
    reading.settle(6, 8, 10.0)
    assert reading.begin_commit(11.5) == {}  # nothing is settled up to the first
    reading.settle(5, 5, 12.0)
    written = reading.begin_commit(13.5)
    assert written == {0: Checkpoint(8, "80")}
    assert reading.begin_commit(99.0) == {}  # no answer yet
    reading.written(written, failed=True, now=100.0)
    assert reading.unconfirmed() == written
    written = reading.begin_commit(101.5)
    reading.written(written, failed=False, now=102.0)
    assert reading.unconfirmed() == {}


def test_the_answer_to_another_write_says_nothing_of_a_commit() -> None:
    """An opening writes where a partition begins, too; a commit that fails then is made again."""
    reading = made()
    reading.put(0, events(0, 2))
    taken(reading)
    reading.settle(0, 1, 1.0)
    written = reading.begin_commit(3.0)
    reading.written({1: Checkpoint(7, "70")}, failed=False, now=3.1)
    assert reading.unconfirmed() == written
    reading.written(written, failed=True, now=3.2)
    assert reading.begin_commit(9.0) == written


def test_what_is_given_back_is_read_again_in_order() -> None:
    """I2."""
    reading = made()
    reading.put(0, events(0, 6))
    reading.queue.credit = 4
    assert len(taken(reading)) == 4
    reading.settle(1, 1, 1.0)
    reading.release(2, 2)
    assert reading.rewind == {0}
    assert reading.next_of(0) == 2
    reading.put(0, events(4, 6))  # of the link before
    reading.rewind.clear()
    reading.put(0, events(2, 8))
    reading.queue.credit = 100
    assert taken(reading) == [(0, 2), (0, 4), (0, 5), (0, 6), (0, 7)]
    assert reading.begin_commit(9.0) == {}  # 0 is outstanding


def test_only_what_was_there_is_given() -> None:
    """I3."""
    reading = made(only_present=True)
    assert reading.present is not None
    reading.present.ends = {0: 3, 1: 0}
    reading.put(0, events(0, 5))
    assert not reading.is_over()
    assert taken(reading) == [(0, 0), (0, 1), (0, 2)]
    reading.present.reached(1, 0)
    assert reading.is_over()
    assert not reading.is_over()  # it is reported once


def test_released_events_are_delivered_again_before_the_end() -> None:
    """Those that were untaken are read again with them: the run ended without both."""
    reading = made(only_present=True)
    assert reading.present is not None
    reading.present.ends = {0: 3, 1: 0}
    reading.present.reached(1, 0)
    reading.queue.credit = 1
    reading.put(0, events(0, 3))
    assert taken(reading) == [(0, 0)]
    reading.release(0, 0)
    assert not reading.is_over()
    assert reading.next_of(0) == 0
    reading.rewind.clear()
    reading.queue.credit = 100
    reading.put(0, events(0, 3))
    assert not reading.is_over()
    assert taken(reading) == [(0, 0), (0, 1), (0, 2)]
    assert reading.is_over()


def test_sequence_numbers_that_begin_again_are_noticed() -> None:
    """I4."""
    reading = made()
    reading.put(0, events(10, 12))
    reading.put(0, events(0, 3))
    assert reading.begun_again == {0: 0}
    assert taken(reading) == [(0, 10), (0, 11)]
    reading.assign(0, begins_again=True)
    assert reading.outstanding == 0
    reading.put(0, events(0, 1))
    assert taken(reading) == [(0, 0)]
    reading.settle(0, 0, 1.0)
    assert reading.begin_commit(9.0) == {0: Checkpoint(0, "0", begins_again=True)}


def test_holes_are_noted() -> None:
    reading = made()
    reading.put(0, events(0, 2))
    reading.put(0, events(7, 8))
    assert reading.gaps == {0: [(2, 7)]}
    reading.put(0, events(9, 10))
    assert reading.gaps == {0: [(2, 7), (8, 9)]}


def test_a_partition_full_of_holes_notes_a_bounded_number() -> None:
    reading = made()
    for number in range(0, 1_000, 2):
        reading.put(0, events(number, number + 1))
    assert len(reading.gaps[0]) == MOST_GAPS
    assert reading.gaps[0][0] == (1, 2)


def test_what_was_given_back_and_does_not_come_again_is_a_gap() -> None:
    reading = made()
    reading.put(0, events(0, 8))
    assert len(taken(reading)) == 8
    reading.settle(0, 1, 1.0)
    reading.settle(5, 5, 1.0)
    reading.release(2, 4)
    reading.release(6, 6)
    assert reading.next_of(0) == 2
    assert reading.missing_before(0, 20) == [(2, 5), (6, 7), (8, 20)]
    reading.rewind.clear()
    reading.put(0, events(2, 3))
    reading.put(0, events(12, 14))
    assert reading.gaps == {0: [(3, 5), (6, 7), (8, 12)]}
    assert taken(reading) == [(0, 2), (0, 12), (0, 13)]


def test_a_checkpoint_continues_where_what_delayed_it_does_not_come_again() -> None:
    reading = made()
    reading.put(0, events(0, 8))
    assert len(taken(reading)) == 8
    reading.release(2, 4)
    for first, last in ((0, 1), (5, 7)):
        reading.settle(first, last, 1.0)
    written = reading.begin_commit(9.0)
    assert written == {0: Checkpoint(1, "10")}
    reading.written(written, failed=False, now=9.0)
    reading.next_of(0)
    reading.rewind.clear()
    reading.put(0, events(6, 8))  # the retention has removed what is before
    assert reading.commit_due <= 9.0
    assert reading.begin_commit(9.0) == {0: Checkpoint(7, "70")}


def test_messages_are_kept_until_they_are_settled() -> None:
    reading = made(keeps=True)
    reading.put(1, events(0, 3))
    first = 1 << PARTITION_SHIFT
    taken(reading)
    assert reading.kept is not None
    assert list(reading.kept) == [first, first + 1, first + 2]
    reading.settle(first, first + 1, 1.0)
    assert list(reading.kept) == [first + 2]
    reading.release(0, 1 << 62)
    assert not reading.kept


def test_links_share_the_credit() -> None:
    reading = made()
    assert reading.share(4) == 25
    reading.queue.credit = 1
    assert reading.share(4) == 1
    reading.queue.credit = 0
    assert reading.share(4) == 0


def test_a_delivery_in_parts_is_answered_once() -> None:
    """isthmus.connectors.eventhubs.flight, I1."""
    flight, refusal = Flight(), Refusal(RefusalKind.BLOCKED, "c", "busy")
    assert [flight.begin(1), flight.begin(3), flight.begin(1), flight.begin(1)] == [0, 1, 2, 3]
    flight.answered(1, None, (0, 3))
    flight.answered(0)
    flight.answered(1, refusal, (1,))
    assert flight.take() == [Outcome(0, 0)]
    flight.answered(3)
    flight.answered(2)
    flight.answered(1, None, (2,))
    assert flight.take() == [Outcome(1, 1, refusal, (0, 2, 3)), Outcome(2, 3)]
    assert flight.outstanding == 0


def test_what_a_lost_connection_has_stored_of_a_delivery_is_reported_i2() -> None:
    """isthmus.connectors.eventhubs.flight, I2: sent again it would be there twice."""
    flight, lost = Flight(), Refusal(RefusalKind.UNKNOWN, "c", "lost")
    assert [flight.begin(2), flight.begin(2), flight.begin(1)] == [0, 1, 2]
    flight.answered(0, None, (1,))
    flight.lost(lost)
    assert flight.take() == [Outcome(0, 0, lost, (1,))]
    assert flight.outstanding == 2


def test_the_first_event_shows_that_a_partition_was_made_again() -> None:
    """I4: the checkpoint's offset leads into another partition, which has more events than the one before had."""
    reading = made()
    reading.assign(2, first=500)
    reading.put(2, events(37, 39))
    assert taken(reading) == []
    assert reading.begun_again == {2: 37}
    reading.forget([2])
    reading.assign(2, begins_again=True)
    reading.put(2, events(0, 2))
    assert taken(reading) == [(2, 0), (2, 1)]


def test_what_is_missing_before_the_first_event_is_a_gap() -> None:
    reading = made()
    reading.assign(2, first=5)
    reading.put(2, events(8, 9))
    assert reading.gaps == {2: [(5, 8)]}
    assert reading.unconfirmed() == {}
    assert taken(reading) == [(2, 8)]
    reading.settle(2 << PARTITION_SHIFT | 8, 2 << PARTITION_SHIFT | 8, 1.0)
    assert reading.unconfirmed() == {2: Checkpoint(8, "80")}


def test_i5_an_event_that_cannot_be_read_takes_none_with_it() -> None:
    reading = made()
    with pytest.raises(CodecError):
        reading.put(0, [*events(0, 2), b"\0"])
    assert taken(reading) == [(0, 0), (0, 1)]
