"""The rate from a queue in one namespace to a queue in another that is distant.

What it is: one route through Spark, in order; its target is behind a proxy that delays all bytes, and grants as little credit as
the service does. For each round trip a queue is filled before the route starts. Then the same route carries a steady, slow
load, whose messages are timed. Optionally all of it is repeated with each message in a delivery of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isthmus.bench.bridge import child_process, queue_config, raise_if_ended
from isthmus.bench.counter import Counter
from isthmus.bench.latency import percentile
from isthmus.bench.load import fill, listen, stamp_of
from isthmus.bench.process import Account
from isthmus.bench.steady import measure_steady
from isthmus.errors import OperationTimeoutError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.testing.proxy import Proxy, proxy

__all__ = ["CREDIT", "ROUND_TRIPS_MS", "measure_round_trips"]

ROUND_TRIPS_MS = (0.0, 10.0, 50.0, 100.0, 200.0)
# The credit that Azure Service Bus grants a sender.
CREDIT = 1000
_SPARE_SECONDS = 60.0
_WARM_UP_SECONDS = 2.0


def measure_round_trips(
    folder: Path,
    messages: int,
    round_trips_ms: Sequence[float] = ROUND_TRIPS_MS,
    *,
    credit: int = CREDIT,
    alone: bool = False,
    rate: float = 500.0,
    seconds: float = 10.0,
) -> dict[str, Any]:
    """Drain messages from one namespace into another at each round trip between the route and its target.

    Args:
        folder: where both namespaces and Spark keep their files.
        messages: how many for each round trip.
        round_trips_ms: milliseconds; the others are compared with the first.
        credit: deliveries that the target grants.
        alone: measure each also with every message in a delivery of its own.
        rate: messages per second of the load that is timed.
        seconds: how long that lasts; 0 leaves it out.
    """
    kinds = ("alone", "") if alone else ("",)
    queues = {(trip, kind): f"bench-{trip:g}-{kind or 'free'}" for trip in round_trips_ms for kind in kinds}
    config = queue_config(*queues.values())
    limits = f"limits: {{sender_credit: {credit}}}\n"
    with (
        namespace(folder / "a", config=config) as source,
        namespace(folder / "b", config=limits + config) as target,
        proxy(target.ports["amqp"]) as between,
        _Routes.started(source, target, between, folder) as routes,
    ):
        found: dict[str, dict[str, Any]] = {}
        for trip in round_trips_ms:
            between.set_round_trip(trip / 1000)
            figures = found[f"{trip:g}"] = {}
            for kind in kinds:
                prefix = f"{kind}_" if kind else ""
                measured = routes.measure(queues[trip, kind], messages, is_alone=bool(kind), rate=rate, seconds=seconds)
                figures |= {prefix + name: value for name, value in measured.items()}
    result: dict[str, Any] = {"messages": messages, "credit": credit, "rate": rate, "by_round_trip_ms": found}
    return result | {"by_round_trip_ms": with_ratios(found)}


def with_ratios(found: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The figures by round trip, and each rate divided by that of the first round trip."""
    first = next(iter(found.values()), {})
    rates = [name for name in first if name.endswith("messages_per_second")]
    ratios = {name: name.removesuffix("messages_per_second") + "ratio" for name in rates}
    return {
        trip: figures | {ratios[name]: round(figures[name] / first[name], 3) for name in rates if first[name]}
        for trip, figures in found.items()
    }


class _Routes:
    """The process of Spark's driver, and the routes sent to it."""

    def __init__(
        self, source: NamespaceProcess, target: NamespaceProcess, driver: subprocess.Popen[bytes], folder: Path
    ) -> None:
        self._source, self._target, self._driver, self._folder = source, target, driver, folder

    @classmethod
    @contextmanager
    def started(
        cls, source: NamespaceProcess, target: NamespaceProcess, between: Proxy, folder: Path
    ) -> Iterator[_Routes]:
        """The process, with Spark started, which ends with the block."""
        behind = target.connection_string.replace(f":{target.ports['amqp']}", f":{between.port}")
        command = [sys.executable, "-m", "isthmus.bench.route_driver", str(folder)]
        log = folder / "driver.log"
        with child_process(command, source, target, log, BENCH_TARGET=behind) as driver:
            made = cls(source, target, driver, folder)
            made._write("")
            yield made

    def measure(self, queue: str, messages: int, *, is_alone: bool, rate: float, seconds: float) -> dict[str, Any]:
        """Fills a queue, starts its route, and watches it; then times a steady load."""
        fill(self._source.connection_string, queue, messages)
        counter = Counter(self._target.admin_connection_string, self._target.ports["http"], queue)
        account = Account({"source": self._source.pid, "target": self._target.pid}, spark=self._driver.pid)
        self._write(json.dumps([_route(queue, is_alone)]))
        steady = measure_steady(
            counter.read, messages, account, check=lambda: raise_if_ended(self._driver, self._folder)
        )
        counter.close()
        measured: dict[str, Any] = {
            "messages_per_second": steady.messages_per_second,
            "cpu_us_per_message": steady.cpu_us_per_message,
        }
        if seconds:
            waits = self._time(queue, messages, rate, seconds)
            measured |= {"p50_ms": round(percentile(waits, 0.5), 2), "p99_ms": round(percentile(waits, 0.99), 2)}
        self._write("")
        return measured

    def _write(self, line: str) -> None:
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(line.encode() + b"\n")
        self._driver.stdin.flush()
        if not self._driver.stdout.readline():
            self._driver.wait()
            raise_if_ended(self._driver, self._folder)

    def _time(self, queue: str, backlog: int, rate: float, seconds: float) -> list[float]:
        """Sends at a steady rate; milliseconds from send to receipt at the target, ascending."""
        total = backlog + int(rate * (_WARM_UP_SECONDS + seconds))
        began = time.monotonic()
        limit = began + _WARM_UP_SECONDS + seconds + _SPARE_SECONDS
        waits: list[float] = []
        seen = 0
        load: subprocess.Popen[bytes] | None = None

        def note(payload: bytes, now: float) -> None:
            nonlocal seen
            seen += 1
            if seen > backlog + int(rate * _WARM_UP_SECONDS):
                waits.append((now - stamp_of(payload)[0]) * 1000)

        def over() -> bool:
            nonlocal load
            if seen >= backlog and load is None:  # messages that are there already are received first
                load = subprocess.Popen(
                    [sys.executable, "-m", "isthmus.bench.load", str(rate), str(_WARM_UP_SECONDS + seconds), queue],
                    env={**os.environ, "BENCH_LOAD": self._source.connection_string},
                )
            return seen >= total or time.monotonic() > limit

        listen(self._target.connection_string, [queue], note, over)
        if load is not None:
            load.wait()
        if seen < total:
            raise OperationTimeoutError(f"{seen} of {total} messages arrived in time")
        return sorted(waits)


def _route(queue: str, is_alone: bool) -> dict[str, Any]:
    target = {"connection": "env:BENCH_TARGET", "entity": queue, "origin": f"a/{queue}", "target": "b"}
    return {
        "name": queue,
        "source": {"kind": "servicebus", "alias": "a", "options": {"connection": "env:BENCH_SOURCE", "entity": queue}},
        "target": {"kind": "servicebus", "alias": "b", "options": target},
        "envelope_messages": 1 if is_alone else 0,
    }
