"""The verdicts of copies that a tool sends to a route's target."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.bridge.refusal import Refusal, RefusalKind
from isthmus.bridge.route_spec import End, RouteSpec
from isthmus.operations import copy_target
from isthmus.operations.copy_target import CopyTarget, Kept, Sent, TargetGoneError
from isthmus.testing.bridge.connector import MemoryConnector
from isthmus.testing.bridge.entity import Entity
from isthmus.testing.bridge.fault import Step
from isthmus.testing.bridge.message import message
from isthmus.testing.bridge.system import System

SPEC = RouteSpec(name="r", source=End("memory", "a", {"entity": "from"}), target=End("memory", "b", {"entity": "to"}))
MESSAGES = [message(f"m/{number}") for number in range(5)]


@pytest.fixture
def system() -> System:
    made = System()
    made.queue("to")
    return made


@pytest.fixture
def open_target(system: System) -> Callable[[], CopyTarget]:
    return lambda: CopyTarget(SPEC, "", lambda kind: MemoryConnector(system))


def refuse_by(system: System, kind: RefusalKind, *keys: str) -> Entity:
    entity = system.entity("to")
    refusal = Refusal(kind, "amqp:x", "no")
    entity.faults.verdict = lambda key: refusal if key in keys else None
    return entity


def test_i1_each_message_gets_its_outcome(system: System, open_target: Callable[[], CopyTarget]) -> None:
    entity = refuse_by(system, RefusalKind.MESSAGE, "m/2")
    with open_target() as target:
        found = target.send(MESSAGES, lambda: None)
        assert found == [Sent(), Sent(), Kept("amqp:x: no"), Sent(), Sent()]
        assert not target.failure
        assert target.send(MESSAGES[:1], lambda: None) == [Sent()]
    assert len(entity.accepted) == 5


@pytest.mark.parametrize("kind", [RefusalKind.BLOCKED, RefusalKind.FATAL, RefusalKind.UNKNOWN])
def test_i2_nothing_is_sent_to_a_target_that_takes_nothing(
    kind: RefusalKind, system: System, open_target: Callable[[], CopyTarget]
) -> None:
    entity = refuse_by(system, kind, "m/1")
    with open_target() as target:
        assert isinstance(target.send(MESSAGES[:2], lambda: None)[1], Kept)
        assert "no" in target.failure
        entity.faults.verdict = None
        assert target.send(MESSAGES[2:], lambda: None) == [Kept(target.failure)] * 3
    assert len(entity.accepted) == 1


def test_i1_what_was_not_answered_before_the_connection_was_lost_is_kept(
    system: System, open_target: Callable[[], CopyTarget]
) -> None:
    entity = system.entity("to")
    entity.faults.lose(Step.AFTER_STORE, 2)
    with open_target() as target:
        found = target.send(MESSAGES, lambda: None)
        assert target.failure
        assert [type(each) for each in found].count(Sent) <= len(entity.accepted)
        assert any(isinstance(each, Kept) and "not confirmed" in each.text for each in found)


def test_i3_a_copy_over_the_limit_is_kept_unsent_and_the_others_are_sent(
    system: System, open_target: Callable[[], CopyTarget]
) -> None:
    """The target would end the link: nothing behind such a message could ever be sent on."""
    entity = system.entity("to")
    entity.message_bytes = max(map(len, MESSAGES))
    large = message("m/large", b"x" * entity.message_bytes)
    with open_target() as target:
        entity.message_bytes = 0
        refuse_by(system, RefusalKind.FATAL, "m/large")
        found = target.send([MESSAGES[0], large, MESSAGES[1]], lambda: None)
        assert not target.failure
    assert [type(each) for each in found] == [Sent, Kept, Sent]
    assert isinstance(found[1], Kept)
    assert found[1].text.startswith("MessageTooLarge: The message has ")
    assert len(entity.accepted) == 2


def test_a_target_that_cannot_be_opened_is_reported(system: System, open_target: Callable[[], CopyTarget]) -> None:
    system.entity("to").faults.is_gone = True
    with pytest.raises(TargetGoneError, match="b/to"):
        open_target()


def test_a_target_that_never_answers_is_given_up(
    system: System, open_target: Callable[[], CopyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_target, "SILENCE_SECONDS", 0.05)
    called: list[None] = []
    with open_target() as target:
        system.entity("to").faults.hangs = True
        system.touch()
        found = target.send(MESSAGES, lambda: called.append(None))
        assert all(isinstance(each, Kept) for each in found)
        assert target.failure
    assert called  # locks are renewed meanwhile


def test_a_fault_at_the_connection_gives_the_target_up(
    system: System, open_target: Callable[[], CopyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_target() as target:

        def faulty(*_: object) -> None:
            raise ValueError("a fault")

        monkeypatch.setattr(target._pools.get("memory"), "service", faulty)
        target.send(MESSAGES[:1], lambda: None)
        target._results.clear()
        target._credit = 0
        assert target.send(MESSAGES[:1], lambda: None) == [Kept("b/to: a fault at the connection: ValueError: a fault")]
        assert target.failure == "b/to: a fault at the connection: ValueError: a fault"
