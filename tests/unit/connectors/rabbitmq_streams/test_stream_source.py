"""isthmus.connectors.rabbitmq_streams.source: the source with a broker in memory."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from harness.bridge.rabbitmq_stream_broker import CLOCKS, Clock, Reader, Stream, record
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Arrived, Drained, Exhausted, SourceLost, SourceOpened
from isthmus.connectors.amqp import copy_limit
from isthmus.connectors.checkpoint.checkpoint import Checkpoint, CheckpointError
from isthmus.connectors.checkpoint.thread import Loaded
from isthmus.connectors.rabbitmq.port.end import STEP_SECONDS
from isthmus.connectors.rabbitmq.port.stream import EMPTY_SECONDS
from isthmus.connectors.rabbitmq.protocol.connection import Content
from isthmus.connectors.rabbitmq.protocol.error import ClosedByBrokerError
from isthmus.connectors.rabbitmq.protocol.wire import M
from isthmus.connectors.rabbitmq_streams import waiting
from isthmus.connectors.rabbitmq_streams.record import digest_of
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS
from isthmus.errors import ConnectionLostError


def positions(events: list[Any]) -> list[int]:
    return [position for each in events if isinstance(each, Arrived) for position in each.positions]


def lost(events: list[Any]) -> SourceLost:
    [found] = [each for each in events if isinstance(each, SourceLost)]
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for name in CLOCKS:
        monkeypatch.setattr(name, made)
    return made


@pytest.fixture
def stream() -> Stream:
    made = Stream()
    made.add(0, 30)
    return made


def opened(reader: Reader, credit: int = 1000) -> list[int]:
    """Opens it; the positions that come."""
    reported = reader.open()
    assert SourceOpened() in reported, reported
    reader.source.grant(credit)
    reader.events = reader.run()
    return positions(reader.events)


def test_nothing_is_given_beyond_the_credit(stream: Stream, clock: Clock) -> None:
    """I1."""
    reader = Reader(stream, clock)
    assert opened(reader, 7) == list(range(7))
    reader.source.grant(5)
    assert positions(reader.run()) == list(range(7, 12))


def test_a_checkpoint_follows_what_is_settled(stream: Stream, clock: Clock) -> None:
    """I2."""
    reader = Reader(stream, clock)
    opened(reader)
    reader.source.settle(0, 3)
    reader.source.settle(6, 9)
    clock.now += 1
    reader.run()
    assert reader.thread.kept == {0: Checkpoint(3, digest_of(record(3)))}
    other = Reader(stream, clock, reader.thread)
    assert opened(other)[:3] == [4, 5, 6]


def test_a_connection_that_was_lost_continues_behind_what_was_given(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock)
    assert opened(reader, 12) == list(range(12))
    assert not lost(reader.lose()).is_fatal
    stream.add(30, 33)
    assert opened(reader) == list(range(12, 33))
    reader.source.settle(0, 32)
    reader.source.close()
    assert reader.thread.kept[0].sequence == 32


def test_only_what_was_present_is_given(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock, only_present=True)
    assert SourceOpened() in reader.open()
    stream.add(30, 40)
    reader.source.grant(1000)
    reported = reader.run()
    assert positions(reported) == list(range(30))
    assert Exhausted() in reported


def test_the_end_waits_for_the_copies_of_messages_that_are_set_aside(stream: Stream, clock: Clock) -> None:
    """The owner closes the source at the end. Where the copy is refused then, a run ended in good order, and the message was not set aside."""
    reader = Reader(stream, clock, only_present=True, dead_letter_topic="aside")
    assert opened(reader) == list(range(30))
    assert Exhausted() not in reader.events
    reader.source.settle(1, 29)
    reader.source.settle(0, 0, Disposition("dead-letter", "Bad", "it is"))
    assert Exhausted() not in reader.run()
    reader.confirm()
    assert Exhausted() in reader.run()


def test_a_drain_is_answered(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock)
    opened(reader, 2)
    reader.source.drain()
    assert Drained() in reader.run()


def test_what_is_given_back_comes_again_in_order(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock)
    opened(reader, 20)
    reader.source.settle(0, 4)
    reader.source.release(7, 9)
    reader.source.grant(1000)
    assert positions(reader.run()) == [7, 8, 9, *range(20, 30)]


def test_a_broker_that_does_not_answer_the_end_of_the_channel_is_not_waited_for_without_end(
    stream: Stream, clock: Clock
) -> None:
    """What is given back is read over a new channel, while the source is open."""
    reader = Reader(stream, clock)
    opened(reader, 20)
    stream.is_silent = True
    reader.source.release(7, 9)
    reader.run()
    assert reader.source.deadline(clock.now) <= clock.now + STEP_SECONDS
    clock.now += STEP_SECONDS
    reported = lost(reader.run())
    assert not reported.is_fatal
    assert "'orders': waited 30 s" in reported.text
    stream.is_silent = False
    assert opened(reader) == [7, 8, 9, *range(20, 30)]


def test_a_retention_that_removes_more_each_time_does_not_keep_the_source_from_opening(
    stream: Stream, clock: Clock
) -> None:
    """`continuity`, I1."""
    first = Reader(stream, clock)
    opened(first, 5)
    first.source.settle(0, 4)
    first.source.close()
    reader = Reader(stream, clock, first.thread)
    stream.add(30, 70)
    stream.remove(0, 20)
    assert "offsets 5 to 19 were removed" in lost(reader.open()).text
    stream.remove(20, 30)
    assert opened(reader, 3) == [30, 31, 32]
    reported = lost(reader.events)
    assert "offsets 20 to 29 were removed" in reported.text
    assert not reported.is_fatal
    stream.remove(30, 50)
    assert opened(reader, 100) == list(range(33, 70)), "what was read before is not lost"


def test_a_loss_is_reported_though_the_source_is_lost_for_another_reason_at_the_same_time(
    stream: Stream, clock: Clock
) -> None:
    """`continuity`, I1."""
    first = Reader(stream, clock)
    opened(first, 5)
    first.source.settle(0, 4)
    first.source.close()
    reader = Reader(stream, clock, first.thread)
    stream.add(30, 70)
    stream.remove(0, 20)
    assert "offsets 5 to 19 were removed" in lost(reader.open()).text
    stream.remove(20, 30)
    assert SourceOpened() in reader.open()
    reader.source.grant(3)
    reader.source.fail(ConnectionLostError("gone"))
    reported = reader.run()
    assert positions(reported) == [30, 31, 32]
    assert lost(reported).text == "gone"
    assert opened(reader, 3) == [33, 34, 35]
    assert "offsets 20 to 29 were removed" in lost(reader.events).text


def test_a_loss_that_was_not_reported_yet_is_logged_at_the_end(
    stream: Stream, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """`continuity`, I1."""
    first = Reader(stream, clock)
    opened(first, 5)
    first.source.settle(0, 4)
    first.source.close()
    reader = Reader(stream, clock, first.thread)
    stream.add(30, 70)
    stream.remove(0, 20)
    assert "offsets 5 to 19 were removed" in lost(reader.open()).text
    stream.remove(20, 30)
    assert opened(reader, 0) == []
    reader.source.close()
    assert "offsets 20 to 29 were removed" in caplog.text


def test_a_gap_is_looked_at_again_where_the_connection_is_lost_meanwhile(stream: Stream, clock: Clock) -> None:
    """`continuity`, I1."""
    reader = Reader(stream, clock)
    opened(reader)
    stream.add(50, 60)
    stream.remove(0, 30)
    reader.link.serve()
    reported = reader.source.poll(clock.now)
    assert positions(list(reported)) == list(range(50, 60))
    reader.source.fail(ConnectionLostError("gone"))  # before the new channel reports anything
    assert lost(reader.run()).text == "gone"
    assert "offsets 30 to 49 were removed" in lost(reader.open()).text
    assert opened(reader) == []


def test_a_loss_is_reported_though_the_broker_has_notes_of_its_own_before(stream: Stream, clock: Clock) -> None:
    """`continuity`, I3."""
    reader = Reader(stream, clock)
    opened(reader)
    stream.add(31, 34)
    stream.add(50, 60)
    reader.link.push()
    stream.remove(0, 34)
    reported = lost(reader.run())
    assert "offsets 30 to 30, 34 to 49 were removed" in reported.text, (
        "whether the first is a note cannot be told any more"
    )


def test_a_stream_that_was_made_again_before_there_was_a_checkpoint_is_not_read(stream: Stream, clock: Clock) -> None:
    """`continuity`, I2."""
    reader = Reader(stream, clock)
    assert opened(reader, 12) == list(range(12))
    stream.messages.clear()
    stream.add(0, 30, body=b"another one")
    assert not lost(reader.lose()).is_fatal
    reported = lost(reader.open())
    assert reported.is_fatal
    assert "the message at offset 29 differs from" in reported.text


def test_a_copy_that_is_set_aside_is_confirmed_though_much_waits_here(
    stream: Stream, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is read from a connection while much waits; a confirm would be in it."""
    monkeypatch.setattr(waiting, "KEPT_BYTES", 100)
    stream.add(30, 300, body=b"x" * 50)
    reader = Reader(stream, clock, dead_letter_topic="aside")
    opened(reader, 2)
    assert reader.link.is_paused
    reader.source.settle(0, 1, Disposition("dead-letter", "Bad", "it is"))
    reader.run()
    reader.confirm()
    clock.now += 1
    reader.run()
    clock.now += 1
    reader.run()
    assert reader.thread.kept[0].sequence == 1


def test_an_empty_stream_is_read_from_its_first_message(clock: Clock) -> None:
    stream = Stream()
    reader = Reader(stream, clock, start="latest")
    assert SourceOpened() not in reader.open()
    clock.now += EMPTY_SECONDS
    assert SourceOpened() in reader.run()
    reader.source.grant(100)
    stream.add(0, 3)
    assert positions(reader.run()) == [0, 1, 2]


def test_the_place_where_it_begins_is_kept_before_it_is_open_and_stays_though_that_fails_at_first(
    stream: Stream, clock: Clock
) -> None:
    """What came in between would be skipped by a later reader, which has no checkpoint and begins at the end."""
    end = max(stream.messages)
    reader = Reader(stream, clock, start="latest")
    reader.thread.error = CheckpointError("the disk is full")
    reported = reader.open()
    assert SourceOpened() not in reported
    assert "the disk is full" in lost(reported).text
    stream.add(end + 1, end + 4)
    reader.thread.error = None
    reported = reader.open()
    assert SourceOpened() in reported
    assert reader.thread.kept[0].sequence == end
    reader.source.grant(100)
    assert positions(reader.run()) == [end + 1, end + 2, end + 3]


def test_a_store_that_does_not_answer_keeps_it_from_being_open_for_so_long(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock, start="latest")
    taken = reader.thread.take
    reader.thread.take = lambda: [each for each in taken() if isinstance(each, Loaded)]  # type: ignore[method-assign]
    assert SourceOpened() not in reader.open()
    clock.now = reader.source.deadline(clock.now)
    assert "waited 30 s for the first checkpoint" in lost(reader.run()).text


def test_a_channel_that_was_made_again_is_waited_for_no_longer(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock)
    opened(reader, 10)
    reader.source.release(5, 9)
    reader.source.grant(5)
    assert positions(reader.run()) == [5, 6, 7, 8, 9]
    clock.now += STEP_SECONDS + 1
    assert not [each for each in reader.run() if isinstance(each, SourceLost)]


def test_the_place_where_it_begins_is_kept_at_the_end_where_it_was_not_before(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock, start="latest")
    reader.thread.error = CheckpointError("the disk is full")
    reader.open()
    reader.thread.error = None
    reader.source.close()
    assert reader.thread.kept[0].sequence == max(stream.messages)


def test_a_store_that_takes_nothing_ends_the_connection_and_keeps_what_is_settled(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock)
    opened(reader, 10)
    reader.source.settle(0, 4)
    reader.thread.error = CheckpointError("the disk is full")
    clock.now += 1
    assert "the disk is full" in lost(reader.run()).text
    reader.thread.error = None
    assert opened(reader, 5) == list(range(10, 15))
    clock.now += 1
    reader.run()
    assert reader.thread.kept[0].sequence == 4


def test_what_came_before_the_connection_was_lost_is_given(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock)
    assert opened(reader) == list(range(30))
    stream.add(30, 34)
    reader.link.serve()
    reader.source.on_closed(ClosedByBrokerError("", place="h", reply_code=541, reply_text="INTERNAL_ERROR"))
    reported = reader.run()
    assert positions(reported) == [30, 31, 32, 33]
    assert "compressed sub-entry batch" in lost(reported).text
    assert not lost(reported).is_fatal


def test_reading_stops_while_many_copies_are_unconfirmed(
    stream: Stream, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has settled them, and grants credit: the stream would be read to its end, and each copy kept here."""
    monkeypatch.setattr(copy_limit, "MOST_COPIES", 5)
    reader = Reader(stream, clock, dead_letter_topic="aside")
    opened(reader, 5)
    reader.source.settle(0, 4, Disposition("dead-letter", "Bad", "it is"))
    reader.source.grant(100)
    assert positions(reader.run()) == []
    reader.confirm()
    assert positions(reader.run()) == list(range(5, 30))


def test_a_stream_is_opened_again_where_no_copy_is_confirmed(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock, dead_letter_topic="aside")
    opened(reader)
    reader.source.settle(0, 28)
    reader.source.settle(29, 29, Disposition("dead-letter", "Bad", "it is"))
    reader.run()
    clock.now += OUTCOME_SECONDS - 1
    assert not any(isinstance(each, SourceLost) for each in reader.run())
    assert reader.source.deadline(clock.now) <= clock.now + 1
    clock.now += 1
    reported = lost(reader.run())
    assert "no confirm of dead letters" in reported.text
    assert not reported.is_fatal
    assert opened(reader) == [29]


def test_the_end_waits_for_the_copies_of_what_was_set_aside(stream: Stream, clock: Clock) -> None:
    """Each run would set the last message aside again."""
    reader = Reader(stream, clock, dead_letter_topic="aside")
    opened(reader)
    reader.source.settle(0, 28)
    reader.source.settle(29, 29, Disposition("dead-letter", "Bad", "it is"))
    reader.source.close()
    assert not reader.source.has_left
    assert reader.left == [reader.link]
    reader.serve()
    reader.confirm()
    reader.serve()
    assert reader.source.has_left
    assert reader.thread.kept[0].sequence == 29


@pytest.mark.parametrize("how", ["lost", "refused", "silent"])
def test_an_end_that_gets_no_confirm_keeps_what_was_settled(stream: Stream, clock: Clock, how: str) -> None:
    reader = Reader(stream, clock, dead_letter_topic="aside")
    opened(reader)
    reader.source.settle(0, 28)
    reader.source.settle(29, 29, Disposition("dead-letter", "Bad", "it is"))
    reader.source.close()
    reader.serve()
    if how == "lost":
        reader.source.on_closed(ConnectionLostError("gone"))
    elif how == "refused":
        assert reader.dead is not None
        reader.dead.answers.append((M.BASIC_NACK, struct.pack(">QB", 1, 0)))
        reader.serve()
    else:
        [owing] = reader.owing
        owing.finish()  # the pool does so when the connection's time is over
    assert reader.source.has_left
    assert reader.thread.kept[0].sequence == 28


def test_a_gap_in_what_is_read_again_takes_nothing_with_it(stream: Stream, clock: Clock) -> None:
    reader = Reader(stream, clock)
    opened(reader, 30)
    reader.source.settle(0, 4)
    reader.source.release(5, 20)
    stream.remove(10, 13)  # a broker that has them no more in one of its copies
    reader.source.grant(1000)
    reported = []
    for _ in range(300):  # each message in a poll of its own
        reader.link.push()
        if reader.link.answers:
            channel, which, arguments = reader.link.answers.popleft()
            on = reader.source.on_content if isinstance(arguments, Content) else reader.source.on_method
            on(channel, which, arguments)
        reported += reader.source.poll(clock.now)
    assert positions(reported) == [*range(5, 10), *range(13, 21)]
