"""What steps cost a route through Spark: its rate and its latency, beside a route without steps in the same run.

Run: python benchmarks/step_route.py [--messages 100000] [--rate 200] [--seconds 20] [--json]. For each chain a queue of one namespace is filled
with JSON messages of about 600 bytes, and one route in order empties it into a queue of another; then messages come at a steady rate,
and are timed from send to receipt. `share` is a chain's rate divided by that of the route without steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from steps import chains

from isthmus.amqp import section
from isthmus.bench.bridge import child_process, queue_config, raise_if_ended
from isthmus.bench.counter import Counter
from isthmus.bench.latency import percentile
from isthmus.bench.load import connect, listen
from isthmus.bench.process import Account
from isthmus.bench.steady import measure_steady
from isthmus.demo.consumer import stamp
from isthmus.errors import OperationTimeoutError
from isthmus.testing.namespace import NamespaceProcess, namespace
from isthmus.transport import Sender

PLAIN = "plain"
CHAINS = ("validate", "enrich", "encrypt (jwe)", "validate, enrich, encrypt")
BATCH_MESSAGES = 100
WARM_UP_SECONDS = 5.0
SPARE_SECONDS = 120.0
BODY = {"carrier": "UA", "flight": 1545, "origin": "EWR", "dest": "A17", "tailnum": "N14228", "pad": "x" * 400}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        found = _measure(Path(name), given.messages, given.rate, given.seconds)
    if given.json:
        print(json.dumps({"messages": given.messages, "rate": given.rate, "by_steps": found}))
    else:
        for steps, measured in found.items():
            print(
                f"{measured['messages_per_second']:10,.0f}/s {measured['share']:6.2f} p50 {measured['p50_ms']:6.1f} ms  {steps}"
            )
    return 0


def _measure(folder: Path, messages: int, rate: float, seconds: float) -> dict[str, dict[str, Any]]:
    declared = {PLAIN: [], **{name: chain for name, chain in chains(folder).items() if name in CHAINS}}
    queues = {name: f"steps-{number}" for number, name in enumerate(declared)}
    config = queue_config(*queues.values())
    command = [sys.executable, "-m", "isthmus.bench.route_driver", str(folder)]
    found: dict[str, dict[str, Any]] = {}
    with (
        namespace(folder / "a", config=config) as source,
        namespace(folder / "b", config=config) as target,
        child_process(command, source, target, folder / "driver.log") as driver,
    ):
        _send_line(driver, folder, "")
        for name, chain in declared.items():
            queue = queues[name]
            _fill(source, queue, messages)
            counter = Counter(target.admin_connection_string, target.ports["http"], queue)
            account = Account({"source": source.pid, "target": target.pid}, spark=driver.pid)
            _send_line(driver, folder, json.dumps([_route(queue, chain)]))
            steady = measure_steady(counter.read, messages, account, check=lambda: raise_if_ended(driver, folder))
            counter.close()
            waits = _time(source, target, queue, messages, rate, seconds)
            found[name] = {
                "messages_per_second": steady.messages_per_second,
                "share": round(steady.messages_per_second / found[PLAIN]["messages_per_second"], 3) if found else 1.0,
                "cpu_us_per_message": steady.cpu_us_per_message,
                "p50_ms": round(percentile(waits, 0.5), 2),
                "p99_ms": round(percentile(waits, 0.99), 2),
            }
            _send_line(driver, folder, "")
    return found


def _route(queue: str, chain: list[str]) -> dict[str, Any]:
    target = {"connection": "env:BENCH_TARGET", "entity": queue, "origin": f"a/{queue}", "target": "b"}
    return {
        "name": queue,
        "source": {"kind": "servicebus", "alias": "a", "options": {"connection": "env:BENCH_SOURCE", "entity": queue}},
        "target": {"kind": "servicebus", "alias": "b", "options": target},
        "steps": chain,
    }


def _send_line(driver: subprocess.Popen[bytes], folder: Path, line: str) -> None:
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write(line.encode() + b"\n")
    driver.stdin.flush()
    if not driver.stdout.readline():
        driver.wait()
        raise_if_ended(driver, folder)


def _message(number: int) -> bytes:
    return section.encode_message(
        json.dumps(BODY).encode(),
        properties={"message_id": str(number), "content_type": "application/json"},
        application_properties={"number": number, "sent_at_seconds": time.monotonic()},
    )


def _fill(end: NamespaceProcess, queue: str, messages: int) -> None:
    with connect(end.connection_string, queue) as client:
        sender = Sender(client, queue).wait_ready()
        sender.send_all([_message(number) for number in range(messages)], batch=BATCH_MESSAGES)


def _time(
    source: NamespaceProcess, target: NamespaceProcess, queue: str, waiting: int, rate: float, seconds: float
) -> list[float]:
    """Milliseconds from send to receipt at the target, ascending."""
    warm, total = waiting + int(rate * WARM_UP_SECONDS), waiting + int(rate * (WARM_UP_SECONDS + seconds))
    waits: list[float] = []
    seen = 0
    begin = threading.Event()
    limit = time.monotonic() + WARM_UP_SECONDS + seconds + SPARE_SECONDS

    def pace() -> None:
        begin.wait(SPARE_SECONDS)
        with connect(source.connection_string, queue) as client:
            sender = Sender(client, queue).wait_ready()
            began = time.monotonic()
            for number in range(total - waiting):
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
                sender.send([_message(waiting + number)])
                client.flush()
                client.service()
            client.wait_until(lambda: sender.settled >= sender.sent, SPARE_SECONDS, "the last outcomes")

    def note(payload: bytes, now: float) -> None:
        nonlocal seen
        seen += 1
        if seen > warm:
            waits.append((now - stamp(payload)[2]) * 1000)

    def over() -> bool:
        if seen >= waiting:  # what is there already is received first
            begin.set()
        return seen >= total or time.monotonic() > limit

    sending = threading.Thread(target=pace, daemon=True)
    sending.start()
    listen(target.connection_string, [queue], note, over)
    sending.join(SPARE_SECONDS)
    if seen < total:
        raise OperationTimeoutError(f"{seen} of {total} messages arrived in time")
    return sorted(waits)


if __name__ == "__main__":
    sys.exit(main())
