"""The demo's proof: the messages at every airport compared with those sent.

What it is: the audit of the task by origin and sequence number, and a second count by the stamps of the publishers on
their messages, which would show even a message that a namespace acknowledged and then lost. What it is not: any counter
of the routes or of the boards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.demo.consumer import stamp
from isthmus.replication.namespace_clients import NamespaceClients
from isthmus.replication.verification.audit.audit import audit
from isthmus.replication.verification.reconciliation.reconcile import compare
from isthmus.replication.verification.verify import PATIENCE_SECONDS
from isthmus.topology.model import Endpoint, Federation
from isthmus.topology.route import routes

__all__ = ["prove"]


def prove(federation: Federation, task: str, topic: str, subscription: str, sent: Mapping[str, int]) -> dict[str, Any]:
    """Read all airports and compare.

    Args:
        federation: the demo's.
        task: the task's name.
        topic: its topic.
        subscription: the one to read.
        sent: publisher → how many messages its namespace has acknowledged, numbered from 1.

    Returns:
        `lost`, `duplicated`, `out_of_order`: the worse of both counts; `received` by airport; `comparisons`.
    """
    numbers: dict[str, dict[str, list[int]]] = {alias: {} for alias in federation.namespaces}

    def note(alias: str, message: bytes) -> None:
        publisher, number, _ = stamp(message)
        numbers[alias].setdefault(publisher, []).append(number)

    with NamespaceClients(federation, "isthmus-proof", patience_seconds=PATIENCE_SECONDS) as clients:
        read = {alias: Endpoint(alias, f"{topic}/Subscriptions/{subscription}") for alias in federation.namespaces}
        by_sequence = audit(task, routes(federation, task), read, clients.peek, on_message=note)
    by_stamp = [
        compare(publisher, alias, range(1, count + 1), numbers[alias].get(publisher, ()))
        for alias in federation.namespaces
        for publisher, count in sent.items()
    ]

    def worst(kind: str) -> int:
        return max(by_sequence.total(kind), sum(int(getattr(each, kind)) for each in by_stamp))

    # A message that still waits for a route at the end has not arrived either: here it counts as lost.
    undelivered = sum(by_sequence.total(kind) for kind in ("waiting", "expired", "dead_lettered", "lost"))
    return {
        "lost": max(undelivered, sum(each.lost for each in by_stamp)),
        "duplicated": worst("duplicated"),
        "out_of_order": worst("out_of_order"),
        "received": {alias: sum(map(len, found.values())) for alias, found in numbers.items()},
        "comparisons": [each.to_dict() for each in by_sequence.comparisons],
    }
