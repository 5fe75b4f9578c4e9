"""isthmus.broker.process."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.broker import process
from isthmus.broker.server import Options

HAPPENED: list[str] = []


class FakeServer:
    """A namespace that notes what is done to it."""

    def __init__(self, options: Options) -> None:
        self.name = options.data.name
        self.ports: dict[str, int] = {}

    async def start(self) -> None:
        HAPPENED.append(f"start {self.name}")

    async def stop(self) -> None:
        HAPPENED.append(f"stop {self.name}")

    def describe(self) -> dict[str, Any]:
        return {"name": self.name}


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set for the process that runs the tests."""
    HAPPENED.clear()
    nothing = lambda *_: None  # noqa: E731
    monkeypatch.setattr(process, "Server", FakeServer)
    monkeypatch.setattr(process, "allow_many", nothing)
    monkeypatch.setattr(process, "sys", SimpleNamespace(setswitchinterval=nothing))
    monkeypatch.setattr(process, "gc", SimpleNamespace(collect=nothing, freeze=nothing, set_threshold=nothing))
    monkeypatch.setattr(logging.getLogger(), "handlers", [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_all_the_last_one_first_i2(number: signal.Signals) -> None:
    def ready(described: list[dict[str, Any]]) -> None:
        HAPPENED.append(f"ready {[each['name'] for each in described]}")
        os.kill(os.getpid(), number)

    await process.serve([Options(Path("one")), Options(Path("two"))], ready)
    assert HAPPENED == ["start one", "start two", "ready ['one', 'two']", "stop two", "stop one"]
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(each)


async def test_no_callback_runs_where_one_does_not_start_i1(monkeypatch: pytest.MonkeyPatch) -> None:
    start = FakeServer.start

    async def fail(server: FakeServer) -> None:
        if server.name == "two":
            raise OSError("the port is taken")
        await start(server)

    monkeypatch.setattr(FakeServer, "start", fail)
    with pytest.raises(OSError, match="taken"):
        await process.serve([Options(Path("one")), Options(Path("two"))], lambda _: HAPPENED.append("ready"))
    assert HAPPENED == ["start one", "stop one"]
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().remove_signal_handler(each)
