"""isthmus.connectors.amqp.source"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.bridge.port import SourceLost, SourceOpened
from isthmus.connectors.amqp.option import read_source
from isthmus.connectors.amqp.source import SETTLED, AmqpSource
from isthmus.connectors.servicebus.port.end import Step
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
        client=SimpleNamespace(error=ConnectionLostError("gone")),
        take=list,
    )
    source.step, source._receiver = Step.ATTACHING, receiver
    (event,) = source.poll(0.0)
    assert type(event) is kind
    if isinstance(event, SourceLost):
        assert event.is_fatal
    pool.close()
