"""Dispositions as the requests that settle by lock token."""

from typing import Any

import pytest

from isthmus.amqp.performative import Accepted, Modified, Received, Released
from isthmus.connectors.servicebus.spark.disposition import outcome_of, start_settling
from isthmus.errors import InvalidArgumentError


class Requests:
    """What a management link was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def start_disposition(self, status: str, tokens: object, *, reason: Any = None, description: Any = None) -> None:
        self.asked.append((status, reason, description))


@pytest.mark.parametrize(
    ("state", "asked"),
    [
        (None, ("completed", None, None)),
        (Accepted(), ("completed", None, None)),
        (Released(), ("abandoned", None, None)),
        (Modified(True, False), ("abandoned", None, None)),
        (Modified(True, True), ("defered", None, None)),
        (outcome_of("dead-letter", "why", "text"), ("suspended", "why", "text")),
        (outcome_of("release", None, None), ("abandoned", None, None)),
    ],
)
def test_each_outcome_has_its_request(state: Any, asked: tuple[Any, ...]) -> None:
    requests = Requests()
    start_settling(requests, [b"token"], state)  # type: ignore[arg-type]
    assert requests.asked == [asked]


def test_what_is_no_outcome_settles_nothing() -> None:
    requests = Requests()
    with pytest.raises(InvalidArgumentError, match="Received is not an outcome"):
        start_settling(requests, [b"token"], Received())  # type: ignore[arg-type]
    assert requests.asked == []
