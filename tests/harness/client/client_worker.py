"""An application's receiver in a process of its own, to be killed: it writes down each handler's begin and each completion.

Run by tests/fault/client/test_receiver_kill.py: `python client_worker.py KIND SEEN LOG QUEUE PRIMARY SECONDARY [SESSION]`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from typing import Any

BOUNDS_LEASE_SECONDS = 1.0


def note(log: int, what: str, message: Any) -> None:
    os.write(log, f"{what} {os.getpid()} {message.message_id}\n".encode())


def options(seen: str, session: str | None) -> dict[str, Any]:
    from isthmus.client.seen import Bounds

    return {
        "seen": seen,
        "session_id": session,
        "bounds": Bounds(lease=timedelta(seconds=BOUNDS_LEASE_SECONDS)),
        "connect_timeout": 10.0,
    }


def in_threads(seen: str, log: int, queue: str, primary: str, secondary: str, session: str | None) -> None:
    from isthmus.client import ReplicatedReceiver

    with ReplicatedReceiver(primary, secondary, queue, **options(seen, session)) as receiver:
        for message in receiver:
            note(log, "begin", message)
            receiver.complete_message(message)
            note(log, "done", message)


def failing_over(seen: str, log: int, queue: str, primary: str, secondary: str, session: str | None) -> None:
    from isthmus.client import FailoverReceiver

    second = timedelta(seconds=1)
    with FailoverReceiver(
        primary, secondary, queue, state=f"{seen}.state", fail_over_after=second, fail_back_after=2 * second,
        drain_for=second, probe_interval=second / 2, probe_timeout=2 * second, **options(seen, session),
    ) as receiver:  # fmt: skip
        for message in receiver:
            note(log, "begin", message)
            receiver.complete_message(message)
            note(log, "done", message)


async def in_asyncio(seen: str, log: int, queue: str, primary: str, secondary: str, session: str | None) -> None:
    from isthmus.client.aio import ReplicatedReceiver

    async with ReplicatedReceiver(primary, secondary, queue, **options(seen, session)) as receiver:
        async for message in receiver:
            note(log, "begin", message)
            await receiver.complete_message(message)
            note(log, "done", message)


def main() -> None:
    kind, seen, log, queue, primary, secondary, *session = sys.argv[1:]
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    chosen = session[0] if session else None
    if kind == "asyncio":
        asyncio.run(in_asyncio(seen, file, queue, primary, secondary, chosen))
    elif kind == "failover":
        failing_over(seen, file, queue, primary, secondary, chosen)
    else:
        in_threads(seen, file, queue, primary, secondary, chosen)


if __name__ == "__main__":
    main()
