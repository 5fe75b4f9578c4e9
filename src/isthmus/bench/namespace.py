"""What one namespace does alone: ingest, receive and settle, memory with a backlog, and how soon it is back.

What it is: the load of `isthmus.bench.load` against one served namespace; the namespace and the load share the machine.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from isthmus.bench.load import drain, fill
from isthmus.bench.process import Account, cpu_us_per_message
from isthmus.bench.served import Served, serve

__all__ = ["measure_namespace"]

QUEUE = "bench"


def measure_namespace(folder: Path, messages: int) -> dict[str, object]:
    """Ingest by batches and one by one, receive and complete, restart with all messages waiting.

    Args:
        folder: where the namespace keeps its data.
        messages: how many for each part.
    """
    result: dict[str, object] = {"messages": messages}
    with serve(folder, [QUEUE]) as served:
        result["ready_seconds_empty"] = round(served.ready_seconds, 2)
        ingest = _part(served, messages, lambda: fill(served.connection_string, QUEUE, messages))
        result |= {
            "messages_per_second": ingest["messages_per_second"],
            "cpu_us_per_message": ingest["cpu_us_per_message"],
            "resident_bytes": ingest["resident_bytes"],
            "ingest_batches": ingest,
        }
    with serve(folder, [QUEUE]) as served:
        result["ready_seconds_after_stop"] = round(served.ready_seconds, 2)
        os.kill(served.process_id, signal.SIGKILL)
    with serve(folder, [QUEUE]) as served:
        result["ready_seconds_after_kill"] = round(served.ready_seconds, 2)
        result["receive_and_complete"] = _part(
            served, messages, lambda: drain(served.connection_string, QUEUE, messages)
        )
        result["ingest_singles"] = _part(
            served, messages, lambda: fill(served.connection_string, QUEUE, messages, batches=False)
        )
    return result


def _part(served: Served, messages: int, work: Callable[[], float]) -> dict[str, float]:
    account = Account({"namespace": served.process_id})
    client = Account({"client": os.getpid()})
    before, client_before = account.read(), client.read()
    seconds = work()
    after, client_after = account.read(), client.read()
    # The namespace is a child of this process: its share is taken off the load's.
    cost = cpu_us_per_message(before, after, messages)["total"]
    both = cpu_us_per_message(client_before, client_after, messages)["total"]
    return {
        "messages_per_second": round(messages / seconds, 1),
        "cpu_us_per_message": cost,
        "client_cpu_us_per_message": round(both - cost, 2),
        "resident_bytes": after["namespace"].resident_bytes,
    }
