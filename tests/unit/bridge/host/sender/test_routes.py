"""The routes of a sink, without its thread: the test sets the time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.bridge.sender_fixture import FakeSystem, encoded, spec
from isthmus.amqp import section
from isthmus.bridge.delivery_event import Disposition, Outcome
from isthmus.bridge.host.sender.routes import SenderRoutes
from isthmus.bridge.host.sender.rows import Part
from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import End
from isthmus.errors import IsthmusError

ODD = Refusal(RefusalKind.UNCLEAR, "x:odd", "no reason is given")


class Recorder:
    """What is reported to the reader."""

    def __init__(self) -> None:
        self.settled: list[int] = []
        self.disposed: dict[int | None, str] = {}

    def ready(self, handle: int) -> None: ...

    def settle(self, handle: int, positions: Any) -> None:
        self.settled += positions

    def dispose(self, handle: int, position: int | None, disposition: Disposition, route: str) -> None:
        self.disposed[position] = disposition.kind

    def pause(self, handle: int, text: str) -> None: ...

    def resume(self, handle: int) -> None: ...

    def failed(self, handle: int, error: IsthmusError, is_fatal: bool) -> None: ...

    def may_send(self, claim: str) -> bool:
        return True


@pytest.fixture
def system() -> Iterator[FakeSystem]:
    found = FakeSystem()
    yield found
    found.discard()


@pytest.mark.parametrize("is_diverted", [False, True])
def test_what_a_target_refuses_is_remembered_from_one_opening_to_the_next_i6(
    system: FakeSystem, is_diverted: bool
) -> None:
    reported = Recorder()
    routes = SenderRoutes(system, reported)
    diverts = {"d": End("fake", "b", {"entity": "d"})} if is_diverted else {}
    numbers = iter(range(1, 9))

    def opening(now: float, position: int, refusal: Refusal | None) -> None:
        """An opening with one message, which ends before a fault is detected."""
        number = next(numbers)
        system.decide = lambda first, last: [Outcome(first, last, refusal)]
        routes.open(number, spec("r", diverts=diverts), "", now)
        data, offsets = encoded([section.encode_message(b"%d" % position)])
        diverted = [(position, Disposition("divert:d", "why", ""), data)] if is_diverted else []
        part = Part([], b"", [], (), None, diverted) if is_diverted else Part([position], data, offsets)
        routes.step({}, now)
        routes.add(number, part)
        for _ in range(4):
            routes.step({}, now)
        routes.close(number)

    opening(0.0, 5, ODD)
    opening(60.0, 6, None)
    assert (reported.settled, reported.disposed) == ([] if is_diverted else [6], {6: "divert"} if is_diverted else {})
    opening(120.0, 7, ODD)
    assert 7 not in reported.disposed  # it was refused once
    opening(180.0, 5, ODD)
    assert reported.disposed[5] == "dead-letter"
