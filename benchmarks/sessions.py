"""How fast a route moves sessions of one message each, without Spark: a queue with sessions, joined to another by the connector's own ends.

Run: python benchmarks/sessions.py [--sessions 10000] [--locked 128] [--round-trip 0.06] [--json]. Both queues are in one namespace, behind a proxy that
makes the round trip. `reader_us` and `namespace_us` are microseconds of processor time for a session.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from harness.bridge.port_host import Route, host
from isthmus.amqp import section
from isthmus.bench.load import connect
from isthmus.testing.namespace import namespace
from isthmus.testing.proxy import proxy
from isthmus.transport import Sender

QUEUES = "queues:\n  from: {requires_session: true}\n  to: {requires_session: true}\n"
WINDOW = 2000
LIMIT_SECONDS = 600.0


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--locked", type=int, default=128)
    parser.add_argument("--round-trip", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    found = _measure(given.sessions, given.locked, given.round_trip)
    print(json.dumps(found) if given.json else "  ".join(f"{name} {value:,}" for name, value in found.items()))
    return 0


def _measure(sessions: int, locked: int, round_trip: float) -> dict[str, float]:
    with namespace(config=QUEUES) as served, proxy(served.ports["amqp"]) as line:
        with connect(served.connection_string, "from") as client:
            Sender(client, "from").wait_ready().send_all([_message(number) for number in range(sessions)])
        line.set_round_trip(round_trip)
        os.environ["PORT_TEST"] = served.connection_string.replace(str(served.ports["amqp"]), str(line.port))
        processes = psutil.Process(), psutil.Process(served.pid)
        before = [sum(each.cpu_times()[:2]) for each in processes]
        began = time.monotonic()
        with host() as made:
            route = Route(made, 1, "from", "to", window=WINDOW, sessions=locked)
            made.run(lambda: len(route.settled) >= sessions, LIMIT_SECONDS)
        seconds = time.monotonic() - began
        reader, broker = (sum(each.cpu_times()[:2]) - start for each, start in zip(processes, before, strict=True))
    return {
        "sessions": sessions,
        "locked": locked,
        "round_trip_ms": round(round_trip * 1000, 1),
        "sessions_per_second": round(sessions / seconds, 1),
        "reader_us": round(reader / sessions * 1e6),
        "namespace_us": round(broker / sessions * 1e6),
    }


def _message(number: int) -> bytes:
    return section.encode_message(b"x" * 200, properties={"message_id": str(number), "group_id": f"s{number}"})


if __name__ == "__main__":
    sys.exit(main())
