"""isthmus.connectors.rabbitmq_streams.opening: the start of reading, and the detection of a stream that was created again."""

from __future__ import annotations

import pickle

import pytest

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.rabbitmq.protocol.error import ClosedByBrokerError
from isthmus.connectors.rabbitmq_streams.opening import Opening, StreamMadeAgainError, explained, opening
from isthmus.errors import ConnectionLostError


def opened(last: int, kept: Checkpoint | None = None, reached: int = -1, start: str = "earliest") -> Opening:
    return opening("orders", "/checkpoints", last, "digest" if last >= 0 else "", kept, reached, start)


def test_without_a_checkpoint_it_begins_where_start_says() -> None:
    assert opened(9) == Opening(0, 0)
    assert opened(9, start="latest") == Opening(9, 10, "digest", is_known=True, first=Checkpoint(9, "digest"))


def test_with_a_checkpoint_the_message_that_was_done_with_is_read_again() -> None:
    assert opened(9, Checkpoint(4, "abc")) == Opening(4, 5, "abc", is_known=True)
    assert opened(9, Checkpoint(4, "abc"), reached=8) == Opening(4, 8, "abc", is_known=True)
    assert opened(9, Checkpoint(-1)) == Opening(0, 0)


def test_what_is_read_again_before_the_checkpoint_has_no_digest() -> None:
    assert opened(9, Checkpoint(4, "abc"), reached=2) == Opening(2, 2, is_known=True)


@pytest.mark.parametrize(("kept", "reached"), [(Checkpoint(10, "abc"), -1), (Checkpoint(4, "abc"), 12), (None, 12)])
def test_a_stream_that_ends_before_what_was_read_is_another_one(kept: Checkpoint | None, reached: int) -> None:
    """I1."""
    with pytest.raises(
        StreamMadeAgainError, match=r"its last offset is 9.*remove the route's folder in /checkpoints"
    ) as reported:
        opened(9, kept, reached)
    assert not reported.value.retryable
    assert str(pickle.loads(pickle.dumps(reported.value))) == str(reported.value)


@pytest.mark.parametrize(("kept", "reached"), [(Checkpoint(4, "abc"), -1), (None, 3)])
def test_a_stream_of_which_nothing_comes_is_not_known_to_be_empty(kept: Checkpoint | None, reached: int) -> None:
    """I2."""
    with pytest.raises(ConnectionLostError, match="returns nothing, although it was read up to offset"):
        opened(-1, kept, reached)


def test_only_what_was_removed_is_lost() -> None:
    """Notes of the broker take offsets, too."""
    assert Opening(4, 5, is_known=True).lost_before(4, []) == []
    assert Opening(4, 5, is_known=True).lost_before(5, []) == []
    assert Opening(4, 5, is_known=True).lost_before(9, [(5, 9)]) == [(5, 9)]
    assert Opening(4, 5).lost_before(9, [(5, 9)]) == []
    gaps = [(5, 7), (9, 14), (18, 19)]
    assert Opening(4, 30, is_known=True, missing=gaps).lost_before(40, [(20, 30)]) == gaps
    assert Opening(4, 30, is_known=True, missing=gaps).lost_before(12, [(20, 30)]) == [(5, 7), (9, 12)]
    assert Opening(4, 30, is_known=True, missing=gaps).lost_before(4, [(20, 30)]) == []


def test_a_stream_that_was_never_read_may_be_empty() -> None:
    assert opened(-1) == Opening(0, 0)
    assert opened(-1, Checkpoint(-1)) == Opening(0, 0)
    assert opened(-1, start="latest") == Opening(0, 0, first=Checkpoint(-1))


@pytest.mark.parametrize("kept", [None, Checkpoint(-1)])
def test_what_was_read_without_a_checkpoint_is_known_by_what_was_read(kept: Checkpoint | None) -> None:
    """I1."""
    found = opening("orders", "/checkpoints", 9, "digest", kept, 5, "earliest", "abc")
    assert found == Opening(4, 5, "abc", is_known=True)


def test_an_internal_error_of_the_broker_names_what_may_be_the_cause() -> None:
    failed = ClosedByBrokerError("", place="rabbit-1:5672", reply_code=541, reply_text="INTERNAL_ERROR")
    assert "compressed sub-entry batch" in str(explained(failed))
    other = ClosedByBrokerError("", place="rabbit-1:5672", reply_code=404, reply_text="NOT_FOUND")
    assert explained(other) is other
