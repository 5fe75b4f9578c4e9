"""isthmus.bridge.delivery.back_pressure."""

from __future__ import annotations

import pytest

from isthmus.bridge.delivery.back_pressure import FEW_REFUSED, BackPressure
from isthmus.bridge.delivery.outbox import Outbox
from isthmus.bridge.delivery.recovery import Recovery
from isthmus.bridge.delivery.settings import DeliverySettings
from isthmus.bridge.refusal import Refusal, RefusalAccount, RefusalKind

FULL = Refusal(RefusalKind.BLOCKED, "full", "it is full")
BAD = Refusal(RefusalKind.MESSAGE, "bad", "it is malformed")


class Route:
    """A machine that was handed so many messages."""

    def __init__(self, messages: int, **settings: bool) -> None:
        self.settings = DeliverySettings(**settings)  # type: ignore[arg-type]
        self.outbox = Outbox()
        self.outbox.add([b"x"] * messages, range(100, 100 + messages))
        self.refusals = RefusalAccount(60.0, needs_others=True)
        self.recovery = Recovery(lambda attempt: 1.0)
        self.pressure = BackPressure(self.settings, self.outbox, self.refusals, self.recovery)


def test_i1_a_target_that_is_full_holds_the_source_while_it_recovers() -> None:
    route = Route(1)
    assert route.pressure.reason == ""
    route.recovery.begin(0.0, FULL)
    assert route.pressure.reason == "full: it is full"
    route.recovery.end()
    assert route.pressure.reason == ""


def test_i3_a_message_that_is_refused_holds_nothing_while_it_is_the_only_one() -> None:
    route = Route(1)
    route.recovery.begin(0.0, BAD)
    assert route.pressure.reason == ""
    route.outbox.add([b"x"], [101])
    assert route.pressure.reason == "message 100 is refused: bad: it is malformed"


@pytest.mark.parametrize("setting", ["block_refused", "is_strict"])
def test_where_refusals_block_the_first_one_holds_the_source(setting: str) -> None:
    route = Route(1, **{setting: True})
    route.recovery.begin(0.0, BAD)
    assert route.pressure.reason == "message 100 is refused: bad: it is malformed"


def test_i3_a_few_that_are_refused_take_no_room() -> None:
    route = Route(FEW_REFUSED + 10)
    window = route.settings.window + route.settings.waiting
    assert route.pressure.room(0) == min(route.settings.waiting, window - FEW_REFUSED - 10)
    before = route.pressure.room(-window)
    for index in range(FEW_REFUSED + 10):
        route.refusals.refuse(index, 0.0)
    assert route.pressure.room(-window) == before + FEW_REFUSED


def test_what_waits_to_be_sent_takes_room() -> None:
    route = Route(0)
    assert route.pressure.room(0) - route.pressure.room(3) == 3
