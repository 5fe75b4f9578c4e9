"""The end of Spark's Java process is distinguished from errors that Java returns."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from isthmus.replication.spark.gone import SparkGoneError, calling_spark


@pytest.mark.parametrize(
    "error",
    [
        Py4JNetworkError("Answer from Java side is empty"),
        ConnectionRefusedError("Connection refused"),
        Py4JError("An error occurred while calling o120.isActive"),  # Java ended while it was asked
    ],
)
def test_java_that_has_ended_is_reported(error: Exception) -> None:
    with pytest.raises(SparkGoneError), calling_spark():
        raise error


def test_what_java_answers_is_left_as_it_is() -> None:
    answered = Py4JError(
        "An error occurred while calling o1.x. Trace:\npy4j.Py4JException: Method x([]) does not exist\n"
    )
    with pytest.raises(Py4JError) as caught, calling_spark():
        raise answered
    assert caught.value is answered
