"""The rate from a queue in one namespace to a queue in another, through Spark and through other products.

What it is: each program gets fresh namespaces (or nodes) and the same durable messages of 1 KiB, one after the other,
and is watched by the same `measure_steady`. The queue is filled before the program starts, so that filling does not slow it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isthmus.bench.counter import Counter
from isthmus.bench.driver import queue_name
from isthmus.bench.load import fill
from isthmus.bench.peer import shovel
from isthmus.bench.peer.amqp091 import Channel091
from isthmus.bench.process import Account
from isthmus.bench.steady import Steady, measure_steady
from isthmus.errors import IsthmusError
from isthmus.testing.namespace import NamespaceProcess, namespace

__all__ = [
    "bench_namespaces",
    "child_process",
    "measure_bridge",
    "measure_sdk_loop",
    "measure_shovel",
    "queue_config",
    "raise_if_ended",
    "spark_routes",
]

_BODY_BYTES = 1024
_PUBLISH_MESSAGES = 200
_STOP_TIMEOUT_SECONDS = 60
_LOG_LINES = 25
# The SDK's loop moves about a thousand a second: it reaches its steady state with far fewer messages.
SDK_LOOP_SHARE = 20


def measure_bridge(folder: Path, messages: int, options: Sequence[str] = ()) -> Steady:
    """Drain messages from one namespace into another through Spark.

    Args:
        folder: where both namespaces and Spark keep their files.
        messages: how many.
        options: `name=value` for the source (or `spark.…=value` for the session).
    """
    with (
        _filled(folder, messages) as (source, target, counter),
        spark_routes(source, target, folder, options=options) as driver,
    ):
        account = Account({"source": source.pid, "target": target.pid}, spark=driver.pid)
        return measure_steady(counter.read, messages, account, check=lambda: raise_if_ended(driver, folder))


def measure_sdk_loop(folder: Path, messages: int) -> Steady:
    """The same by a copy loop written with azure-servicebus."""
    with _filled(folder, messages) as (source, target, counter):
        command = [sys.executable, "-m", "isthmus.bench.peer.sdk_loop", queue_name(0)]
        with child_process(command, source, target, folder / "sdk-loop.log") as loop:
            account = Account({"source": source.pid, "target": target.pid, "loop": loop.pid})
            return measure_steady(counter.read, messages, account, check=lambda: raise_if_ended(loop, folder))


def measure_shovel(folder: Path, messages: int) -> Steady:
    """The same by RabbitMQ Shovel between two RabbitMQ nodes."""
    with shovel.run_shovel(folder) as nodes:
        channel = Channel091(nodes.source.port)
        channel.confirm()
        body = os.urandom(_BODY_BYTES)
        for first in range(0, messages, _PUBLISH_MESSAGES):
            channel.publish(shovel.SOURCE_QUEUE, [body] * min(_PUBLISH_MESSAGES, messages - first))
        channel.flush()
        channel.close()
        watch = Channel091(nodes.target.port)
        nodes.start()
        account = Account(nodes.process_ids)
        result = measure_steady(lambda: watch.count(shovel.TARGET_QUEUE), messages, account, poll_seconds=0.02)
        watch.close()
        return result


@contextmanager
def spark_routes(
    source: NamespaceProcess, target: NamespaceProcess, folder: Path, *, routes: int = 1, options: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Routes through Spark that run until the block ends; the process of Spark's driver, when all have started."""
    command = [sys.executable, "-m", "isthmus.bench.driver", str(folder), str(routes), *options]
    with child_process(command, source, target, folder / "driver.log") as driver:
        assert driver.stdout is not None
        if not driver.stdout.readline():
            driver.wait()
            raise_if_ended(driver, folder)
        yield driver


@contextmanager
def bench_namespaces(folder: Path, queues: int = 1) -> Iterator[tuple[NamespaceProcess, NamespaceProcess]]:
    """Two namespaces with data below `folder` and the same queues."""
    config = queue_config(*map(queue_name, range(queues)))
    with namespace(folder / "a", config=config) as source, namespace(folder / "b", config=config) as target:
        yield source, target


def queue_config(*queues: str, session_queue: str = "") -> str:
    """The file of entities of a namespace with these queues, and one that requires sessions."""
    lines = [f"  {queue}: {{lock_duration: 5m, max_size_in_megabytes: 81920}}\n" for queue in queues]
    if session_queue:
        lines.append(
            f"  {session_queue}: {{lock_duration: 5m, max_size_in_megabytes: 81920, requires_session: true}}\n"
        )
    return "queues:\n" + "".join(lines)


@contextmanager
def _filled(folder: Path, messages: int) -> Iterator[tuple[NamespaceProcess, NamespaceProcess, Counter]]:
    with bench_namespaces(folder) as (source, target):
        fill(source.connection_string, queue_name(0), messages)
        counter = Counter(target.admin_connection_string, target.ports["http"], queue_name(0))
        try:
            yield source, target, counter
        finally:
            counter.close()


@contextmanager
def child_process(
    command: Sequence[str], source: NamespaceProcess, target: NamespaceProcess, log: Path, **variables: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with both connection strings, and further variables, in its environment; it ends when its standard input closes."""
    environment = {**os.environ, "BENCH_SOURCE": source.connection_string, "BENCH_TARGET": target.connection_string}
    environment |= variables
    with log.open("wb") as errors:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        yield process
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(_STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def raise_if_ended(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Raises an error with the ends of the logs in the folder, if the process has ended."""
    try:
        process.wait(0)
    except subprocess.TimeoutExpired:
        return
    lines = [line for log in folder.glob("*.log") for line in log.read_text(errors="replace").splitlines()]
    # Java's stack traces are long and of no use here.
    relevant = [line for line in lines if line.strip() and not line.lstrip().startswith(("at ", "... "))]
    raise IsthmusError(
        "\n".join([f"the copy ended by itself (exit code {process.returncode})", *relevant[-_LOG_LINES:]])
    )
