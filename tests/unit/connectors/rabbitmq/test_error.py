"""The effects of RabbitMQ's refusals."""

from __future__ import annotations

import pytest

from isthmus.connectors.rabbitmq.protocol.error import ClosedByBrokerError, is_not_ready, may_pass


@pytest.mark.parametrize(
    ("text", "is_passing"),
    [
        ("NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible", True),
        ("NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor", True),
        ("NOT_FOUND - no queue 'q' in vhost '/'", False),
    ],
)
def test_a_queue_whose_node_starts_is_waited_for(text: str, is_passing: bool) -> None:
    """It is reported as one that is not found: a route would stop permanently, and `plan` create the queue again."""
    error = ClosedByBrokerError("", place="rabbit-1:5672", reply_code=404, reply_text=text)
    assert is_not_ready(error) is is_passing
    assert may_pass(error) is is_passing
    assert ("check whether its node is starting" in str(error)) is is_passing
