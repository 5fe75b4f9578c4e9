"""isthmus.connectors.rabbitmq_streams.loss: which losses are reported, and when."""

from __future__ import annotations

from isthmus.connectors.rabbitmq_streams.loss import Losses


def test_i1_a_range_is_reported_once() -> None:
    losses = Losses("orders")
    assert "offsets 5 to 9 were removed" in str(losses.found([(5, 10)]))
    assert not losses.is_news(5, 10)
    assert losses.found([(5, 10)]) is None
    assert losses.delivered() is None
    assert losses.found([(10, 10)]) is None
    assert "offsets 10 to 19 were removed" in str(losses.found([(5, 20)]))


def test_i1_ranges_that_overlap_are_reported_once() -> None:
    losses = Losses("orders")
    assert "offsets 5 to 9, 20 to 24 were removed" in str(losses.found([(20, 25), (5, 10)]))
    losses.delivered()
    assert "offsets 3 to 4, 10 to 19, 25 to 29 were removed" in str(losses.found([(3, 30)]))
    assert not losses.is_news(3, 30)


def test_i2_the_next_loss_is_reported_once_messages_were_given() -> None:
    losses = Losses("orders")
    assert losses.found([(5, 10)]) is not None
    assert losses.is_news(5, 20)
    assert losses.found([(5, 20)]) is None
    assert losses.found([(5, 30)]) is None
    assert "offsets 10 to 29 were removed" in str(losses.delivered())
    assert losses.delivered() is None
