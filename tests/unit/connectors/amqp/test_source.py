"""isthmus.connectors.amqp.source"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from harness.world.still_carrier import STILL
from isthmus.amqp.section import encode_message
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Exhausted, SourceLost, SourceOpened
from isthmus.connectors.amqp import copy_limit
from isthmus.connectors.amqp.option import read_source
from isthmus.connectors.amqp.source import SETTLED, AmqpSource
from isthmus.connectors.servicebus.port.end import Step
from isthmus.connectors.servicebus.port.outcome_wait import OUTCOME_SECONDS, OutcomeWait
from isthmus.connectors.servicebus.port.pool import ConnectionPool
from isthmus.errors import ConnectionLostError


@pytest.mark.parametrize(("mode", "kind"), [(0, SourceOpened), (2, SourceOpened), (SETTLED, SourceLost)])
def test_i5_a_broker_that_settles_what_it_sends_is_refused(mode: int, kind: type) -> None:
    """What was under way when a process dies would be lost."""
    pool = ConnectionPool()
    source = AmqpSource(pool, 1, read_source({"url": "amqp://127.0.0.1", "entity": "q"}), only_present=False)
    receiver: Any = SimpleNamespace(
        attached=True,
        error=None,
        arrived=[],
        credit=0,
        drained=True,
        link=SimpleNamespace(peer=SimpleNamespace(snd_settle_mode=mode)),
        client=SimpleNamespace(error=ConnectionLostError("gone"), held_seconds=0.0),
        take=list,
    )
    source.step, source._receiver = Step.ATTACHING, receiver
    (event,) = source.poll(0.0)
    assert type(event) is kind
    if isinstance(event, SourceLost):
        assert event.is_fatal
    pool.close()


@pytest.mark.parametrize("held_seconds", [0.0, 60.0])
def test_i6_the_end_is_not_reported_while_the_broker_may_hold_messages_for_a_lost_link(held_seconds: float) -> None:
    """As over a network that hangs: for the broker they are in transit, and the queue has nothing to give."""
    pool = ConnectionPool()
    options = read_source({"url": "amqp://127.0.0.1", "entity": "q"})

    def receiver(**more: Any) -> Any:
        link = SimpleNamespace(peer=SimpleNamespace(snd_settle_mode=0))
        reported = {
            "attached": True,
            "error": None,
            "arrived": [],
            "credit": 5,
            "received": 0,
            "drained": True,
            "take": list,
        }
        return SimpleNamespace(
            **reported, link=link, drain=lambda: None, grant=lambda credit: None, close=lambda: None, **more
        )

    lost = AmqpSource(pool, 1, options, only_present=True)
    lost.step = Step.ATTACHED
    error = ConnectionLostError("nothing came")
    lost._receiver = receiver(client=SimpleNamespace(error=error, held_seconds=held_seconds))
    lost.fail(error)
    assert type(lost.poll(100.0)[-1]) is SourceLost
    for source in (lost, AmqpSource(pool, 2, options, only_present=True)):  # within the opening, and in the next one
        source.step = Step.ATTACHING
        source._receiver = receiver(client=SimpleNamespace(error=None))
        source._receiver.__dict__["credit"] = 5
        reported: list[float] = []
        for now in (100.1, 100.5, 101.0, 130.0, 159.0, 160.0, 160.5, 161.0):
            reported += [now for event in source.poll(now) if isinstance(event, Exhausted)]
        assert reported == ([101.0] if not held_seconds else [160.5])
    pool.close()


def test_a_source_grants_no_credit_while_many_copies_are_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copy_limit, "MOST_COPIES", 1)
    pool = ConnectionPool()
    options = read_source({"url": "amqp://127.0.0.1", "entity": "q", "dead_letters": "dead"})
    source = AmqpSource(pool, 1, options, only_present=False)
    granted: list[int] = []
    source._receiver = SimpleNamespace(error=None, credit=0, arrived=[], grant=granted.append, take=list)  # type: ignore[assignment]
    source.step = Step.ATTACHED
    assert source._dead_letters is not None
    sender: Any = SimpleNamespace(
        error=None, sendable=9, outcomes=deque(), send=lambda payloads: None, wait=OutcomeWait(STILL), sent=1
    )
    source._dead_letters._sender = sender
    source._dead_letters.send(5, encode_message(b"x"), Disposition("dead-letter", "Odd", ""))
    source.grant(3)
    source.poll(0.0)
    assert granted == []
    sender.outcomes.append(SimpleNamespace(first=0, last=0, error=None))
    source.poll(0.0)
    assert granted == [3]
    source._receiver = source._dead_letters._sender = None
    pool.close()


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_closed_source_gives_nothing_back_whose_copy_is_in_transit(is_stored: bool) -> None:
    """It would come again, and be set aside again."""
    pool = ConnectionPool()
    options = read_source({"url": "amqp://127.0.0.1", "entity": "q", "dead_letters": "dead"})
    source = AmqpSource(pool, 1, options, only_present=True)
    reported: list[tuple[int, int, str]] = []
    source._settle = lambda first, last, state: reported.append((first, last, type(state).__name__))  # type: ignore[method-assign]
    source._receiver = SimpleNamespace(  # type: ignore[assignment]
        error=None,
        credit=0,
        client=SimpleNamespace(error=ConnectionLostError("gone"), held_seconds=0.0),
        take=list,
        close=lambda: None,
    )
    source.step = Step.ATTACHED
    dead = source._dead_letters
    assert dead is not None
    sender: Any = SimpleNamespace(
        error=None, sendable=9, outcomes=deque(), send=lambda payloads: None, client=SimpleNamespace(error=None)
    )
    sender.close = lambda: None
    sender.wait = OutcomeWait(STILL)
    dead._sender = sender
    dead.send(5, encode_message(b"x"), Disposition("dead-letter", "Odd", ""))
    source.close()
    assert reported == [(0, 4, "Released"), (6, (1 << 64) - 1, "Released")]
    assert not source.leave(source.leave_by - 1)
    if is_stored:
        sender.outcomes.append(SimpleNamespace(first=0, last=0, error=None))
        assert source.leave(source.leave_by - 1)
        assert reported[2:] == [(5, 5, "NoneType")]
    else:
        assert source.leave(source.leave_by)
        assert reported[2:] == []
    assert source.has_left
    pool.close()


def test_a_source_is_lost_where_no_outcome_of_a_copy_comes() -> None:
    """Its message stayed unsettled until the lease ended: at the end of what exists the route waited for it."""
    pool = ConnectionPool()
    options = read_source({"url": "amqp://127.0.0.1", "entity": "q", "dead_letters": "dead"})
    source = AmqpSource(pool, 1, options, only_present=True)
    source.step = Step.ATTACHED
    assert source._dead_letters is not None
    sender: Any = SimpleNamespace(
        path="dead", wait=OutcomeWait(STILL), sent=1, client=SimpleNamespace(error=ConnectionLostError("gone"))
    )
    sender.wait.since = 5.0
    source._dead_letters._sender = sender
    assert source.deadline(6.0) <= 5.0 + OUTCOME_SECONDS
    assert not any(isinstance(each, SourceLost) for each in source.poll(4.0 + OUTCOME_SECONDS))
    assert any(isinstance(each, SourceLost) for each in source.poll(5.0 + OUTCOME_SECONDS))
    pool.close()
