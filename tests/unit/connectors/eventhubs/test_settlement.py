"""isthmus.connectors.eventhubs.settlement."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.eventhubs.settlement import Settlement
from isthmus.connectors.refused import SETTLE_SECONDS
from isthmus.errors import ConnectionLostError, IsthmusError

ASIDE = Disposition("dead-letter", "Bad", "it is")


class Event(NamedTuple):
    sequence: int
    offset: str
    message: bytes


class Reader:
    def read(self, partition: int, payload: int) -> Event:
        return Event(payload, str(payload), b"m%d" % payload)


class Dead:
    """A hub of dead letters that stores when a test says so."""

    senders = ()
    is_full = False

    def __init__(self) -> None:
        self.added: list[tuple[int, bytes]] = []
        self.stored: list[int] = []
        self.error: IsthmusError | None = None

    def add(self, position: int, payload: bytes, disposition: Disposition) -> None:
        self.added.append((position, payload))

    def serve(self, client: Any) -> list[int]:
        taken, self.stored = self.stored, []
        return taken


def taken(events: int, *, keeps: bool) -> Reading:
    """An account of which the owner has taken so many events."""
    reading = Reading(Reader(), only_present=False, keeps=keeps, seconds=1.0)
    reading.assign(0, first=0)
    reading.queue.credit = events
    reading.put(0, range(events))
    reading.take()
    return reading


def test_i1_what_is_set_aside_is_settled_once_its_copy_is_stored() -> None:
    reading, dead = taken(2, keeps=True), Dead()
    settlement = Settlement(reading, dead, lambda: None)  # type: ignore[arg-type]
    settlement.settle(0, 1, ASIDE)
    assert dead.added == [(0, b"m0"), (1, b"m1")]
    assert settlement.awaits_copies
    dead.stored = [0, 1]
    settlement.serve(None)  # type: ignore[arg-type]
    assert reading.outstanding == 0
    assert not settlement.awaits_copies


def test_a_hub_that_does_not_take_copies_fails_the_source() -> None:
    dead = Dead()
    dead.error = ConnectionLostError("gone")
    settlement = Settlement(taken(1, keeps=True), dead, lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConnectionLostError, match="gone"):
        settlement.serve(None)  # type: ignore[arg-type]


def test_i2_what_is_under_way_is_settled_before_the_source_is_lost() -> None:
    reading = taken(2, keeps=False)
    reading.queue.credit = 5
    settlement = Settlement(reading, None, lambda: None)
    settlement.settle(0, 0, ASIDE)
    assert reading.queue.credit == 0
    now = time.monotonic()
    assert settlement.take_refused(now) == ""
    settlement.settle(1, 1)
    reported = settlement.take_refused(now)
    assert "partition 0, sequence number 0 would have to be set aside (Bad: it is)" in reported
    assert settlement.take_refused(now) == ""


def test_i2_it_is_lost_after_a_while_whatever_is_under_way() -> None:
    settlement = Settlement(taken(2, keeps=False), None, lambda: None)
    settlement.settle(0, 0, Disposition("defer"))
    now = time.monotonic()
    assert settlement.take_refused(now) == ""
    assert settlement.take_refused(now + SETTLE_SECONDS - 0.1) == ""
    assert "'defer', which a log does not support" in settlement.take_refused(now + SETTLE_SECONDS + 0.1)


def test_what_is_abandoned_is_read_again() -> None:
    reading = taken(2, keeps=False)
    Settlement(reading, None, lambda: None).settle(1, 1, Disposition("abandon"))
    assert reading.next_of(0) == 1
    assert reading.rewind == {0}
