"""Measurements of one namespace: ingest, receive and settle, memory with a backlog, and the time of a restart.

What it is: the load of `isthmus.bench.load` against one served namespace; the namespace and the load share the machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from isthmus.bench.bridge import queue_config
from isthmus.bench.load import drain, drain_sessions, fill, read
from isthmus.bench.process import Account, cpu_us_per_message
from isthmus.testing.namespace import NamespaceProcess, namespace

__all__ = ["measure_namespace"]

QUEUE = "bench"
SESSION_QUEUE = "bench-sessions"
# Sessions that share the messages, and receivers that share the sessions.
SESSIONS = 100
SESSION_RECEIVERS = 10
EVENT_HUB = "bench-hub"
PARTITIONS = [f"{EVENT_HUB}/ConsumerGroups/$Default/Partitions/{index}" for index in range(4)]
_HUB_CONFIG = f"event_hubs: {{{EVENT_HUB}: {{partition_count: {len(PARTITIONS)}}}}}\n"


def measure_namespace(folder: Path, messages: int) -> dict[str, object]:
    """Ingest by batches and one by one, receive and complete, also in sessions; restart with all messages waiting;
    the same of events.

    Args:
        folder: where the namespace keeps its data.
        messages: how many for each part.
    """
    config = queue_config(QUEUE, session_queue=SESSION_QUEUE) + _HUB_CONFIG
    with namespace(folder, config=config) as served:
        ingest = _part(served, messages, lambda: fill(served.connection_string, QUEUE, messages))
        after_stop = served.restart()
        served.kill()
        after_kill = served.start()
        resident_bytes = Account({"namespace": served.pid}).read()["namespace"].resident_bytes
        receive = _part(served, messages, lambda: drain(served.connection_string, QUEUE, messages))
        singles = _part(served, messages, lambda: fill(served.connection_string, QUEUE, messages, batches=False))
        # Without a restart before it, so that the result compares with the drain of sessions.
        warm = _part(served, messages, lambda: drain(served.connection_string, QUEUE, messages))
        in_sessions = messages - messages % (SESSIONS * 100)  # whole batches, the same number for each session
        ids = [f"session-{number:03d}" for number in range(SESSIONS)]
        session_ingest = session_receive = {}
        if in_sessions:
            session_ingest = _part(
                served, in_sessions, lambda: fill(served.connection_string, SESSION_QUEUE, in_sessions, sessions=ids)
            )
            session_receive = _part(
                served,
                in_sessions,
                lambda: drain_sessions(
                    served.connection_string, SESSION_QUEUE, in_sessions, SESSIONS, SESSION_RECEIVERS
                ),
            )
        events = _part(served, messages, lambda: fill(served.connection_string, EVENT_HUB, messages))
        reading = _part(served, messages, lambda: read(served.connection_string, PARTITIONS, messages))
    return {
        "messages": messages,
        "messages_per_second": ingest["messages_per_second"],
        "cpu_us_per_message": ingest["cpu_us_per_message"],
        "resident_bytes": ingest["resident_bytes"],
        "resident_bytes_restarted": resident_bytes,
        "ready_seconds_after_stop": round(after_stop, 2),
        "ready_seconds_after_kill": round(after_kill, 2),
        "ingest_batches": ingest,
        "ingest_singles": singles,
        "receive_and_complete": receive,
        "receive_and_complete_at_once": warm,
        "session_ingest_batches": session_ingest,
        "session_receive_and_complete": session_receive,
        "ingest_events": events,
        "read_events": reading,
    }


def _part(served: NamespaceProcess, messages: int, work: Callable[[], float]) -> dict[str, float]:
    account = Account({"namespace": served.pid})
    client = Account({"client": os.getpid()})
    before, client_before = account.read(), client.read()
    seconds = work()
    after, client_after = account.read(), client.read()
    # The namespace is a child of this process: its share is subtracted from the load's.
    cost = cpu_us_per_message(before, after, messages)["total"]
    both = cpu_us_per_message(client_before, client_after, messages)["total"]
    return {
        "messages_per_second": round(messages / seconds, 1),
        "cpu_us_per_message": cost,
        "client_cpu_us_per_message": round(both - cost, 2),
        "resident_bytes": after["namespace"].resident_bytes,
    }
