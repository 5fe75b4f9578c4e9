"""The driver's side of a read, against a fake broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isthmus.amqp import section, types
from isthmus.amqp.performative import Error
from isthmus.amqp.section import Header
from isthmus.amqp.types import Symbol
from isthmus.clock import SystemClock
from isthmus.connectors.servicebus.batch.error import BatchUnreadError
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.spark import offset_planner as planner_module
from isthmus.connectors.servicebus.spark.error import HeldElsewhereError
from isthmus.connectors.servicebus.spark.offset_planner import OffsetPlanner
from isthmus.errors import NotAllowedError
from isthmus.testing.peer import Peer


@pytest.fixture(name="peer")
def _peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    with Peer("q") as peer:
        connection = (
            f"Endpoint=sb://127.0.0.1:{peer.port}/;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        )
        monkeypatch.setenv("PLACE", connection)
        yield peer


def test_a_run_with_an_end_moves_of_each_fragment_what_is_there_at_its_start_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes to a lower fragment later has a lower number than the last one, and there would be no end."""
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q", "ordered": "false"}))
    remaining: dict[int, bytes] = {}

    def put(sequence: int, at_ms: int) -> None:
        annotations = {"x-opt-sequence-number": types.Long(sequence), "x-opt-enqueued-time": types.Timestamp(at_ms)}
        remaining[sequence] = section.encode_message(b"x", annotations=annotations)

    monkeypatch.setattr(
        planner, "_peek", lambda start, count: [remaining[each] for each in sorted(remaining) if each >= start][:count]
    )
    one, two = 1 << 48, 2 << 48
    put(one + 1, 1000)
    put(one + 2, 3000)
    put(two + 1, 2000)
    planner.prepare_available_now()
    put(one + 3, 3001)
    put(two + 2, 3001)
    for sequence in (one + 1, two + 1, one + 2):
        assert planner._query()
        del remaining[sequence]
    assert not planner._query()
    assert (
        planner.batch_through > two + 2
    )  # a batch that ended with the last number would leave what is in other fragments


def test_a_batch_of_an_ordinary_entity_ends_with_the_last_message_of_the_start(peer: Peer) -> None:
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q"}))
    assert planner.batch_through == 0
    for _ in range(3):
        peer.queues["q"].put(section.encode_message(b"x"))
    planner.prepare_available_now()
    assert planner.batch_through == 3
    planner.close()


@pytest.mark.parametrize("ahead_ms", [-60_000, 60_000])
def test_a_message_that_has_expired_only_by_this_machines_clock_begins_a_batch(peer: Peer, ahead_ms: int) -> None:
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q"}))
    planner._clock = SystemClock(ahead_ms)
    peer.queues["q"].put(section.encode_message(b"x", header=Header(ttl_ms=30_000)))
    assert planner._query()
    planner.close()


def test_a_batch_that_moved_nothing_puts_off_the_next_i2(peer: Peer) -> None:
    """Another receiver has locked the message."""
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q", "look_seconds": "0.01"}))
    peer.queues["q"].put(section.encode_message(b"x"))
    assert planner.latest(7) == 8
    assert planner.latest(8) == 9
    assert planner.latest(9) == 9
    planner.close()


def test_a_run_with_an_end_names_the_message_that_others_have_locked(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_module, "HELD_SECONDS", 0.0)
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q"}))
    peer.queues["q"].put(section.encode_message(b"x"))
    planner.prepare_available_now()
    assert planner.latest(7) == 8
    with pytest.raises(HeldElsewhereError, match="'q': message 1 has been locked by another receiver"):
        planner.latest(8)
    planner.close()


def test_a_run_with_an_end_whose_batches_nothing_reads_says_so_i3(peer: Peer) -> None:
    """It waited for five minutes, and named another receiver that was not there."""
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q"}))
    peer.queues["q"].put(section.encode_message(b"x"))
    planner.prepare_available_now()
    assert planner.latest(7) == 8
    for batch in (8, 9):
        assert planner.latest(batch, was_read=False) == batch + 1
        planner._not_before = 0.0
    with pytest.raises(
        BatchUnreadError, match="'q': nothing read the last 3 batches, up to 10; their messages still wait"
    ):
        planner.latest(10, was_read=False)
    planner.close()


def test_a_batch_that_was_read_ends_the_count_of_those_that_were_not_i3(peer: Peer) -> None:
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q"}))
    peer.queues["q"].put(section.encode_message(b"x"))
    planner.prepare_available_now()
    for batch, was_read in enumerate((True, False, False, True, False, False)):
        assert planner.latest(batch, was_read=was_read) == batch + 1
        planner._not_before = 0.0
    planner.close()


def test_an_entity_that_nothing_can_be_received_from_is_told_at_once_i4(peer: Peer) -> None:
    """A query of a topic instead of its subscription ran for ever without a row: a peek found nothing."""
    peer.redirects["q"] = Error(Symbol("amqp:not-allowed"), "'q' is a topic; receive from one of its subscriptions.")
    planner = OffsetPlanner(SourceOptions.read({"connection": "env:PLACE", "entity": "q"}))
    with pytest.raises(NotAllowedError, match="'q' is a topic"):
        planner.latest(0)
    peer.redirects.clear()
    peer.queues["q"].put(section.encode_message(b"x"))
    assert planner.latest(0) == 1
    planner.close()
