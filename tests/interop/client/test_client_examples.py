"""The examples of docs/how-to/receive-from-two-regions.md, as they are written there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.client.client_receiver import left, make_message, send
from isthmus.testing.namespace import NamespaceProcess, namespace

pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
PAGE = Path(__file__).parents[3] / "docs/how-to/receive-from-two-regions.md"
CONFIG = "queues: {orders: {}}\n"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    folder = tmp_path_factory.mktemp("pair")
    with namespace(folder / "a", config=CONFIG) as a, namespace(folder / "b", config=CONFIG) as b:
        yield a, b


def example(name: str) -> str:
    found = re.search(rf"`{re.escape(name)}`.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found.group(1)


def environment(pair: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path) -> dict[str, str]:
    a, b = pair
    return {
        "EWR_CONNECTION": a.connection_string,
        "JFK_CONNECTION": b.connection_string,
        "SEEN": str(tmp_path / "seen.db"),
    }


def test_the_worker_handles_each_message_once_and_ends_on_sigterm(
    pair: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path
) -> None:
    names = [f"w{number}" for number in range(20)]
    for ns in pair:
        send(ns, "orders", [make_message(name) for name in names])
    worker = subprocess.Popen(
        [sys.executable, "-c", example("worker.py")],
        stdout=subprocess.PIPE,
        env={**os.environ, **environment(pair, tmp_path)},
        text=True,
    )
    assert worker.stdout is not None
    lines = [worker.stdout.readline() for _ in names]
    assert [left(ns, "orders") for ns in pair] == [[], []]
    worker.terminate()
    rest, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert rest == ""
    assert sorted(lines) == sorted(f"handled {name}\n" for name in names)


async def test_the_lifespan_handles_messages_while_the_application_runs(
    pair: tuple[NamespaceProcess, NamespaceProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    for name, value in environment(pair, tmp_path).items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    exec(example("lifespan.py"), names)
    for ns in pair:
        await asyncio.to_thread(send, ns, "orders", [make_message("l1"), make_message("l2")])
    async with names["lifespan"](None) as state:
        limit = time.monotonic() + 30
        while state["receiver"].statistics().suppressed < 2:
            assert time.monotonic() < limit
            await asyncio.sleep(0.05)
    assert sorted(names["handled"]) == ["l1", "l2"]
