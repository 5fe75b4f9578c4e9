import pickle

import pytest

from isthmus.errors import (
    ConnectionLostError,
    EntityDisabledError,
    EntityNotFoundError,
    LockLostError,
    MessageTooLargeError,
    QuotaExceededError,
    ServerBusyError,
    UnauthorizedError,
)
from isthmus.transport import TransportError, error_from


@pytest.mark.parametrize(
    ("condition", "kind", "retryable"),
    [
        ("amqp:not-found", EntityNotFoundError, False),
        ("com.microsoft:entity-disabled", EntityDisabledError, False),
        ("amqp:unauthorized-access", UnauthorizedError, False),
        ("com.microsoft:message-lock-lost", LockLostError, False),
        ("amqp:link:message-size-exceeded", MessageTooLargeError, False),
        ("amqp:resource-limit-exceeded", QuotaExceededError, True),
        ("com.microsoft:server-busy", ServerBusyError, True),
        ("amqp:link:detach-forced", ConnectionLostError, True),
    ],
)
def test_a_condition_has_its_error_and_says_whether_to_try_again_i2(
    condition: str, kind: type[Exception], retryable: bool
) -> None:
    error = error_from(condition, "text", path="q")
    assert type(error) is kind
    assert error.retryable is retryable


def test_an_unknown_condition_keeps_its_text_i1() -> None:
    error = error_from("x:strange", "what it said", path="q")
    assert isinstance(error, TransportError)
    assert "x:strange" in str(error)
    assert "what it said" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_status_replaces_a_missing_condition() -> None:
    assert isinstance(error_from(None, "gone", status=410), LockLostError)
    assert isinstance(error_from(None, "busy", status=503), ServerBusyError)


def test_a_refusal_for_size_without_sizes_keeps_its_text() -> None:
    error = error_from("amqp:link:message-size-exceeded", "The batch has more than 15 messages.", path="q")
    assert (type(error), str(error)) == (MessageTooLargeError, "'q': The batch has more than 15 messages.")


def test_sizes_are_read_from_the_text() -> None:
    error = error_from("amqp:link:message-size-exceeded", "The message has 300 bytes; the limit is 256 bytes.")
    assert "300" in str(error)
    assert "256" in str(error)


def test_a_refusal_for_size_is_one_whatever_numbers_its_text_has() -> None:
    condition = "amqp:link:message-size-exceeded"
    error = error_from(condition, "the message has 300 bytes, the limit is 256 bytes")
    assert "300" in str(error)
    assert "256" in str(error)
    error = error_from(condition, f"over {'9' * 5000} bytes", path="q")
    assert type(error) is MessageTooLargeError
    assert "'q'" in str(error)
