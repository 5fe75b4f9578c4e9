"""What a client may do before its first token."""

import pytest

from isthmus.broker.connection.early_access import EarlyAccess
from isthmus.errors import QuotaExceededError


@pytest.mark.parametrize(("what", "limit"), [("begin_session", 8), ("attach_link", 32)])
def test_a_client_without_a_token_has_few_sessions_and_links_i1(what: str, limit: int) -> None:
    early = EarlyAccess(0.0, 20.0)
    for _ in range(limit):
        getattr(early, what)()
    with pytest.raises(QuotaExceededError):
        getattr(early, what)()
    early.is_over = True
    getattr(early, what)()


def test_a_client_without_a_token_sends_few_requests_i1() -> None:
    early = EarlyAccess(0.0, 20.0)
    early.request(64)
    with pytest.raises(QuotaExceededError):
        early.request(1)
    early.is_over = True
    early.request(1000)


def test_the_time_for_the_first_token_ends_unless_there_was_one_i1() -> None:
    early = EarlyAccess(100.0, 20.0)
    assert early.overdue(119.9) is None
    assert "20 seconds" in str(early.overdue(120.0))
    early.is_over = True
    assert early.overdue(120.0) is None


def test_tokens_in_a_row_that_open_nothing_are_counted_i2() -> None:
    early = EarlyAccess(0.0, 20.0)
    assert all(early.fail() is None for _ in range(100))
    early.succeed()
    assert all(early.fail() is None for _ in range(100))
    assert "101 tokens" in str(early.fail())
