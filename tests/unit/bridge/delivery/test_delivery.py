"""The delivery machine against a model of a target: no socket, no thread, no sleep."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.world.delivery_bench import BAD, BUSY, MISSING, NO_OUTCOME, ODD, Bench, Verdict, bench, message
from isthmus.bridge.delivery.delivery import Delivery
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.delivery_event import (
    Dispose,
    Disposition,
    Fail,
    Flush,
    Granted,
    HandedOver,
    Lost,
    Opened,
    Outcome,
    Pause,
    Resume,
    Send,
    Settle,
    Stopped,
    Tick,
)
from isthmus.bridge.refusal import Refusal
from isthmus.bridge.refusal_memory import RefusalMemory

# ---- order


def test_a_run_is_one_effect_and_is_settled_whole() -> None:
    machine = Delivery()
    machine.on(Opened(), 0.0)
    machine.on(Granted(5000), 0.0)
    payloads, positions = [message(number) for number in range(1000)], range(7, 1007)
    assert machine.on(HandedOver(payloads, positions), 0.0) == [Send(payloads)]
    assert machine.on(Outcome(0, 999), 0.0) == [Settle(positions)]
    assert (machine.counts.completed, machine.unfinished, machine.credit) == (1000, 0, 4000)


def test_what_is_accepted_is_settled_whatever_became_of_those_before_it_i1() -> None:
    made = bench()
    made.hand_over(5)
    made.apply(Flush(1))
    made.apply(Outcome(2, 3))
    assert (made.settled, made.flushed) == ([2, 3], [])
    made.apply(Outcome(4, 4))
    made.apply(Outcome(0, 1))
    assert (made.settled, made.flushed) == ([2, 3, 4, 0, 1], [1])


def test_a_flush_row_with_nothing_before_it_is_answered_at_once_i5() -> None:
    made = bench()
    made.apply(Flush(3))
    assert made.flushed == [3]


@pytest.mark.parametrize("envelope", [0, 10])
def test_nothing_later_is_sent_until_what_was_sent_again_has_its_outcome_i2(envelope: int) -> None:
    made = bench(lambda number, now: BUSY if now < 5.0 else None, envelope_messages=envelope, window=200)
    made.hand_over(100)
    made.hand_over(100)
    made.answer_all()
    made.now = 6.0
    made.apply(Tick())
    assert len(made.wire) == 1  # until the refused one has passed
    made.answer()
    assert len(made.wire) == 2
    while made.machine.is_recovering:
        made.answer()
        assert max(n for group in made.sent for n in group) < 200
    assert made.stored == list(range(200))


def test_later_messages_wait_for_those_sent_again_i2() -> None:
    """What was handed over behind the refused ones and never sent does not overtake them."""
    made = bench(lambda number, now: BUSY if now < 5.0 else None, window=100)
    made.credit = 10
    made.apply(Granted(10))
    made.hand_over(100)
    assert len(made.sent) == 10
    made.answer_all()
    made.credit = 1_000_000
    made.apply(Granted(1_000_000))
    made.now = 6.0
    made.apply(Tick())
    while made.machine.is_recovering:
        assert all(number < 10 for group in made.sent for number in group)
        made.answer()
    made.answer_all()
    assert made.stored == list(range(100))


@pytest.mark.parametrize("envelope", [0, 7])
def test_what_a_lost_connection_left_without_an_outcome_is_sent_again_in_order_before_all_else_i2(
    envelope: int,
) -> None:
    made = bench(envelope_messages=envelope, window=1000)
    made.credit = 40
    made.apply(Granted(40))
    made.hand_over(1000)
    for _ in range(20):
        made.answer()
    taken = list(made.stored)
    inside = [number for _, group in made.wire for number in group]
    made.lose()
    assert made.paused_reason
    made.now += 10
    made.apply(Tick())
    assert made.wants_open
    made.sent.clear()
    made.open()
    assert [n for group in made.sent for n in group] == inside
    made.answer_all()
    assert made.stored == [*taken, *inside, *range(max(inside) + 1, 1000)]
    assert made.paused_reason == ""
    assert made.machine.counts.resent == len(inside)


def test_a_message_refused_amid_others_is_behind_those_that_were_in_flight() -> None:
    refused_once = {3}

    def verdict(number: int, now: float) -> Refusal | None:
        if number in refused_once:
            refused_once.discard(number)
            return BUSY
        return None

    made = bench(verdict, window=20)
    made.hand_over(20)
    made.answer_all()
    made.pass_time(5)
    assert made.stored == [*(n for n in range(20) if n != 3), 3]


def test_with_a_window_of_one_a_message_refused_for_ever_is_found_out_too() -> None:
    made = bench(lambda number, now: ODD if number == 1 else None, window=1)
    for _ in range(4):
        made.hand_over(1)
        made.pass_time(6)
    assert (list(made.disposed), made.stored) == ([1], [0, 2, 3])


def test_with_a_window_of_one_order_holds_whatever_is_refused() -> None:
    times = iter([None, BUSY, None, ODD, BUSY, None, NO_OUTCOME] + [None] * 100)
    made = bench(lambda number, now: next(times), window=1)
    for _ in range(20):
        made.hand_over(1)
        made.pass_time(3)
    assert made.stored == list(range(20))


# ---- refusals


def test_a_busy_target_blocks_takes_credit_back_and_sets_nothing_aside_i4() -> None:
    made = bench(lambda number, now: BUSY if now < 20.0 else None)
    made.hand_over(50)
    made.pass_time(19)
    assert "come back later" in made.paused_reason
    assert made.machine.blocked_by == made.paused_reason
    assert (made.stored, made.disposed, made.settled) == ([], {}, [])
    made.pass_time(10)
    assert made.stored == list(range(50))
    assert (made.paused_reason, made.machine.blocked_by) == ("", "")


@pytest.mark.parametrize("refusal", [BUSY, ODD, NO_OUTCOME])
def test_a_target_that_takes_nothing_fails_the_route_in_time_i4(refusal: Refusal) -> None:
    made = bench(lambda number, now: refusal, timeout_seconds=30.0)
    made.hand_over(50)
    made.pass_time(29)
    assert made.failed is None
    made.pass_time(2)
    assert made.failed == Fail(refusal, 30.0)
    assert (made.disposed, made.settled) == ({}, [])


def test_a_target_that_does_not_exist_fails_the_route_at_once() -> None:
    made = bench(lambda number, now: MISSING)
    made.hand_over(2)
    made.answer()
    assert made.failed == Fail(MISSING)
    made = bench()
    made.apply(Lost(MISSING))
    assert made.failed == Fail(MISSING)


def test_a_target_that_never_answers_what_was_sent_again_fails_the_route_i4() -> None:
    made = bench()
    made.hand_over(2)
    made.lose()
    made.now = 1.0
    made.apply(Tick())
    made.open()
    made.now = 40.0
    assert made.machine.deadline(1.0) == pytest.approx(30.0)
    made.apply(Tick())
    assert made.failed is not None


def test_what_was_sent_again_moments_before_the_time_is_over_is_not_given_up() -> None:
    """The target has it: another opening would send it once more."""
    made = bench()
    made.hand_over(2)
    made.lose()
    made.now = 1.0
    made.apply(Tick())
    made.now = 29.0
    made.open()
    made.now = 31.0
    made.apply(Tick())
    assert made.failed is None
    made.answer_all()
    assert (made.failed, made.settled) == (None, [0, 1])


def test_a_message_at_fault_is_set_aside_at_once_and_delays_no_other() -> None:
    made = bench(lambda number, now: BAD if number == 2 else None)
    made.hand_over(5)
    made.answer_all()
    assert made.stored == [0, 1, 3, 4]
    assert made.disposed == {2: Disposition("dead-letter", "RefusedByTarget", "argument-error: malformed")}
    assert not made.machine.is_recovering


@pytest.mark.parametrize("envelope", [0, 5])
def test_a_message_over_the_links_limit_is_set_aside_unsent(envelope: int) -> None:
    made = Bench(Delivery(DeliverySettings(envelope_messages=envelope, overhead_bytes=0)), message_bytes=40).open()
    made.hand_over(3)
    made.hand_over(1, size=41)
    made.hand_over(1)
    made.answer_all()
    assert made.stored == [0, 1, 2, 4]
    assert made.disposed[3].reason == "MessageTooLarge"


@pytest.mark.parametrize("envelope", [0, 1, 10])
@pytest.mark.parametrize("is_strict", [False, True])
def test_what_is_too_large_stops_nothing_though_it_filled_the_window(envelope: int, is_strict: bool) -> None:
    machine = Delivery(DeliverySettings(window=2, envelope_messages=envelope, is_strict=is_strict))
    machine.on(Opened(100), 0.0)
    machine.on(Granted(10), 0.0)
    payloads = [bytes(200)] * 5 + [bytes(10)]
    effects = machine.on(HandedOver(payloads, range(6)), 0.0)
    assert [each.position for each in effects if isinstance(each, Dispose)] == [0, 1, 2, 3, 4]
    assert [each for each in effects if isinstance(each, Send)] == [Send([bytes(10)])]
    machine.on(Outcome(0, 0), 0.0)
    effects = machine.on(HandedOver([bytes(200)] * 4, range(6, 10)), 0.0)
    assert machine.unfinished == 0


def test_a_message_over_the_links_limit_blocks_where_refusals_block() -> None:
    made = Bench(Delivery(DeliverySettings(block_refused=True)), message_bytes=40).open()
    made.hand_over(2)
    made.hand_over(1, size=41)
    made.hand_over(2)
    made.pass_time(20)
    assert (made.stored, made.disposed) == ([0, 1], {})
    assert "1002" in made.paused_reason
    made.pass_time(20)
    assert made.failed is not None


@pytest.mark.parametrize("position", [0, 3, 49])
def test_a_message_refused_for_ever_is_set_aside_after_ten_seconds_while_others_are_accepted(position: int) -> None:
    made = bench(lambda number, now: ODD if number == position else None, window=60)
    made.hand_over(50)
    made.pass_time(9.5)
    assert made.disposed == {}
    assert f"message {position + 1000} is refused: x:odd: no" in made.machine.blocked_by
    made.hand_over(10)
    made.pass_time(2.5)
    assert list(made.disposed) == [position]
    disposition = made.disposed[position]
    assert (disposition.kind, disposition.reason) == ("dead-letter", "RefusedByTarget")
    assert "x:odd: no" in disposition.description
    assert str(position + 1000) in made.machine.last_set_aside
    assert sorted(made.stored) == [n for n in range(60) if n != position]
    assert made.machine.counts.dead_lettered == 1
    assert (made.machine.blocked_by, made.paused_reason) == ("", "")


def test_what_was_accepted_behind_a_refused_message_is_settled_i1() -> None:
    """A lease that starts again meanwhile sends only the refused one again."""
    made = bench(lambda number, now: ODD if number == 0 else None)
    made.hand_over(5000)
    made.pass_time(5)
    assert made.unsettled == [0]


def test_where_refusals_block_nothing_overtakes_the_first_message_of_a_machine() -> None:
    """It may be the one that blocked the lease before this one."""
    made = bench(lambda number, now: ODD if number == 0 and now < 5.0 else None, block_refused=True)
    made.hand_over(5000)
    made.pass_time(4)
    assert (made.stored, len(made.unsettled)) == ([], 5000)
    made.pass_time(4)
    assert made.stored == list(range(5000))


def test_where_few_messages_come_one_is_set_aside_though_there_is_no_other() -> None:
    """E.g. of an entity that messages are diverted to; else its route would begin again every half minute."""
    made = bench(lambda number, now: ODD if number == 0 else None, is_quiet=True)
    made.hand_over(1)
    made.pass_time(9.5)
    assert made.disposed == {}
    made.pass_time(2.5)
    assert list(made.disposed) == [0]
    assert made.disposed[0].description.endswith("s)")
    assert "other messages" not in made.disposed[0].description
    assert made.failed is None
    busy = bench(lambda number, now: BUSY, is_quiet=True)
    busy.hand_over(1)
    busy.pass_time(20)
    assert busy.disposed == {}, "a target that is busy says nothing about a message"
    lone = bench(lambda number, now: ODD)
    lone.hand_over(1)
    lone.pass_time(20)
    assert lone.disposed == {}


def test_a_message_that_passes_late_is_not_set_aside() -> None:
    made = bench(lambda number, now: ODD if number == 0 and now < 10.2 else None)
    made.hand_over(1)
    made.pass_time(1)
    made.hand_over(5)
    made.pass_time(14)
    assert made.disposed == {}
    assert sorted(made.stored) == list(range(6))
    assert made.stored.index(0) <= 1  # one was tried ahead of it at most


def test_where_everything_is_refused_nothing_is_set_aside_and_order_holds() -> None:
    """A fault of the target's own for which it has no name."""
    made = bench(lambda number, now: ODD if now < 25.0 else None)
    made.hand_over(300)
    made.pass_time(28)
    assert (made.disposed, made.failed) == ({}, None)
    made.pass_time(1)
    assert sorted(made.stored) == list(range(300))
    first, *rest = made.stored
    assert rest == [n for n in range(300) if n != first]  # but for the one that was tried


def test_a_lone_refused_message_waits_for_another_to_compare_with() -> None:
    made = bench(lambda number, now: ODD if number == 0 else None, timeout_seconds=100.0)
    made.hand_over(1)
    made.pass_time(20)
    assert (made.disposed, made.paused_reason) == ({}, "")  # no credit is taken back: another has to come
    made.hand_over(1)
    made.pass_time(2)
    assert (list(made.disposed), made.stored) == ([0], [1])


def test_a_few_refused_messages_wait_for_another_to_compare_with() -> None:
    """After deaths so few may be under way that all of them are refused."""
    made = bench(lambda number, now: ODD if number < 3 else None, timeout_seconds=100.0)
    made.hand_over(1)
    made.pass_time(5)
    made.hand_over(2)
    made.pass_time(20)
    assert (made.disposed, made.paused_reason) == ({}, "")
    made.hand_over(1)
    made.pass_time(20)
    assert (list(made.disposed), made.stored) == ([0, 1, 2], [3])


@pytest.mark.parametrize("refused", [17, 128])
def test_as_many_refused_as_sessions_are_locked_wait_for_another_to_compare_with(refused: int) -> None:
    """Each session gives one message, and another session comes only while no credit is taken back."""
    made = bench(lambda number, now: ODD if number < refused else None)
    while made.failed is None and made.now < 60.0:
        if not made.paused_reason and made.machine.unsent == 0 and made.handed < refused + 2:
            made.hand_over(1)
        made.pass_time(0.05)
    assert made.failed is None
    assert sorted(made.disposed) == list(range(refused))
    assert made.stored == [refused, refused + 1]


@pytest.mark.parametrize("refused", [1, 2, 5])
def test_refused_messages_that_fill_a_small_window_leave_room_for_another(refused: int) -> None:
    made = bench(lambda number, now: ODD if number < refused else None, window=1)
    while made.failed is None and made.now < 60.0:
        if not made.paused_reason and made.machine.room > 0 and made.handed < refused + 2:
            made.hand_over(1)
        made.pass_time(0.05)
    assert (made.failed, sorted(made.disposed), made.stored) == (None, list(range(refused)), [refused, refused + 1])


def test_of_many_refused_in_a_row_all_in_hand_are_tried_before_the_route_fails() -> None:
    made = bench(lambda number, now: ODD if number < 60 else None)
    made.hand_over(1)
    made.answer()
    made.hand_over(61)
    made.pass_time(29.0)
    assert (made.failed, sorted(made.disposed), made.stored) == (None, list(range(60)), [60, 61])


@pytest.mark.parametrize("later", [ODD, BAD])
def test_nothing_is_tried_ahead_once_the_refused_one_in_front_is_done_with_i2(later: Refusal) -> None:
    """Only for that one what was never sent was allowed to overtake what is sent again."""
    made = bench(lambda number, now: ODD if now < 12.0 else BAD if number == 0 and later is BAD else None)
    made.hand_over(10)
    made.pass_time(11.99)
    assert (made.stored, made.disposed) == ([], {})
    made.now = 20.0
    made.apply(Tick())
    assert made.wire[0][1] == [0]
    made.answer()
    made.hand_over(1)
    made.pass_time(5.0)
    assert list(made.disposed) == ([0] if later is BAD else [])
    assert made.stored == list(range(later is BAD, 11))


def test_a_target_that_is_busy_while_others_are_tried_ends_the_trying() -> None:
    made = bench(lambda number, now: ODD if now < 10.5 else BUSY if now < 20.0 else None)
    made.hand_over(1)
    made.pass_time(11.0)
    made.hand_over(1)
    made.pass_time(5.0)
    assert sum(group == [1] for group in made.sent) == 0
    made.pass_time(10.0)
    assert (made.stored, made.disposed) == ([0, 1], {})


def test_where_no_other_comes_it_is_enough_that_one_behind_it_was_accepted() -> None:
    made = bench(lambda number, now: ODD if number == 1 else None)
    made.hand_over(3)
    made.pass_time(12)
    assert (list(made.disposed), made.stored) == ([1], [0, 2])


def test_several_refused_messages_are_set_aside_though_no_other_comes() -> None:
    made = bench(lambda number, now: ODD if number in (7, 20, 21, 40) else None)
    made.hand_over(60)
    made.pass_time(15)
    assert list(made.disposed) == [7, 20, 21, 40]
    assert made.unsettled == []


def test_that_those_before_it_were_accepted_is_not_enough() -> None:
    """A target that accepts nothing after some time does not prove the message of that time faulty."""
    made = bench(lambda number, now: ODD if number >= 2 else None, timeout_seconds=100.0)
    made.hand_over(3)
    made.pass_time(50)
    assert (made.disposed, made.stored) == ({}, [0, 1])


def test_many_refused_in_a_row_are_set_aside_together_once_their_time_has_come() -> None:
    made = bench(lambda number, now: ODD if number < 80 else None, window=200)
    made.hand_over(100)
    made.pass_time(9.5)
    made.hand_over(20)
    made.pass_time(3.5)
    assert sorted(made.disposed) == list(range(80))
    assert made.stored == list(range(80, 120))


def test_many_refused_in_a_row_behind_which_everything_is_unsent_are_found_out() -> None:
    made = bench(lambda number, now: ODD if number < 20 else None, window=40)
    made.credit = 20
    made.apply(Granted(20))
    made.hand_over(40)
    made.answer_all()
    made.credit = 1000
    made.apply(Granted(1000))
    made.pass_time(14)
    assert sorted(made.disposed) == list(range(20))
    assert made.stored == list(range(20, 40))


def test_where_refusals_block_nothing_is_set_aside_and_no_message_is_tried_ahead() -> None:
    made = bench(lambda number, now: ODD if number == 0 else None, block_refused=True, window=10)
    made.hand_over(1)
    made.answer_all()
    made.hand_over(5)
    made.pass_time(25)
    assert (made.disposed, made.stored) == ({}, [])
    assert made.paused_reason


def test_a_busy_answer_does_not_count_towards_setting_aside_i4() -> None:
    made = bench(lambda number, now: None if number else ODD if int(now) % 5 == 0 else BUSY, timeout_seconds=1000)
    for _ in range(60):
        made.hand_over(1)
        made.pass_time(1)
    assert made.disposed == {}


# ---- what openings before this one know


def opening(memory: RefusalMemory, now: float, *numbers: int, verdict: Verdict = lambda number, now: None) -> Bench:
    """A machine that gets these messages at a time, one after the other."""
    made = bench(verdict, memory, now)
    for number in numbers:
        made.handed = number
        made.hand_over(1)
    return made


def test_what_an_opening_before_was_refused_is_set_aside_once_another_was_accepted_i9() -> None:
    """In each opening the others come first, or not at all: alone none of them gives a comparison."""

    def verdict(number: int, now: float) -> Refusal | None:
        return ODD if number < 3 else None

    memory = RefusalMemory()
    first = opening(memory, 0.0, 0, 1, 2, verdict=verdict)
    first.pass_time(31.0)
    assert (first.disposed, first.failed is not None) == ({}, True)
    second = opening(memory, 60.0, 7, verdict=verdict)
    second.pass_time(1.0)
    third = opening(memory, 120.0, 0, 1, 2, verdict=verdict)
    third.pass_time(1.0)
    assert list(third.disposed) == [0, 1, 2]
    assert "in 120 s while other messages were accepted" in third.disposed[0].description
    assert not memory


def test_what_was_refused_before_is_set_aside_behind_one_that_is_refused_for_the_first_time_i9() -> None:
    def verdict(number: int, now: float) -> Refusal | None:
        return None if number == 7 else ODD

    memory = RefusalMemory()
    opening(memory, 0.0, 0, 1, 2, verdict=verdict).pass_time(31.0)
    opening(memory, 60.0, 7, verdict=verdict).pass_time(1.0)
    made = opening(memory, 120.0, 9, 0, 1, 2, verdict=verdict)
    made.pass_time(29.0)
    assert (sorted(made.disposed), made.machine.unfinished, made.failed) == ([0, 1, 2], 1, None)
    made.handed = 8
    made.verdict = lambda number, now: ODD if number == 9 else None
    made.hand_over(1)
    made.pass_time(2.0)
    assert (sorted(made.disposed), made.settled, made.machine.unfinished) == ([0, 1, 2, 9], [8], 0)


def test_where_no_opening_has_another_accepted_nothing_is_set_aside_i9() -> None:
    memory = RefusalMemory()
    for number in range(5):
        made = opening(memory, 60.0 * number, *range(10), verdict=lambda number, now: ODD)
        made.pass_time(31.0)
        assert (made.disposed, made.failed is not None) == ({}, True)


def test_what_is_refused_for_the_first_time_is_not_set_aside_at_once_whatever_was_accepted() -> None:
    memory = RefusalMemory()
    opening(memory, 0.0, 0, verdict=lambda number, now: ODD).pass_time(31.0)
    made = opening(memory, 60.0, 7, 1, verdict=lambda number, now: ODD if number == 1 else None)
    made.pass_time(9.0)
    assert (made.stored, made.disposed) == ([7], {})


def test_another_message_under_a_position_that_was_refused_is_not_taken_for_it() -> None:
    memory = RefusalMemory()
    opening(memory, 0.0, 0, verdict=lambda number, now: ODD).pass_time(31.0)
    made = opening(memory, 60.0, 7, verdict=lambda number, now: None if number == 7 else ODD)
    made.handed = 0
    made.hand_over(1, size=8)
    made.pass_time(9.0)
    assert made.disposed == {}


def test_a_busy_answer_in_a_later_opening_does_not_count_towards_setting_aside_i4() -> None:
    memory = RefusalMemory()
    opening(memory, 0.0, 0, verdict=lambda number, now: ODD).pass_time(31.0)
    opening(memory, 60.0, 7, 0, verdict=lambda number, now: None if number else BUSY).pass_time(1.0)
    made = opening(memory, 120.0, 7, 0, verdict=lambda number, now: None if number else ODD)
    made.pass_time(9.0)
    assert made.disposed == {}


def test_what_was_refused_before_and_passes_is_settled_and_forgotten() -> None:
    memory = RefusalMemory()
    opening(memory, 0.0, 0, verdict=lambda number, now: ODD).pass_time(31.0)
    made = opening(memory, 60.0, 0, verdict=lambda number, now: ODD if now < 61.0 else None)
    made.pass_time(5.0)
    assert (made.settled, made.disposed, bool(memory)) == ([0], {}, False)


# ---- envelopes


def test_envelopes_hold_as_many_as_they_may() -> None:
    made = bench(envelope_messages=4, envelope_bytes=60, overhead_bytes=8)
    made.hand_over(9)
    assert [len(group) for group in made.sent] == [4, 4, 1]
    made.hand_over(4, size=20)
    assert [len(group) for group in made.sent[3:]] == [2, 2]


def test_of_a_refused_envelope_only_the_message_at_fault_is_set_aside_i6() -> None:
    made = bench(lambda number, now: BAD if number in (4, 17) else None, envelope_messages=5)
    made.hand_over(20)
    made.apply(Flush(1))
    made.answer_all()
    assert sorted(made.disposed) == [4, 17]
    assert sorted(made.stored) == [n for n in range(20) if n not in (4, 17)]
    assert made.flushed == [1]
    assert made.unsettled == []


def test_of_an_envelope_refused_without_a_reason_only_the_message_at_fault_is_set_aside_i6() -> None:
    made = bench(lambda number, now: ODD if number == 7 else None, envelope_messages=5, window=60)
    made.hand_over(20)
    made.pass_time(9)
    made.hand_over(20)
    made.pass_time(5)
    assert list(made.disposed) == [7]
    assert sorted(made.stored) == [n for n in range(40) if n != 7]
    assert made.machine._alone.count == 0


# ---- envelopes by the machine's own choice


def short(verdict: Verdict = lambda number, now: None, takes: int = 200, **changes: object) -> Bench:
    """A target with a credit of 10."""
    return Bench(Delivery(DeliverySettings(**changes)), verdict, takes=takes).open(10)  # type: ignore[arg-type]


def test_what_fits_half_of_the_credit_goes_alone_and_what_does_not_in_envelopes() -> None:
    made = short()
    made.hand_over(5)
    assert [len(group) for group in made.sent] == [1] * 5
    made.hand_over(40)
    assert [len(group) for group in made.sent[5:]] == [40]
    made.answer_all()
    assert made.stored == list(range(45))
    assert made.unsettled == []


def test_messages_that_waited_without_credit_go_together_however_they_came() -> None:
    made = short()
    made.hand_over(5)
    for _ in range(3):
        made.hand_over(400)
    assert made.machine.credit == 0
    while made.wire:
        made.answer()
    waiting = made.machine.unsent
    made.credit = 2
    made.apply(Granted(2))
    assert max(len(group) for group in made.sent) == 200
    made.credit = 100
    made.apply(Granted(100))
    made.answer_all()
    assert made.stored == list(range(1205))
    assert waiting > 0


def test_a_target_that_is_not_known_to_take_envelopes_gets_none() -> None:
    made = short(takes=0)
    made.hand_over(40)
    assert [len(group) for group in made.sent] == [1] * 10


def test_a_route_that_is_set_to_send_each_alone_does() -> None:
    made = short(envelope_messages=1)
    made.hand_over(40)
    assert [len(group) for group in made.sent] == [1] * 10


def test_rows_that_have_to_go_alone_are_in_no_envelope() -> None:
    made = short()
    made.handed = 20
    made.apply(HandedOver([message(n) for n in range(20)], list(range(1000, 1020)), is_alone=True))
    assert [len(group) for group in made.sent] == [1] * 10


def test_an_envelope_is_no_larger_than_the_link_lets_messages_be() -> None:
    made = Bench(Delivery(), message_bytes=100, takes=200).open(10)
    made.hand_over(40, size=20)
    assert [len(group) for group in made.sent] == [3] * 10


def test_messages_in_flight_are_bounded_by_the_window_however_they_go() -> None:
    made = short(window=30)
    made.hand_over(30)
    made.hand_over(30)
    assert sum(len(group) for _, group in made.wire) == 30
    made.answer()
    assert sum(len(group) for _, group in made.wire) <= 30


def test_what_is_sent_again_goes_in_no_envelope_i7() -> None:
    made = short()
    made.hand_over(40)
    made.lose()
    made.now = 10.0
    made.apply(Tick())
    made.sent.clear()
    made.open(10)
    while made.machine.is_recovering:
        assert {len(group) for group in made.sent} == {1}
        made.answer()
        if made.machine.credit == 0:
            made.credit = 10
            made.apply(Granted(10))
    assert made.stored == list(range(40))


def test_of_an_envelope_made_for_want_of_credit_only_the_message_at_fault_is_set_aside_i6() -> None:
    made = short(lambda number, now: BAD if number == 17 else None)
    made.hand_over(40)
    made.credit = 100
    made.apply(Granted(100))
    made.answer_all()
    assert list(made.disposed) == [17]
    assert sorted(made.stored) == [n for n in range(40) if n != 17]


def test_a_target_that_takes_no_envelopes_gets_each_message_alone_from_then_on() -> None:
    made = short()
    made.hand_over(40)
    for ordinal, group in list(made.wire):
        made.wire.popleft()
        made.apply(Outcome(ordinal, ordinal, BAD if len(group) > 1 else None))
    made.credit = 1000
    made.apply(Granted(1000))
    made.answer_all()
    made.sent.clear()
    made.credit = 10
    made.apply(Granted(10))
    made.hand_over(40)
    assert [len(group) for group in made.sent] == [1] * 10
    assert made.disposed == {}


def test_what_is_delayed_goes_when_its_time_is_over() -> None:
    made = short()
    made.hand_over(5)
    made.hand_over(4)
    made.sent.clear()
    made.hand_over(1)
    due = made.machine.deadline(made.now)
    assert (made.sent, made.machine.unsent) == ([], 1)
    assert made.now < due < made.now + 0.01
    made.now = due
    made.apply(Tick())
    assert made.sent == [[9]]
    assert made.machine.deadline(made.now) == math.inf


def test_nothing_is_due_once_what_was_delayed_was_tried_ahead_of_another() -> None:
    made = short(lambda number, now: ODD if number == 0 and now < 30.0 else None)
    made.hand_over(5)
    made.hand_over(4)
    made.hand_over(1)
    made.credit = 1_000_000
    made.answer_all()
    made.apply(Granted(1_000_000))
    made.pass_time(40.0)
    assert made.unsettled == []
    assert made.machine.deadline(made.now) == math.inf


# ---- rows with another disposition, without positions


def test_rows_with_another_disposition_get_it_at_once_and_are_counted() -> None:
    made = bench()
    verdicts = ["complete", "dead-letter", "defer", "abandon"]
    rows = [(1000 + at, Disposition(kind, "why")) for at, kind in enumerate(verdicts)]
    made.apply(HandedOver([], [], rows))
    assert [made.disposed[at].kind for at in range(4)] == verdicts
    counts = made.machine.counts
    assert (counts.discarded, counts.dead_lettered, counts.deferred, counts.abandoned) == (1, 1, 1, 1)
    assert counts.completed == 0


def test_without_positions_nothing_is_settled() -> None:
    made = bench()
    made.apply(HandedOver([message(0)], None))
    made.answer()
    assert (made.settled, made.machine.counts.completed) == ([], 1)


def test_room_is_what_the_window_leaves() -> None:
    made = bench(window=10)
    assert made.machine.room == 10
    made.hand_over(10)
    assert (len(made.sent), made.machine.room) == (10, 10)
    made.hand_over(10)
    assert (len(made.sent), made.machine.room) == (10, 0)
    made.answer()
    assert (len(made.sent), made.machine.room) == (11, 1)
    assert made.machine.deadline(0.0) == math.inf


# ---- the model


@st.composite
def worlds(draw: st.DrawFn) -> tuple[DeliverySettings, int, dict[int, Refusal], list[tuple[str, int]]]:
    """Settings, messages in one envelope that the target takes, messages that are refused for ever, and what happens in which order."""
    settings_ = DeliverySettings(
        window=draw(st.integers(1, 30)),
        envelope_messages=draw(st.sampled_from([0, 0, 3, 10])),
        block_refused=draw(st.booleans()),
        timeout_seconds=1e9,
    )
    poison = draw(st.dictionaries(st.integers(0, 60), st.sampled_from([ODD, BAD]), max_size=5))
    actions = st.sampled_from(
        ["hand", "answer", "answer", "answer", "lose", "open", "busy", "odd", "well", "wait", "credit"]
    )
    return (
        settings_,
        draw(st.sampled_from([0, 4, 200])),
        poison,
        draw(st.lists(st.tuples(actions, st.integers(1, 12)), max_size=80)),
    )


@settings(max_examples=150, deadline=None)
@given(worlds())
def test_nothing_is_lost_and_order_is_as_promised(
    world: tuple[DeliverySettings, int, dict[int, Refusal], list[tuple[str, int]]],
) -> None:
    settings_, takes, poison, actions = world
    mood: list[Refusal | None] = [None]
    refused: set[int] = set()
    maybe_twice: set[int] = set()
    probes_possible = bool(poison)

    def verdict(number: int, now: float) -> Refusal | None:
        answer = mood[0] or poison.get(number)
        if answer is not None:
            refused.add(number)
        return answer

    made = Bench(Delivery(settings_), verdict, takes=takes).open(credit=5)
    open_now, flushes, rows_before = True, 0, {}
    for action, amount in actions:
        if made.failed:
            break
        if action == "hand":
            made.hand_over(min(amount, made.machine.room))
            flushes += 1
            rows_before[flushes] = made.handed
            made.apply(Flush(flushes))
        elif action == "answer":
            for _ in range(min(amount, len(made.wire))):
                made.answer()
        elif action == "lose" and open_now:
            unknown = [number for _, group in made.wire for number in group]
            # The target may have taken what was under way, up to some delivery.
            for _, group in list(made.wire)[: amount - 1]:
                if all(verdict(number, made.now) is None for number in group):
                    made.stored += group
            maybe_twice |= set(unknown)
            made.lose()
            open_now = False
        elif action == "open" and made.wants_open:
            made.open(credit=amount)
            open_now = True
        elif action in ("busy", "odd", "well"):
            mood[0] = {"busy": BUSY, "odd": ODD, "well": None}[action]
            probes_possible |= action == "odd"
        elif action == "wait":
            made.now += amount
            made.apply(Tick())
        elif action == "credit" and open_now:
            made.credit += amount
            made.apply(Granted(made.credit))
        for number in made.flushed:
            assert not [row for row in made.unsettled if row < rows_before[number]]
        assert set(made.settled) <= set(made.stored)
        assert made.machine.unfinished == len(made.unsettled)

    # The end: the target works, and one more message comes, with which the last refused ones are detected.
    mood[0] = None
    blocks = settings_.block_refused
    if blocks:
        poison.clear()
    for _ in range(200):
        if made.wants_open:
            made.open()
        elif made.machine.credit < 100:
            made.credit = 1_000_000
            made.apply(Granted(1_000_000))
        made.pass_time(1.0)
        if not made.unsettled:
            break
        if made.machine.room > 0 and made.handed < 200:
            made.hand_over(1)
    assert made.failed is None
    assert made.unsettled == []

    # Nothing lost, nothing doubled but where a connection was lost.
    assert sorted(set(made.stored) | set(made.disposed)) == list(range(made.handed))
    assert not set(made.settled) & set(made.disposed)
    assert len(made.settled) == len(set(made.settled))
    doubled = {number for number in set(made.stored) if made.stored.count(number) > 1}
    assert doubled <= maybe_twice

    # Order of first arrival: what was never refused, and in no refused envelope, follows all that was handed over before it
    # and never refused either.
    assert all(poison[number] for number in set(made.disposed))
    probes_possible &= not blocks
    if not settings_.envelope_messages and not takes and not probes_possible:
        first = list(dict.fromkeys(made.stored))
        kept = [number for number in first if number not in refused]
        assert kept == sorted(kept)
    if settings_.window == 1 and not probes_possible:
        first = list(dict.fromkeys(made.stored))
        assert first == sorted(first)


# ---- envelopes that are refused in part


@pytest.mark.parametrize("refusal", [BUSY, ODD, BAD, NO_OUTCOME])
def test_what_is_stored_of_an_envelope_that_is_refused_is_not_sent_again_i6(refusal: Refusal) -> None:
    made = bench(envelope_messages=6)
    made.hand_over(6)
    ordinal, numbers = made.wire.popleft()
    assert numbers == list(range(6))
    made.stored += [1, 2, 5]
    made.apply(Outcome(ordinal, ordinal, refusal, (1, 2, 5)))
    assert sorted(made.settled) == [1, 2, 5]
    made.pass_time(5)
    assert sorted(made.stored) == list(range(6))
    assert sorted(made.settled) == list(range(6))
    assert made.disposed == {}


def test_what_is_stored_of_an_envelope_is_settled_before_the_machine_fails_i6() -> None:
    made = bench(envelope_messages=3)
    made.hand_over(3)
    made.apply(Outcome(0, 0, MISSING, (1,)))
    assert made.failed is not None
    assert made.settled == [1]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_envelopes_that_are_refused_in_part_lose_and_double_nothing_i6(data: st.DataObject) -> None:
    made = bench(envelope_messages=5, set_aside_seconds=1000.0)
    made.hand_over(data.draw(st.integers(1, 20)))
    for _ in range(30):
        if made.wire:
            ordinal, numbers = made.wire.popleft()
            taken = sorted(data.draw(st.sets(st.integers(0, len(numbers) - 1))))
            made.stored += [numbers[each] for each in taken]
            whole = len(taken) == len(numbers)
            refusal = (
                None
                if whole
                else data.draw(st.sampled_from([BUSY, ODD, NO_OUTCOME, BAD if len(numbers) > 1 else BUSY]))
            )
            made.apply(Outcome(ordinal, ordinal, refusal, () if whole else tuple(taken)))
        elif data.draw(st.booleans()):
            made.hand_over(data.draw(st.integers(1, 5)))
        made.now += 0.5
        made.apply(Tick())
    made.pass_time(20)
    assert sorted(made.stored) == list(range(made.handed))
    assert sorted(made.settled) == list(range(made.handed))


# ---- a target that reports that it accepts nothing


def test_a_target_that_reports_a_stop_pauses_the_source_and_has_as_long_as_it_takes() -> None:
    """Given up after a time, what it has not read yet would be sent again: twice there once it continues."""
    machine = Delivery(DeliverySettings(timeout_seconds=30.0))
    machine.on(Opened(), 0.0)
    machine.on(Granted(10), 0.0)
    machine.on(HandedOver([message(0)], [7]), 0.0)
    assert machine.on(Stopped("low on memory"), 1.0) == [Pause("low on memory")]
    assert (machine.is_stopped, machine.blocked_by) == (True, "low on memory")
    assert machine.on(Tick(), 1000.0) == []
    assert machine.on(Stopped(""), 1001.0) == [Resume()]
    assert machine.on(Outcome(0, 0), 1002.0) == [Settle([7])]
    assert not machine.is_stopped


def test_no_time_out_of_resent_messages_passes_during_a_stop() -> None:
    machine = Delivery(DeliverySettings(timeout_seconds=30.0))
    machine.on(Opened(), 0.0)
    machine.on(Granted(10), 0.0)
    machine.on(HandedOver([message(0)], [7]), 0.0)
    machine.on(Outcome(0, 0, BUSY), 1.0)
    machine.on(Granted(0), 2.0)
    machine.on(Stopped("low on memory"), 2.0)
    assert machine.deadline(3.0) == math.inf
    machine.on(Tick(), 1000.0)
    assert not machine.has_failed
    machine.on(Stopped(""), 1001.0)
    effects = machine.on(Granted(10), 1001.0)
    assert any(isinstance(each, Send) for each in effects), "the retry is due"
    assert machine.deadline(1001.0) == 1031.0


def test_a_stop_ends_with_the_connection() -> None:
    machine = Delivery(DeliverySettings(timeout_seconds=30.0))
    machine.on(Opened(), 0.0)
    machine.on(Stopped("low on memory"), 1.0)
    machine.on(Lost(BUSY), 2.0)
    assert not machine.is_stopped
