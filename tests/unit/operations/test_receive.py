"""isthmus.operations.receive, against a scripted link."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp.performative import Accepted, Released
from isthmus.errors import OperationTimeoutError
from isthmus.operations import receive as module
from isthmus.operations.receive import Received, receive
from isthmus.transport.receiver import Deliveries


class Link:
    """A link of an entity with messages, which come ten at a time; it answers each disposition at once."""

    path = "q"
    error = None
    session_id: str | None = None
    credit = 0
    drained = False
    received = 0

    def __init__(self, messages: int) -> None:
        self.left = list(range(messages))
        self.outcomes: deque[tuple[int, int, Any]] = deque()
        self.completed: list[int] = []
        self.released: list[int] = []
        self.arrived: list[Deliveries] = []
        self.received_bytes = 0
        self.parts = 0  # of a message, which come before the first
        self.granted: list[int] = []
        self.now = 0.0
        self.renewed: list[Any] = []
        self.answers_drain = True

    def wait_attached(self, seconds: float) -> Link:
        return self

    def grant(self, credit: int) -> None:
        self.credit = credit
        self.granted.append(credit)

    def service(self) -> None:
        """Nothing comes by itself."""

    def wait(self, seconds: float) -> None:
        self.now += 0.004
        if self.parts:
            self.parts -= 1
            self.received_bytes += 2048
            return
        count = min(10, self.credit)
        numbers, self.left = self.left[:count], self.left[count:]
        if numbers:
            self.arrived.append(Deliveries(numbers[0], [b""] * len(numbers), [b"%d" % each for each in numbers]))
            self.received += len(numbers)
            self.credit -= len(numbers)

    def take(self) -> list[Deliveries]:
        taken, self.arrived = self.arrived, []
        return taken

    def drain(self) -> None:
        """What is in transit comes before the answer."""
        self.wait(0.0)
        self.credit, self.drained = 0, self.answers_drain

    def dispose(self, first: int, last: int, state: Any) -> None:
        (self.completed if state is None else self.released).extend(range(first, last + 1))
        assert state is None or isinstance(state, Released)
        self.outcomes.append((first, last, Accepted() if state is None else state))

    def close(self) -> None:
        """There is no connection to close."""
        assert sorted(self.completed + self.released) == list(range(self.received)), "every lock is given back"


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> Link:
    made = Link(25)
    monkeypatch.setattr(module, "Receiver", lambda *_, **__: made)
    management = SimpleNamespace(renew=made.renewed.extend, renew_session=made.renewed.append)
    monkeypatch.setattr(module, "Management", lambda *_: management)
    monkeypatch.setattr(module.time, "monotonic", lambda: made.now)
    return made


def received(link: Link, count: int, take: Any, wait_seconds: float = 0.01, **options: Any) -> Received:
    link.wait_answer = lambda is_met, *_: is_met() or pytest.fail("it waits")  # type: ignore[attr-defined]
    client: Any = link
    return receive(client, "q", count, wait_seconds, take, **options)


def test_all_are_handed_on_and_completed(link: Link) -> None:
    taken: list[bytes] = []
    assert received(link, 0, lambda payload, _: taken.append(payload)) == Received(25, 0, None)
    assert taken == [b"%d" % number for number in range(25)]
    assert link.completed == list(range(25))


@pytest.mark.parametrize("session_id", [None, "a"])
def test_that_no_session_has_messages_is_no_error(
    session_id: str | None, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A namespace answers once there is one; where a session is named, it answers at once."""
    waited: list[float] = []

    def unanswered(seconds: float) -> None:
        waited.append(seconds)
        raise OperationTimeoutError("no answer to attach")

    monkeypatch.setattr(link, "wait_attached", unanswered)
    reported = nullcontext() if session_id is None else pytest.raises(OperationTimeoutError)
    with reported:
        assert received(link, 1, print, in_session=True, session_id=session_id) == Received(0, 0, None)
    assert waited == [5.0 if session_id is None else 30.0]


def test_i1_where_handing_on_fails_what_was_handed_on_is_completed(link: Link) -> None:
    """As in `isthmus receive orders --max 0 | head`: what was printed does not come again."""
    taken: list[bytes] = []

    def take(payload: bytes, meanwhile: object) -> None:
        if len(taken) == 13:
            raise BrokenPipeError
        taken.append(payload)

    with pytest.raises(BrokenPipeError):
        received(link, 0, take)
    assert link.completed == list(range(13))
    assert link.released == list(range(13, link.received))


def test_i3_what_was_not_handed_on_when_it_was_stopped_is_released(link: Link) -> None:
    taken: list[bytes] = []
    is_stopped: Any = {"is_stopped": lambda: len(taken) >= 12}
    assert received(link, 0, lambda payload, _: taken.append(payload), **is_stopped) == Received(12, 0, None)
    assert link.completed == list(range(12))
    assert link.released == list(range(12, link.received))


def test_i4_a_message_that_takes_longer_to_arrive_than_the_time_to_wait_is_received(link: Link) -> None:
    link.parts = 20
    assert received(link, 0, lambda *_: None) == Received(25, 0, None)


def test_one_message_is_fetched_until_it_is_known_how_fast_they_come(link: Link) -> None:
    """Those in transit are locked already: on a slow network the locks of many would be lost before they arrive."""
    assert received(link, 0, lambda *_: None) == Received(25, 0, None)
    assert link.granted[:2] == [1, 50]


def test_i5_while_one_is_read_slowly_only_its_lock_is_kept(link: Link) -> None:
    """As in `isthmus receive orders --max 0 | less`: the locks of those behind it would expire, until they are dead letters."""
    taken: list[bytes] = []

    def take(payload: bytes, meanwhile: Callable[[], bool]) -> None:
        taken.append(payload)
        if payload == b"5":
            assert link.completed == [0], "of the run the others are not settled yet"
            link.now += 2.0
            meanwhile()
            assert (link.completed, link.released, link.renewed) == ([0], [], [])
            link.now += 2.0
            assert not meanwhile()
            assert link.completed == [0, 1, 2, 3, 4]
            assert (link.released, link.credit) == (list(range(6, link.received)), 0)
            assert link.renewed == [b""]
            meanwhile()
            link.now += 2.0
            meanwhile()
            assert link.renewed == [b"", b""]

    assert received(link, 0, take) == Received(len(taken), 0, None)
    assert link.granted[:3] == [1, 50, 1], "then one at a time until it is quick again"


def test_i2_what_was_released_is_requested_again(link: Link) -> None:
    taken: list[bytes] = []

    def take(payload: bytes, meanwhile: Callable[[], bool]) -> None:
        taken.append(payload)
        link.now += 10.0
        meanwhile()

    assert received(link, 3, take) == Received(3, 0, None)
    assert len(taken) == 3


def test_a_slow_reader_of_each_message_gets_few_at_a_time(link: Link) -> None:
    """Each is quick, and all together last longer than a lock."""
    taken: list[bytes] = []

    def take(payload: bytes, meanwhile: object) -> None:
        taken.append(payload)
        link.now += 1.0

    assert received(link, 0, take) == Received(len(taken), 0, None)
    assert link.completed[:4] == [0, 1, 2, 3]
    assert link.released[:1] == [4]


def test_a_namespace_that_does_not_answer_the_end_is_given_up(link: Link) -> None:
    link.answers_drain = False
    with pytest.raises(OperationTimeoutError, match="no answer"):
        received(link, 0, lambda *_: None)
    assert link.completed == list(range(25))


def test_i6_the_lock_of_a_session_lasts_while_its_messages_are_waited_for(link: Link) -> None:
    link.session_id, link.left = "a", []
    options: Any = {"in_session": True, "session_id": "a"}
    assert received(link, 1, lambda *_: None, 10.0, **options) == Received(0, 0, "a")
    assert set(link.renewed) == {"a"}
    assert 5 <= len(link.renewed) <= 8, "the shortest lock lasts 5 s"
