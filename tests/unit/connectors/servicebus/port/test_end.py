"""The links of an end."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp.performative import Accepted
from isthmus.connectors.servicebus.port.end import MarkedSender


class _Session:
    next_delivery_id = 7

    def attach_sender(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(sendable=100, send_many=lambda *_, **__: None, credit=100, detach=lambda: None)


class _Client:
    error = None
    queued_bytes = arrived_bytes = 0
    connection = SimpleNamespace(container_id="c")

    def begin(self, _: object) -> _Session:
        return _Session()

    def end(self, _: object) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_i4_an_outcome_is_awaited_since_the_last_one_that_came_while_others_are_missing(clock: list[float]) -> None:
    sender = MarkedSender(lambda: None, _Client(), "q")  # type: ignore[arg-type]
    assert sender.wait.since == math.inf
    sender.send([b"a", b"b"])
    clock[0] = 110.0
    sender.send([b"c"])
    assert sender.wait.since == 100.0
    sender.on_disposed(7, 7, Accepted())
    assert sender.wait.since == 110.0
    sender.on_disposed(8, 9, Accepted())
    assert sender.wait.since == math.inf
    clock[0] = 120.0
    sender.send([b"d"])
    assert sender.wait.since == 120.0
