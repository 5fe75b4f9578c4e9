"""The receivers for asyncio, without namespaces."""

from __future__ import annotations

import asyncio
import threading

import pytest

from isthmus.client.aio import FailoverReceiver, ReplicatedReceiver

CONNECTION = "Endpoint=sb://localhost;SharedAccessKeyName=k;SharedAccessKey=v"


@pytest.mark.parametrize("kind", [ReplicatedReceiver, FailoverReceiver])
async def test_an_opening_that_is_cancelled_leaves_nothing_that_receives(
    kind: type[ReplicatedReceiver | FailoverReceiver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver without a reference would keep messages locked as long as the process lives."""
    receiver = kind(CONNECTION, CONNECTION, "orders")
    engine = receiver._engine
    begun, go_on = threading.Event(), threading.Event()

    def wait_open(seconds: float) -> None:
        begun.set()
        assert go_on.wait(10)

    monkeypatch.setattr(engine, "open_side", lambda side: None)
    monkeypatch.setattr(engine, "wait_open", wait_open)
    entering = asyncio.create_task(receiver.__aenter__())
    await asyncio.to_thread(begun.wait, 10)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    go_on.set()
    assert await asyncio.to_thread(engine._stopping.wait, 10)


async def test_an_opening_that_fails_leaves_nothing_that_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    receiver = ReplicatedReceiver(CONNECTION, CONNECTION, "orders")
    engine = receiver._engine

    def fail(seconds: float) -> None:
        raise ConnectionError

    monkeypatch.setattr(engine, "open_side", lambda side: None)
    monkeypatch.setattr(engine, "wait_open", fail)
    with pytest.raises(ConnectionError):
        await receiver.__aenter__()
    assert await asyncio.to_thread(engine._stopping.wait, 10)
