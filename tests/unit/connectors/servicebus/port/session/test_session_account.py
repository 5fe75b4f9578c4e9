"""The account of a source with sessions: the settlement of deliveries across links."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.amqp import section
from isthmus.amqp.types import Symbol, Timestamp
from isthmus.connectors.servicebus.port.session.account import KEPT_SECONDS, RECENT_SECONDS, SessionAccount, Span


def message(enqueued_ms: int = 1000) -> bytes:
    annotations = {Symbol("x-opt-enqueued-time"): Timestamp(enqueued_ms)}
    return section.encode_map_section(section.MESSAGE_ANNOTATIONS, annotations) + section.encode_message(b"x")


def admit(
    account: SessionAccount, link: int, first_id: int, positions: list[int], now: float = 0.0, at_ms: int = 1000
) -> list[int]:
    return list(account.admit(link, first_id, positions, [message(at_ms)] * len(positions), now).positions)


def test_positions_are_settled_once_over_the_link_that_delivered_them_i1() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5, 7, 8])
    admit(account, 2, 0, [6])
    assert account.settle(5, 8, 1.0, completes=True) == [Span(1, 0, 0), Span(2, 0, 0), Span(1, 1, 2)]
    assert account.settle(5, 8, 1.0, completes=True) == []
    assert (account.unsettled, account.unsettled_of(1), account.unsettled_of(2)) == (0, 0, 0)


def test_a_wide_range_costs_what_is_unsettled_and_not_what_it_spans() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [3, 1 << 50])
    assert account.settle(0, (1 << 64) - 1, 0.0, completes=False) == [Span(1, 0, 1)]


def test_what_comes_again_is_settled_over_its_last_link_i2() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5, 6])
    account.link_lost(1, 1.0)
    assert account.unsettled == 2
    assert admit(account, 2, 40, [5, 6, 7]) == [5, 6, 7]
    assert account.settle(5, 7, 2.0, completes=True) == [Span(2, 40, 42)]


def test_what_is_completed_while_its_session_is_lost_is_completed_again_i3() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5, 6])
    account.link_lost(1, 1.0)
    assert account.settle(5, 5, 2.0, completes=True) == []
    came = account.admit(2, 0, [5, 6], [message()] * 2, 3.0)
    assert (list(came.positions), list(came.again)) == ([6], [Span(2, 0, 0)])
    assert account.unsettled_of(2) == 1


def test_what_is_completed_after_the_session_was_taken_again_and_before_it_came_again_i3() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5, 6])
    account.link_lost(1, 1.0)
    admit(account, 2, 0, [4])
    account.settle(5, 5, 2.0, completes=True)
    assert account.admit(2, 1, [5, 6], [message()] * 2, 3.0).again == [Span(2, 1, 1)]


def test_what_was_completed_just_before_a_loss_is_completed_again_i3() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [4, 5])
    account.settle(4, 4, 1.0, completes=True)
    account.settle(5, 5, 1.0 + RECENT_SECONDS, completes=True)
    account.link_lost(1, 1.5 + RECENT_SECONDS)
    came = account.admit(2, 0, [4, 5], [message()] * 2, 20.0)
    assert (list(came.positions), list(came.again)) == ([4], [Span(2, 1, 1)])


def test_another_disposition_is_lost_with_the_session() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5])
    account.link_lost(1, 1.0)
    account.settle(5, 5, 1.0, completes=False)
    assert admit(account, 2, 0, [5], 2.0) == [5]


def test_a_position_that_was_given_to_a_later_message_is_not_taken_for_the_other() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5], at_ms=1000)
    account.link_lost(1, 1.0)
    account.settle(5, 5, 1.0, completes=True)
    assert admit(account, 2, 0, [5], 2.0, at_ms=2000) == [5]


def test_what_is_known_is_forgotten_in_time_and_on_demand() -> None:
    for forget in (False, True):
        account = SessionAccount()
        admit(account, 1, 0, [5])
        account.link_lost(1, 1.0)
        account.settle(5, 5, 1.0, completes=True)
        if forget:
            account.forget()
        assert admit(account, 2, 0, [5], 1.0 + (0.0 if forget else KEPT_SECONDS)) == [5]


def test_a_session_that_was_given_back_leaves_nothing() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5])
    account.settle(5, 5, 1.0, completes=True)
    account.link_closed(1, 1.0)
    assert admit(account, 2, 0, [5], 1.0) == [5]


def test_what_was_completed_just_before_its_session_was_given_back_and_the_connection_lost_i3() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [4])
    admit(account, 2, 0, [5])
    account.settle(4, 4, 1.0, completes=True)
    account.link_closed(1, 1.0)
    account.settle(5, 5, RECENT_SECONDS, completes=True)
    account.link_closed(2, RECENT_SECONDS)
    account.connection_lost(2.0 + RECENT_SECONDS)
    came = account.admit(3, 0, [4, 5], [message()] * 2, 20.0)
    assert (list(came.positions), list(came.again)) == ([4], [Span(3, 1, 1)])


@given(
    st.lists(st.tuples(st.sampled_from(["admit", "settle", "lose"]), st.integers(1, 3), st.integers(0, 9)), max_size=40)
)
def test_counts_agree_whatever_happens(steps: list[tuple[str, int, int]]) -> None:
    account = SessionAccount()
    ids = dict.fromkeys(range(100), 0)
    numbers = {link: link for link in range(1, 4)}
    expected: dict[int, int] = {}  # by position: link, 0 for none
    for now, (what, which, position) in enumerate(steps):
        link = numbers[which]
        if what == "admit":
            for each in admit(account, link, ids[link % 100], [position], float(now)):
                expected[each] = link
            ids[link % 100] += 1
        elif what == "settle":
            account.settle(position, position + 1, float(now), completes=True)
            expected.pop(position, None)
            expected.pop(position + 1, None)
        else:
            account.link_lost(link, float(now))
            expected = {at: 0 if of == link else of for at, of in expected.items()}
            numbers[which] = link + 10
        assert account.unsettled == len(expected)
        for link in numbers.values():
            assert account.unsettled_of(link) == list(expected.values()).count(link)


def test_what_was_completed_again_is_completed_a_third_time_where_that_was_lost_too_i3() -> None:
    account = SessionAccount()
    admit(account, 1, 0, [5])
    account.settle(5, 5, 1.0, completes=True)
    account.link_lost(1, 1.5)
    assert account.admit(2, 0, [5], [message()], 2.0).again == [Span(2, 0, 0)]
    account.link_lost(2, 2.5)
    assert account.admit(3, 0, [5], [message()], 3.0).again == [Span(3, 0, 0)]
