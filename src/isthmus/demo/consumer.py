"""One airport's departure board: it reads every message that is published at any airport.

What it is: a process of the demo that receives and completes the messages of an ordinary subscription at one airport, as
an application would, and measures the latency of each. It reports its progress in JSON lines on its standard output.
It receives by isthmus's own client: three boards on the official SDK alone would keep two cores busy for a minute.
What it is not: the proof, which is read independently at the end.

Input, one JSON object on standard input: `connection_string`, `topic`, `subscription`, `region` (the publisher of the same
region; its messages do not go through Spark and are not measured), `burst_from` (the first number that is measured) and
`paced_from` (publisher → the first number that is paced).
Anything further on standard input ends it.

Invariants:
    I1. A message is measured when it is received, against the wall time that its publisher stamped on it.
    I2. A message is completed after it was recorded.
"""

from __future__ import annotations

import json
import select
import sys
import time
from typing import Any

from isthmus.amqp import codec, section
from isthmus.connectors.servicebus.connect import endpoint_of_string, open_client
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.transport import Client, Receiver

__all__ = ["Board", "main"]

REPORT_SECONDS = 0.25
WINDOW_MESSAGES = 2000

_PUBLISHER_KEY, _NUMBER_KEY, _SENT_KEY = (
    bytes((0xA1, len(name))) + name for name in (b"publisher", b"number", b"sent_at_seconds")
)


class Board:
    """What has been received.

    Args:
        region: the publisher of the same region.
        paced_from: publisher → the first number that is paced.
        burst_from: the first number that is measured; those before it are the warm-up.

    Attributes:
        received: messages in all.
        remote: messages from other regions.
        last_burst: wall time of the last message from another region that was published as fast as possible.
        burst_ms: latencies of such messages.
        paced_ms: latencies of those that were published at a steady pace.
    """

    def __init__(self, region: str, paced_from: dict[str, int], burst_from: int = 1) -> None:
        self.region = region
        self.burst_from = burst_from
        self.paced_from = paced_from
        self.received = 0
        self.remote = 0
        self.last_burst = 0.0
        self.burst_ms: list[float] = []
        self.paced_ms: list[float] = []

    def take(self, message: bytes, now: float) -> None:
        """Records an encoded message that arrived at the wall time `now`."""
        self.received += 1
        publisher, number, sent_at = stamp(message)
        if publisher == self.region:
            return
        self.remote += 1
        latency_ms = (now - sent_at) * 1000
        if number >= self.paced_from.get(publisher, 0):
            self.paced_ms.append(latency_ms)
        elif number >= self.burst_from:
            self.burst_ms.append(latency_ms)
            self.last_burst = now


def stamp(message: bytes) -> tuple[str, int, float]:
    """Publisher, number and time of sending of an encoded message; empty and 0 where it carries none."""
    publisher, number, sent_at = "", 0, 0.0
    for key, value, _ in section.map_items(message, section.locate(message).application_properties):
        if message.startswith(_PUBLISHER_KEY, key):
            publisher = _text(codec.decode(message, value)[0])
        elif message.startswith(_NUMBER_KEY, key):
            number = int(codec.decode(message, value)[0])
        elif message.startswith(_SENT_KEY, key):
            sent_at = float(codec.decode(message, value)[0])
    return publisher, number, sent_at


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def main() -> None:
    """Receives as the standard input says, until more input comes or it ends."""
    order = json.loads(sys.stdin.readline())
    board = Board(order["region"], order["paced_from"], order["burst_from"])
    path = f"{order['topic']}/Subscriptions/{order['subscription']}"
    endpoint = endpoint_of_string(ConnectionString.parse(order["connection_string"]))
    with open_client(endpoint, path, f"board-{order['region']}") as client:
        receiver = Receiver(client, path).wait_attached()
        _say(ready=True)
        _receive(client, receiver, board)
    _say(
        received=board.received,
        remote=board.remote,
        last_burst=board.last_burst,
        burst_ms=[round(each, 2) for each in board.burst_ms],
        paced_ms=[round(each, 2) for each in board.paced_ms],
    )


def _receive(client: Client, receiver: Receiver, board: Board) -> None:
    reported_at = 0.0
    poll = select.poll()
    poll.register(sys.stdin, select.POLLIN)
    poll.register(client.fileno(), select.POLLIN)
    while client.error is None:
        if receiver.credit < WINDOW_MESSAGES // 2:
            receiver.grant(WINDOW_MESSAGES)
        client.flush()
        if sys.stdin.fileno() in {descriptor for descriptor, _ in poll.poll(REPORT_SECONDS * 1000)}:
            return
        client.service()
        now = time.time()
        for run in receiver.take():
            for payload in run.payloads:
                board.take(bytes(payload), now)
            receiver.dispose(run.first_id, run.first_id + len(run.payloads) - 1)
        if time.monotonic() - reported_at >= REPORT_SECONDS:
            reported_at = time.monotonic()
            _say(received=board.received, remote=board.remote)
    raise client.error


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
