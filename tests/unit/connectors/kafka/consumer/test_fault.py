"""isthmus.connectors.kafka.consumer.fault."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from isthmus.connectors.kafka.consumer.fault import STALE_SECONDS, ConsumerFault
from isthmus.errors import ConnectionLostError, EntityNotFoundError, UnauthorizedError

PASSING = ConnectionLostError("gone")
PERMANENT = UnauthorizedError("no right to read")
DOWN = KafkaError(KafkaError._ALL_BROKERS_DOWN)


@pytest.fixture
def fault() -> ConsumerFault:
    return ConsumerFault("t", "a:9092", lambda: False)


def test_i1_a_permanent_fault_is_reported_before_one_that_may_pass(fault: ConsumerFault) -> None:
    fault.lose(PASSING)
    fault.lose(PERMANENT)
    fault.lose(PASSING)
    assert fault.take() == ("no right to read", True)
    assert fault.take() is None


def test_i2_what_was_removed_is_reported_beside_the_fault(fault: ConsumerFault) -> None:
    fault.lose(PERMANENT)
    fault.lose_removed("")
    fault.lose_removed("records 1 to 2 were removed")
    assert fault.take() == ("no right to read; records 1 to 2 were removed", True)
    fault.lose_removed("records 4 to 5 were removed")
    assert fault.take() == ("records 4 to 5 were removed", False)


def test_i2_at_the_end_it_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fault = ConsumerFault("t", "a:9092", lambda: True)
    fault.lose_removed("records 1 to 2 were removed")
    assert fault.take() is None
    assert "records 1 to 2 were removed" in caplog.text


def test_i3_brokers_that_are_down_are_reported_after_a_while(fault: ConsumerFault) -> None:
    fault.connected(100.0)
    fault.on_error(DOWN, 100.0 + STALE_SECONDS)
    assert fault.take() is None
    fault.on_error(DOWN, 100.1 + STALE_SECONDS)
    reported = fault.take()
    assert reported is not None
    assert not reported[1]


def test_a_connection_ends_what_was_wrong_before(fault: ConsumerFault) -> None:
    fault.lose(PASSING)
    fault.connected(1.0)
    assert fault.take() is None


@pytest.mark.parametrize("code", [KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID])
def test_a_consumer_that_is_shut_out_is_not_used_again(fault: ConsumerFault, code: int) -> None:
    fault.on_error(KafkaError(code), 0.0)
    assert fault.is_spent
    reported = fault.take()
    assert reported is not None
    assert reported[0].startswith("the consumer has failed")
    assert not reported[1]


def test_what_passes_by_itself_is_not_reported(fault: ConsumerFault) -> None:
    fault.on_error(KafkaError(KafkaError._TRANSPORT), 100.0)
    assert fault.take() is None
    assert not fault.is_spent


@pytest.mark.parametrize(("path", "is_absent"), [("t at a:9092", True), ("t", True), ("t-dead at a:9092", False)])
def test_a_topic_that_is_not_there_is_the_one_that_is_read(fault: ConsumerFault, path: str, is_absent: bool) -> None:
    fault.lose(EntityNotFoundError(path))
    assert fault.is_absent is is_absent
    assert fault.is_useless is is_absent
