"""isthmus.connectors.refused."""

from __future__ import annotations

import math

from isthmus.connectors.refused import SETTLE_SECONDS, Refused


def test_the_source_is_lost_once_only_such_messages_are_outstanding_i2() -> None:
    refused = Refused()
    assert refused.take(7.0, 0) == ""
    refused.add("first", 1)
    refused.add("second", 2)
    assert refused.text == "first"
    assert refused.take(7.0, 4) == ""
    assert refused.take(7.0, 3) == "first"
    assert refused.take(7.0, 0) == ""
    assert refused.due(7.0) == math.inf


def test_it_is_lost_after_a_while_whatever_is_under_way_i1() -> None:
    refused = Refused()
    assert refused.due(7.0) == math.inf
    refused.add("first", 1)
    assert refused.due(7.0) == 7.0 + SETTLE_SECONDS
    assert refused.take(7.0 + SETTLE_SECONDS - 0.1, 4) == ""
    assert refused.take(7.0 + SETTLE_SECONDS, 4) == "first"
