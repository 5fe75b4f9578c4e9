"""isthmus.connectors.rabbitmq.port.present: the end of the messages that existed at the first opening."""

from __future__ import annotations

import math

from isthmus.connectors.rabbitmq.port.present import QUIET_SECONDS, Present


def made(messages: int) -> Present:
    present = Present()
    present.channel_begins()
    present.counted(messages, 0.0, is_idle=True)
    return present


def test_as_many_are_given_as_were_there() -> None:
    """I1"""
    present = made(2)
    assert [present.came(tag, 1.0) for tag in range(1, 5)] == [True, True, False, False]
    assert present.leave() == [3, 4]
    assert present.leave() == []
    assert present.is_at_end(1.0, is_waiting=False)
    assert not present.is_at_end(1.0, is_waiting=False)  # it is reported once
    assert present.quiet_at == math.inf


def test_a_lost_connection_changes_nothing_in_the_count() -> None:
    """I1: what came and was not given comes again; what came since is in the queue as well."""
    present = made(2)
    assert present.came(1, 1.0)
    present.gone_back(1)
    present.channel_begins()
    present.counted(7, 2.0, is_idle=True)
    assert [present.came(tag, 3.0) for tag in range(3)] == [True, True, False]


def test_an_empty_queue_is_the_end_though_others_have_taken_what_was_there() -> None:
    """I2"""
    present = made(2)
    assert not present.is_due(QUIET_SECONDS / 2, can_ask=True)
    assert not present.is_due(QUIET_SECONDS, can_ask=False)
    assert present.is_due(2 * QUIET_SECONDS, can_ask=True)
    present.counted(1, 2.0, is_idle=True)
    assert not present.is_over
    assert present.is_due(3.0, can_ask=True)
    present.counted(0, 3.0, is_idle=True)
    assert present.is_at_end(3.0, is_waiting=False)


def test_a_queue_that_was_empty_at_first_is_at_its_end() -> None:
    assert made(0).is_at_end(0.0, is_waiting=False)


def test_the_end_waits_for_what_has_to_come_again() -> None:
    """Otherwise what was settled while the connection was away would stay in the queue."""
    present = made(1)
    assert present.came(1, 1.0)
    assert not present.is_at_end(1.0, is_waiting=True)
    assert present.is_at_end(1.0 + QUIET_SECONDS, is_waiting=True)


def test_what_comes_too_late_puts_the_end_off_no_longer() -> None:
    """I2: a sender may continue for ever."""
    present = made(1)
    assert present.came(1, 1.0)
    assert not present.came(2, 1.4)
    assert present.is_at_end(1.0 + QUIET_SECONDS, is_waiting=True)


def test_a_queue_is_not_empty_while_the_broker_may_hold_messages_for_a_lost_connection_i3() -> None:
    """RabbitMQ counts what is ready; what it has delivered over a silent network is not."""
    present = made(3)
    assert present.came(1, 1.0)
    present.gone_back(1)
    present.channel_begins()
    present.counted(0, 2.0, is_idle=True, kept_until=40.0)
    assert present.is_due(3.0, can_ask=True)
    present.counted(0, 3.0, is_idle=True, kept_until=40.0)
    assert not present.is_over
    assert present.is_due(40.0, can_ask=True)
    present.counted(0, 40.0, is_idle=True, kept_until=40.0)
    assert present.is_at_end(40.0, is_waiting=False)


def test_the_first_count_is_taken_once_the_broker_holds_nothing_for_a_lost_connection_i3() -> None:
    """As when the opening before this one failed with its connection."""
    present = Present()
    present.channel_begins()
    present.counted(0, 1.0, is_idle=True, kept_until=40.0)
    assert not present.is_over
    assert present.due_at <= 40.0
    assert present.came(1, 39.9)
    assert not present.is_due(39.99, can_ask=False)
    assert present.is_due(40.0, can_ask=False)  # though messages continue to come
    assert not present.is_due(41.0, can_ask=True)
    assert present.due_at > 41.0
    present.counted(1, 41.0, is_idle=False, kept_until=40.0)
    assert [present.came(tag, 41.0) for tag in (2, 3)] == [True, False]


def test_while_only_released_messages_are_left_another_one_is_a_later_one_i4() -> None:
    present = Present(most_late=2)
    present.channel_begins()
    present.counted(3, 0.0, is_idle=True)
    assert present.came(1, 1.0)
    present.released(1)
    assert [present.came(tag, 2.0) for tag in (2, 3, 4)] == [True, True, False]
    assert present.came(5, 2.0, "released")
    assert present.is_over
    assert present.leave() == [4]


def test_later_messages_do_not_use_up_the_prefetch_while_a_released_one_returns_i4() -> None:
    """It would never arrive, e.g. where the queue gives it back behind them."""
    present = Present(most_late=1)
    present.channel_begins()
    present.counted(1, 0.0, is_idle=True)
    assert present.came(1, 1.0)
    present.released(1)
    assert [present.came(tag, 2.0) for tag in (2, 3)] == [False, True]
