from __future__ import annotations

import pytest

from isthmus.transport.http_status import may_succeed_later


@pytest.mark.parametrize(
    ("status", "is_later"),
    [
        (200, False),
        (400, False),
        (401, False),
        (404, False),
        (408, True),
        (409, False),
        (429, True),
        (500, True),
        (503, True),
    ],
)
def test_what_is_busy_or_behind_a_gateway_is_asked_again(status: int, is_later: bool) -> None:
    assert may_succeed_later(status) is is_later
