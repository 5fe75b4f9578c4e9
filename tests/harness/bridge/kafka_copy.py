"""A process that carries a route between two topics until it is ended; started by tests that kill it.

python -m harness.bridge.kafka_copy ADDRESS SOURCE TARGET MEMBER
"""

from __future__ import annotations

import sys
import threading

from harness.bridge.kafka_join import join, kafka_end, route

if __name__ == "__main__":
    address, source, target, member = sys.argv[1:]
    spec = route(
        kafka_end(address, source, group=f"{source}-copy", member=member),
        kafka_end(address, target),
        in_flight=200,
        window=400,
    )
    with join(spec):
        threading.Event().wait()
