"""When a batch grants credit and when it ends, without a connection and without time."""

from __future__ import annotations

from isthmus.connectors.servicebus.batch.collection import FIRST_CREDIT, BatchLimits, Collection

LIMITS = BatchLimits(seconds=1.0, rows=50_000, nbytes=64 << 20, window=16_000, patience_seconds=30.0)
LOCK_SECONDS = 30.0


def started(limits: BatchLimits = LIMITS, *, count: int = 10, size: int = 1000) -> Collection:
    collection = Collection(limits, 100.0)
    collection.arrived(100.0, count, count * size, size, LOCK_SECONDS)
    return collection


def test_credit_is_out_before_the_first_wait_and_little_of_it_i3() -> None:
    collection = Collection(LIMITS, 100.0)
    assert collection.credit(100.0, 0) == FIRST_CREDIT
    assert collection.credit(100.0, FIRST_CREDIT) == 0


def test_credit_grows_when_the_size_is_known_and_is_given_in_large_pieces() -> None:
    collection = started()
    assert collection.credit(100.0, 6) == LIMITS.window
    assert collection.credit(100.0, LIMITS.window - 100) == 0
    assert collection.credit(100.0, LIMITS.window // 2) == LIMITS.window


def test_rows_and_bytes_bound_what_may_come_i1() -> None:
    collection = started(count=49_990)
    assert collection.credit(100.0, 0) == 10
    collection.arrived(100.1, 10, 10, 1, LOCK_SECONDS)
    assert collection.decide(100.1) == "rows"
    assert collection.credit(100.1, 0) == 0
    large = started(count=1, size=20 << 20)
    assert large.credit(100.0, 0) == 2
    large.arrived(100.1, 3, 60 << 20, 20 << 20, LOCK_SECONDS)
    assert large.decide(100.1) == "bytes"


def test_its_time_counts_from_the_first_message() -> None:
    collection = Collection(LIMITS, 100.0)
    assert collection.decide(105.0) == ""
    collection.arrived(105.0, 1, 1, 1, LOCK_SECONDS)
    collection.arrived(105.9, 1, 1, 1, LOCK_SECONDS)
    assert collection.decide(105.99) == ""
    assert collection.due(105.99) == 106.0
    assert collection.decide(106.0) == "time"


def test_it_ends_when_nothing_comes_any_more() -> None:
    collection = started()
    assert collection.decide(100.19) == ""
    assert collection.decide(100.2) == "quiet"


def test_a_short_lock_ends_it_sooner_i2() -> None:
    collection = Collection(BatchLimits(60.0, 10, 10, 10, 30.0), 100.0)
    collection.arrived(100.0, 1, 1, 1, 6.0)
    collection.arrived(101.9, 1, 1, 1, 6.0)
    assert collection.decide(101.95) == ""
    assert collection.decide(102.0) == "time"


def test_it_waits_for_its_first_message_as_long_as_one_waits() -> None:
    collection = Collection(LIMITS, 100.0)
    assert not collection.wants_peek(100.4)
    assert collection.wants_peek(100.5)
    collection.peeked(100.5, True)
    assert not collection.wants_peek(101.4)
    assert collection.decide(101.4) == ""
    collection.peeked(101.5, False)
    assert collection.decide(101.5) == "nothing waits"
    assert Collection(LIMITS, 100.0).decide(130.0) == "time"


def test_behind_a_message_that_another_receiver_has_locked_it_ends_or_tries_again() -> None:
    collection = started()
    collection.blocked(100.1)
    assert collection.decide(100.1) == "blocked"
    empty = Collection(LIMITS, 100.0)
    empty.blocked(100.1)
    assert (empty.decide(100.1), empty.credit(100.1, 0)) == ("", 0)
    assert empty.due(100.1) == 100.5  # a peek
    assert empty.credit(101.1, 0) == FIRST_CREDIT
