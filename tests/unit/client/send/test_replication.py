from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusAuthorizationError, ServiceBusError

from isthmus.client.failure import Failure
from isthmus.client.send.lane import Attempt
from isthmus.client.send.replication import Keep, RegionsUnavailableError, Replication, Save, SendResult, Side, Try

PRIMARY, SECONDARY = Side.PRIMARY, Side.SECONDARY
OK = Attempt(seconds=0.01)
UNREACHABLE = Attempt(ConnectionError("gone"), Failure.GONE, is_definite=True)
CUT = Attempt(ConnectionError("cut"), Failure.GONE, is_definite=False, was_sent=True, was_open=True, seconds=0.1)
SILENT = Attempt(TimeoutError("silent"), Failure.UNKNOWN, is_definite=False, was_sent=True, seconds=0.8)
LARGE = Attempt(MessageSizeExceededError(), Failure.REFUSED, was_sent=True)
FORBIDDEN = Attempt(ServiceBusAuthorizationError(), Failure.FORBIDDEN)


class Script:
    """Plays the two namespaces for one send after the other, and notes what was asked for."""

    def __init__(self, replication: Replication) -> None:
        self.replication = replication
        self.now = 100.0
        self.asked: list[Any] = []
        self.behind: set[Side] = set()
        self.disk_is_full = False
        self.disk_is_unsure = False

    def send(self, **answers: Attempt | list[Attempt]) -> SendResult:
        left = {Side(name): list(each) if isinstance(each, list) else [each] for name, each in answers.items()}
        self.asked = []
        steps = self.replication.send(lambda: self.now, lambda side: side in self.behind)
        answer: Mapping[Side, Attempt] | None = None
        while True:
            try:
                effect = steps.send(answer)
            except StopIteration as stop:
                result: SendResult = stop.value
                return result
            self.asked.append(effect)
            answer = {side: left[side].pop(0) for side in effect.sides} if isinstance(effect, Try) else None
            if isinstance(effect, Keep) and self.disk_is_full:
                answer = {effect.side: Attempt(OSError("full"), Failure.FULL, is_definite=not self.disk_is_unsure)}


def passive(**options: Any) -> Script:
    return Script(Replication("passive", "orders", **options))


def active(**options: Any) -> Script:
    return Script(Replication("active", "orders", **options))


# ---- passive


def test_passive_sends_to_the_active_one_alone() -> None:
    script = passive()
    assert script.send(primary=OK).taken == ("primary",)
    assert script.asked == [Try((PRIMARY,))]


@pytest.mark.parametrize("failure", [UNREACHABLE, SILENT])
def test_passive_takes_the_other_and_swaps_the_roles(failure: Attempt) -> None:
    """I1."""
    script = passive()
    result = script.send(primary=failure, secondary=OK)
    assert result.taken == ("secondary",)
    assert result.active == "secondary"
    assert script.asked == [Try((PRIMARY,)), Try((SECONDARY,)), Save(SECONDARY)]
    script.send(secondary=OK)
    assert script.asked == [Try((SECONDARY,))]


def test_an_unknown_outcome_is_reported() -> None:
    """I3."""
    assert passive().send(primary=SILENT, secondary=OK).unknown == ("primary",)
    assert passive().send(primary=UNREACHABLE, secondary=OK).unknown == ()


def test_if_both_fail_the_roles_stay_and_the_error_is_raised() -> None:
    """I1."""
    script = passive()
    with pytest.raises(RegionsUnavailableError) as raised:
        script.send(primary=SILENT, secondary=UNREACHABLE)
    assert script.replication.active is PRIMARY
    assert raised.value.failures == {"primary": "unknown", "secondary": "gone"}
    assert raised.value.unknown == ("primary",)
    assert "send it again with the same MessageId" in str(raised.value)


def test_the_error_is_one_of_the_sdks_and_survives_pickling() -> None:
    error = RegionsUnavailableError("orders", {"primary": "gone"}, ["primary"])
    assert isinstance(error, ServiceBusError)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.retryable


def test_an_error_of_the_message_is_raised_as_it_is_and_nothing_is_swapped() -> None:
    """I5."""
    script = passive()
    with pytest.raises(MessageSizeExceededError):
        script.send(primary=LARGE)
    assert script.asked == [Try((PRIMARY,))]
    assert not script.replication.circuits[PRIMARY].is_open


def test_a_wrong_key_is_no_outage_unless_it_is_said_to_be() -> None:
    with pytest.raises(ServiceBusAuthorizationError):
        passive().send(primary=FORBIDDEN)
    script = passive(fail_over_on=frozenset({Failure.GONE, Failure.FORBIDDEN}))
    assert script.send(primary=FORBIDDEN, secondary=OK).active == "secondary"


def test_a_connection_that_was_lost_meanwhile_is_opened_again_before_the_roles_swap() -> None:
    script = passive()
    result = script.send(primary=[CUT, OK])
    assert result.taken == ("primary",)
    assert result.active == "primary"
    assert script.asked == [Try((PRIMARY,)), Try((PRIMARY,), 0.1)]


def test_there_is_no_second_attempt_with_too_little_time() -> None:
    late = Attempt(CUT.error, Failure.GONE, False, True, True, 0.7)
    script = passive()
    assert script.send(primary=late, secondary=OK).active == "secondary"


def test_what_failed_a_moment_ago_is_not_tried_and_later_it_is() -> None:
    script = passive()
    with pytest.raises(RegionsUnavailableError):
        script.send(primary=UNREACHABLE, secondary=UNREACHABLE)
    with pytest.raises(RegionsUnavailableError, match="not tried"):
        script.send()
    assert script.asked == []
    script.now += 5
    assert script.send(primary=OK).taken == ("primary",)


def test_a_send_that_was_late_does_not_swap_back_what_another_has_swapped() -> None:
    script = passive()
    replication = script.replication
    slow = replication.send(lambda: 0.0)
    assert next(slow) == Try((PRIMARY,))
    script.send(primary=UNREACHABLE, secondary=OK)
    assert replication.active is SECONDARY
    with pytest.raises(StopIteration):
        slow.send({PRIMARY: OK})
    assert replication.active is SECONDARY
    assert replication.swaps == 1


# ---- active


def test_active_sends_to_both_at_the_same_time() -> None:
    script = active()
    assert script.send(primary=OK, secondary=OK).taken == ("primary", "secondary")
    assert script.asked == [Try((PRIMARY, SECONDARY))]


@pytest.mark.parametrize("failure", [UNREACHABLE, SILENT, FORBIDDEN])
def test_active_succeeds_with_one_and_keeps_the_message_for_the_other(failure: Attempt) -> None:
    """I2."""
    script = active(has_outbox=True)
    result = script.send(primary=failure, secondary=OK)
    assert result.taken == ("secondary",)
    assert result.pending == ("primary",)
    assert script.asked == [Try((PRIMARY, SECONDARY)), Keep(PRIMARY)]
    assert result.unknown == (("primary",) if failure is SILENT else ())


def test_without_an_outbox_the_other_one_is_reported_as_missed() -> None:
    result = active().send(primary=OK, secondary=UNREACHABLE)
    assert result.missed == ("secondary",)
    assert result.pending == ()


def test_an_outbox_that_is_full_does_not_fail_a_send_that_one_side_took() -> None:
    """I4."""
    script = active(has_outbox=True)
    script.disk_is_full = True
    result = script.send(primary=OK, secondary=UNREACHABLE)
    assert result.taken == ("primary",)
    assert result.missed == ("secondary",)
    assert result.pending == ()


def test_an_outbox_whose_disk_failed_while_it_synced_may_deliver_the_message_all_the_same() -> None:
    """I3."""
    script = active(has_outbox=True)
    script.disk_is_full = script.disk_is_unsure = True
    result = script.send(primary=OK, secondary=UNREACHABLE)
    assert (result.missed, result.unknown) == (("secondary",), ("secondary",))


@pytest.mark.parametrize(("script", "error"), [(passive(), FORBIDDEN), (passive(), LARGE), (active(), LARGE)])
def test_an_error_that_is_raised_as_it_is_says_who_may_have_the_message(script: Script, error: Attempt) -> None:
    """I3: of a send that another side gave no answer to."""
    with pytest.raises(ServiceBusError) as raised:
        script.send(primary=SILENT, secondary=error)
    assert raised.value.__notes__[-1] == "primary may have the message: send it again with the same MessageId"


def test_while_an_outbox_is_not_empty_messages_go_behind_it() -> None:
    """The order at that side is kept."""
    script = active(has_outbox=True)
    script.behind = {SECONDARY}
    assert script.send(primary=OK).pending == ("secondary",)
    assert script.asked == [Try((PRIMARY,)), Keep(SECONDARY)]


def test_with_nothing_else_a_side_that_is_behind_is_tried_at_once() -> None:
    script = active(has_outbox=True)
    script.behind = {SECONDARY}
    result = script.send(primary=UNREACHABLE, secondary=OK)
    assert result.taken == ("secondary",)
    assert result.pending == ("primary",)


def test_what_one_side_refuses_for_itself_is_not_kept_for_it() -> None:
    result = active(has_outbox=True).send(primary=OK, secondary=LARGE)
    assert result.missed == ("secondary",)


@pytest.mark.parametrize(
    "failure",
    [
        Attempt(ValueError("the file of the endpoint cannot be read"), Failure.MISUSE),
        Attempt(ValueError("link"), Failure.REFUSED),
    ],
)
def test_what_is_wrong_with_a_side_is_not_wrong_with_the_message(failure: Attempt) -> None:
    """I2: it was not sent, and is kept for the side."""
    script = active(has_outbox=True)
    result = script.send(primary=OK, secondary=failure)
    assert (result.pending, result.missed) == (("secondary",), ())
    script.behind = {SECONDARY}
    assert script.send(primary=failure, secondary=OK).taken == ("secondary",)


def test_active_fails_if_no_side_took_it() -> None:
    with pytest.raises(RegionsUnavailableError):
        active(has_outbox=True).send(primary=UNREACHABLE, secondary=SILENT)
    with pytest.raises(MessageSizeExceededError):
        active(has_outbox=True).send(primary=SILENT, secondary=LARGE)
    with pytest.raises(ServiceBusAuthorizationError):
        active().send(primary=UNREACHABLE, secondary=FORBIDDEN)
