"""isthmus.connectors.amqp.redelivery"""

from __future__ import annotations

from isthmus.amqp import section
from isthmus.amqp.performative import Rejected, Released
from isthmus.connectors.amqp.mapping import with_header
from isthmus.connectors.amqp.redelivery import KEPT_SECONDS, RECENT_SECONDS, Again, RedeliveryMemory, message_key


def message(name: str, body: bytes = b"x") -> bytes:
    return section.encode_message(body, properties={"message_id": name})


A, B, C = message("a"), message("b"), message("c")


def test_a_message_is_known_whatever_its_header_says() -> None:
    again = section.encode_header(section.Header(durable=True, delivery_count=3)) + A
    assert message_key(again) == message_key(A)
    assert message_key(with_header(A, durable=True)) == message_key(A)


def test_another_message_id_another_body_and_no_message_id_are_not_known() -> None:
    assert message_key(message("a", b"y")) != message_key(A)
    assert message_key(B) != message_key(A)
    assert message_key(section.encode_message(b"x")) is None
    assert message_key(b"\xff no message") is None


def lost_with(memory: RedeliveryMemory, *unsettled: tuple[int, int], now: float = 1.0) -> None:
    memory.lost(unsettled, now)
    memory.opened(now)


def test_what_was_unsettled_keeps_its_position() -> None:
    """I1"""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 8), [A, B, C], 0.0, None)
    lost_with(memory, (6, 7))
    assert memory.again(B, 2.0) == Again(6, is_settled=False)
    assert memory.again(C, 2.0) == Again(7, is_settled=False)
    assert not memory.again(B, 2.0), "I2: it is expected once"


def test_what_was_settled_shortly_before_is_settled_again() -> None:
    """I1"""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 7), [A, B], 0.0, None)
    lost_with(memory, (6, 6))
    assert memory.again(A, 2.0) == Again(5, is_settled=True)


def test_what_was_settled_before_a_silence_is_settled_again() -> None:
    """I1: a connection over which nothing comes any more is given up after 60 s; what was written last may not have been taken in."""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 6), [A], 0.0, None)
    memory.delivered(range(6, 7), [B], 0.1, 6)
    lost_with(memory, (6, 6), now=62.0)
    assert memory.again(A, 63.0) == Again(5, is_settled=True)


def test_what_was_settled_long_before_is_another_message() -> None:
    """I1"""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 6), [A], 0.0, None)
    memory.delivered(range(6, 7), [B], 0.1, 6)
    lost_with(memory, (6, 6), now=1.0 + RECENT_SECONDS)
    assert memory.again(A, 90.0) is None
    assert memory.again(B, 90.0) == Again(6, is_settled=False)


def test_what_is_settled_while_the_source_is_unavailable_is_settled_when_it_comes_again() -> None:
    memory = RedeliveryMemory()
    memory.delivered(range(5, 7), [A, B], 0.0, None)
    lost_with(memory, (5, 6))
    rejected = Rejected(None)
    memory.settle(5, 5, None, 1.5)
    memory.settle(6, 6, rejected, 1.5)
    assert memory.again(A, 2.0) == Again(5, is_settled=True)
    assert memory.again(B, 2.0) == Again(6, is_settled=True, state=rejected)


def test_what_was_given_back_is_a_new_delivery() -> None:
    """I3: otherwise it would be accepted without having been moved."""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 8), [A, B, C], 0.0, None)
    memory.settled(5, 5, Released())
    lost_with(memory, (6, 7))
    memory.settle(6, 6, Released(), 1.5)
    assert memory.again(A, 2.0) is None
    assert memory.again(B, 2.0) is None
    assert memory.again(C, 2.0) == Again(7, is_settled=False)


def test_a_rejection_that_may_not_have_been_taken_in_is_repeated() -> None:
    memory = RedeliveryMemory()
    memory.delivered(range(5, 6), [A], 0.0, None)
    rejected = Rejected(None)
    memory.settled(5, 5, rejected)
    lost_with(memory)
    assert memory.again(A, 2.0) == Again(5, is_settled=True, state=rejected)


def test_what_is_expected_is_forgotten_after_a_while() -> None:
    """I2"""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 6), [A], 0.0, None)
    lost_with(memory, (5, 5))
    memory.settle(5, 5, None, 1.0)
    assert memory.again(A, 2.0 + KEPT_SECONDS) is None
    assert not memory.is_expecting


def test_what_is_unsettled_is_known_however_long_the_target_is_unavailable() -> None:
    """I2: there is no credit meanwhile, so that the broker does not give it again before."""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 7), [A, B], 0.0, None)
    lost_with(memory, (5, 6))
    later = 100.0 + KEPT_SECONDS
    memory.settle(5, 5, None, later)
    assert memory.again(A, later + 1.0) == Again(5, is_settled=True)
    assert memory.again(B, later + 1.0) == Again(6, is_settled=False)


def test_what_comes_again_over_two_links_keeps_its_position() -> None:
    memory = RedeliveryMemory()
    memory.delivered(range(5, 7), [A, B], 0.0, None)
    lost_with(memory, (5, 6))
    assert memory.again(B, 2.0) == Again(6, is_settled=False)
    memory.delivered((6,), [B], 2.0, None)
    lost_with(memory, (6, 6), now=3.0)
    assert memory.again(B, 4.0) == Again(6, is_settled=False)
    assert memory.again(A, 4.0) == Again(5, is_settled=False), "it may be on its way from the first link"


def test_what_is_settled_again_over_a_link_that_is_lost_too_is_expected_again() -> None:
    memory = RedeliveryMemory()
    memory.delivered(range(5, 7), [A, B], 0.0, None)
    lost_with(memory, (5, 6))
    memory.settle(5, 6, None, 1.5)
    for now in (2.0, 4.0):
        for position, payload in ((5, A), (6, B)):
            again = memory.again(payload, now)
            assert again == Again(position, is_settled=True, state=None)
            memory.delivered((position,), (payload,), now, None)
            memory.settled(position, position, None)
        lost_with(memory, now=now + 1)


def test_a_rejection_is_repeated_over_every_link() -> None:
    memory = RedeliveryMemory()
    memory.delivered(range(50, 51), [B], 0.0, None)
    rejected = Rejected(None)
    memory.delivered((5,), [A], 0.0, None)
    memory.settled(5, 5, rejected)
    memory.delivered((60,), [C], 0.1, None)
    for now in (1.0, 2.0):
        lost_with(memory, now=now)
        assert memory.again(A, now) == Again(5, is_settled=True, state=rejected)
        memory.delivered((5,), [A], now, None)
        memory.settled(5, 5, rejected)


def test_a_message_that_is_unsettled_can_be_read_again() -> None:
    memory = RedeliveryMemory()
    memory.delivered(range(5, 7), [A, B], 0.0, None)
    memory.delivered((9,), [C], 0.0, 5)
    assert [memory.payload(position) for position in (6, 9)] == [B, C]


def test_of_messages_that_are_alike_as_many_are_expected_as_there_were() -> None:
    """I2: a sender may have sent one twice; the first of the two is settled, and the second is with the owner."""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 8), [A, A, A], 0.0, None)
    lost_with(memory, (5, 6))
    assert memory.again(A, 2.0) == Again(5, is_settled=False)
    assert memory.again(A, 2.0) == Again(6, is_settled=False)
    assert memory.again(A, 2.0) == Again(7, is_settled=True)
    assert memory.again(A, 2.0) is None


def test_messages_that_are_alike_are_given_back_each() -> None:
    """I3"""
    memory = RedeliveryMemory()
    memory.delivered(range(5, 8), [A, A, B], 0.0, None)
    lost_with(memory, (5, 7))
    memory.settle(5, 6, Released(), 1.5)
    assert memory.again(A, 2.0) is None
    assert memory.again(B, 2.0) == Again(7, is_settled=False)


def test_a_message_that_came_again_is_given_back_though_another_is_alike() -> None:
    memory = RedeliveryMemory()
    memory.delivered(range(5, 7), [A, A], 0.0, None)
    lost_with(memory, (5, 6))
    assert memory.again(A, 2.0) == Again(5, is_settled=False)
    memory.settle(5, 6, Released(), 2.0)  # 5 by its new link
    assert memory.again(A, 2.0) is None
    assert not memory.is_expecting
