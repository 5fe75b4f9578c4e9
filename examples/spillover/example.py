"""The proof of the example: what failed at one region was tried at the other and is parked there, and nothing else waits."""  # noqa: INP001 - `run` loads it by its path

from __future__ import annotations

import time
from typing import Any

from isthmus.connectors.servicebus.head import peeked_message
from isthmus.demo.consumer import stamp
from isthmus.demo.example.example import Example
from isthmus.demo.example.script import messages_of
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.topology.model import Endpoint

MEMBERS = ("ewr", "jfk")
PATIENCE_SECONDS = 120.0


def after(example: Example) -> dict[str, Any]:
    """Count what is parked once both queues are empty."""
    failing = {
        member: sum(
            sum(1 for _ in messages_of(each, example.messages)) // 10
            for each in example.script.publish
            if each.to.alias == member
        )
        for member in MEMBERS
    }
    limit = time.monotonic() + PATIENCE_SECONDS
    while True:
        waiting = sum(len(stamps(example, Endpoint(member, "payments"))) for member in MEMBERS)
        parked = {member: stamps(example, Endpoint(member, "payments-parked")) for member in MEMBERS}
        found = sum(map(len, parked.values()))
        if (not waiting and found >= sum(failing.values())) or time.monotonic() > limit:
            break
        example.check()
        time.sleep(0.5)
    once = {(publisher, number) for messages in parked.values() for publisher, number in messages}
    # What failed at one region is in the other's parking queue.
    misplaced = sum(publisher.startswith(member) for member in MEMBERS for publisher, _ in parked[member])
    return {
        "arrived": example.sent - waiting - (sum(failing.values()) - len(once)),
        "spilled": len(once),
        "lost": waiting + sum(failing.values()) - len(once) + misplaced,
        "duplicated": found - len(once),
        "out_of_order": 0,
    }


def stamps(example: Example, queue: Endpoint) -> list[tuple[str, int]]:
    """Publisher and number of every message in a queue."""
    found: list[tuple[str, int]] = []
    with NamespaceClients(example.federation, "example") as clients:
        peek, start = clients.peek(queue), 0
        while page := peek(start, 250):
            found += [stamp(message)[:2] for message in page]
            start = peeked_message(page[-1]).sequence + 1
    return found
