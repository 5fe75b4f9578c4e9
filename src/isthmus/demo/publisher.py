"""One airport's application: it publishes its departures.

What it is: a process of the demo that sends the flights of one origin to that origin's namespace with azure-servicebus,
as any application would: a few as a warm-up, most as fast as it can in batches, then the rest at a steady pace. It
reports its progress in JSON lines on its standard output, and waits for a line on its standard input before each part.
What it is not: part of the federation; it uses one namespace.

Input, one JSON object on standard input: `connection_string`, `topic`, `origin`, `month` (null for the year), `limit` (null
for all), `opening` (how many are the warm-up), `paced` (how many at the end are paced), `rate_per_second` (of those).

Invariants:
    I1. Every message carries its publisher's name and a number that rises by one, from 1.
    I2. A message counts as sent only after the namespace has acknowledged its batch.
    I3. `sent_at_seconds` is the wall time at which the message was handed to the client, since the epoch; a double, because the
        client sends integers in 32 bits.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusSender

from isthmus.demo.flight import Flight, flights

__all__ = ["main", "message"]

BATCH_MESSAGES = 250


def message(flight: Flight, number: int) -> ServiceBusMessage:
    """A flight as a message: its fields as JSON in the body, those that filters select by as typed properties."""
    body = json.dumps(flight, default=datetime.isoformat)
    properties: dict[str | bytes, Any] = {
        "publisher": flight["origin"],
        "number": number,
        "sent_at_seconds": time.time(),
        "carrier": flight["carrier"],
        "dest": flight["dest"],
        "distance": flight["distance"],
        "scheduled": flight["time_hour"],
        "cancelled": "dep_time" not in flight,
    }
    return ServiceBusMessage(
        body,
        application_properties=properties,
        content_type="application/json",
        subject=f"{flight['carrier']}{flight['flight']}",
        message_id=f"{flight['origin']}-{number}",
    )


def main() -> None:
    """Publish as standard input asks."""
    order = json.loads(sys.stdin.readline())
    chosen = [flight for flight in flights(order["month"]) if flight["origin"] == order["origin"]]
    chosen = chosen[: order["limit"]]
    _say(ready=len(chosen))
    sys.stdin.readline()
    opening = order["opening"]
    fast = max(0, len(chosen) - opening - order["paced"])
    with (
        ServiceBusClient.from_connection_string(order["connection_string"]) as client,
        client.get_topic_sender(order["topic"]) as sender,
    ):
        numbered = enumerate(chosen, 1)
        for batch in _batches(islice(numbered, opening), BATCH_MESSAGES):
            _send(sender, batch)
        sys.stdin.readline()
        begun = time.time()
        for batch in _batches(islice(numbered, fast), BATCH_MESSAGES):
            _send(sender, batch)
        _say(burst_seconds=time.time() - begun, burst=fast)
        sys.stdin.readline()
        _paced(sender, numbered, order["rate_per_second"])
    _say(done=len(chosen))


def _paced(sender: ServiceBusSender, numbered: Iterator[tuple[int, Flight]], rate_per_second: float) -> None:
    """Sends small batches, ten times a second."""
    size = max(1, round(rate_per_second / 10))
    due = time.monotonic()
    for batch in _batches(numbered, size):
        time.sleep(max(0.0, due - time.monotonic()))
        due += len(batch) / rate_per_second
        _send(sender, batch)


def _send(sender: ServiceBusSender, batch: Sequence[tuple[int, Flight]]) -> None:
    sender.send_messages([message(flight, number) for number, flight in batch])
    _say(sent=batch[-1][0])


def _batches(numbered: Iterator[tuple[int, Flight]], size: int) -> Iterator[list[tuple[int, Flight]]]:
    while batch := list(islice(numbered, size)):
        yield batch


def _say(**values: Any) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
