"""The state that is reset with each link."""

from isthmus.connectors.servicebus.port.link_state import LinkState, OwnerCredit


def test_delivery_ids_continue_over_the_wrap_i1() -> None:
    link = LinkState()
    assert [link.ids.unwrapped(number) for number in (0xFFFFFFF0, 0xFFFFFFFF, 5, 9)] == [
        0xFFFFFFF0,
        0xFFFFFFFF,
        (1 << 32) + 5,
        (1 << 32) + 9,
    ]


def test_credit_waits_for_what_was_taken_back_i2() -> None:
    credit = OwnerCredit()
    credit.grant(10)
    credit.given(3)
    assert credit.left == 7
    credit.drain()
    credit.grant(20)
    credit.given(2)
    assert (credit.left, credit.draining) == (5, True)
    credit.drained()
    assert (credit.left, credit.draining) == (20, False)
