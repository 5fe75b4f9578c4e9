"""What is left of a message's time to live is measured by the clock of the namespace that contains it, not by the worker's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.bridge.hosted_lease import carry, queue_route
from harness.client.fault_client import connected
from isthmus.amqp import section
from isthmus.amqp.section import Header
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Management, Sender

QUEUE = "orders"
LOCK_SECONDS = 30.0
CONFIG = f"queues: {{{QUEUE}: {{lock_duration: 30s}}}}"
TTL_MS = 120_000
AGE_SECONDS = 2.0


@pytest.fixture(name="target", scope="module")
def _target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamespaceProcess]:
    with namespace(tmp_path_factory.mktemp("target"), config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("ahead_seconds", [-60, 60])
@pytest.mark.parametrize("lock_seconds", [LOCK_SECONDS, 0.0])
def test_a_copy_lives_as_long_as_is_left_whatever_the_workers_clock_says(
    tmp_path: Path, target: NamespaceProcess, ahead_seconds: int, lock_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock duration, a message that the source waits for shows the time."""
    with ExitStack() as stack:
        arguments = ("--clock-offset", str(ahead_seconds))
        source = stack.enter_context(namespace(tmp_path / "source", config=CONFIG, arguments=arguments))
        began = time.monotonic()
        if lock_seconds:
            publish(source)
            time.sleep(AGE_SECONDS)
        monkeypatch.setenv("SOURCE", source.connection_string)
        monkeypatch.setenv("TARGET", target.connection_string)
        route = queue_route(
            {"connection": "env:SOURCE", "entity": QUEUE, "lock_seconds": str(lock_seconds)},
            {"connection": "env:TARGET", "entity": QUEUE},
        )
        with ThreadPoolExecutor(1) as executor:
            moved = executor.submit(carry, tmp_path, route, 1)
            if not lock_seconds:
                time.sleep(AGE_SECONDS)  # the link waits
                publish(source)
            moved.result(60)
    longest_ms = int((time.monotonic() - began) * 1000)  # of a slow machine; far from a minute
    left_ms = take_ttl_ms(target)
    shortest_ms = int(AGE_SECONDS * 1000) if lock_seconds else 0
    assert TTL_MS - longest_ms - 1000 <= left_ms <= TTL_MS - shortest_ms


def publish(ns: NamespaceProcess) -> None:
    with connected(ns, QUEUE) as client:
        message = section.encode_message(b"x", header=Header(ttl_ms=TTL_MS))
        Sender(client, QUEUE).wait_ready().send_all([message])


def take_ttl_ms(ns: NamespaceProcess) -> int:
    """The time to live of the message that came last."""
    with connected(ns, QUEUE) as client:
        message = Management(client, QUEUE).peek(0, 100)[-1]
    return section.decode_header(message, section.locate(message).header).ttl_ms or 0
