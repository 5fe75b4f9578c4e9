"""isthmus.connectors.rabbitmq.port.refused."""

from __future__ import annotations

import time

from isthmus.connectors.rabbitmq.port.refused import SETTLE_SECONDS, Refused


def test_the_source_is_lost_once_only_such_messages_are_outstanding() -> None:
    refused = Refused()
    assert not refused.is_due(time.monotonic(), 0)
    refused.add("first", 1)
    refused.add("second", 2)
    assert refused.text == "first"
    now = time.monotonic()
    assert not refused.is_due(now, 4)
    assert refused.is_due(now, 3)
    assert refused.is_due(now + SETTLE_SECONDS, 4)
