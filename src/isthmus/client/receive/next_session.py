"""The search for the next session of a receiver of two namespaces.

What it is: the search for a session that has messages at one namespace and no reader at either; the search takes its locks. What it is
not: the reading of the session (`branch`).
Specification: Microsoft Learn, "Message sessions" (next available session).

Invariants:
    N1. The lock at the first namespace is taken before that at the second, whichever has the messages: of two receivers that want one
        session, one gets both locks, and the other continues its search.
    N2. A namespace that is unavailable, or hangs, does not prevent reading a session of the other.
    N3. Every receiver that was opened and is not used is closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import OperationTimeoutError

from isthmus.client.failure import Failure, classify
from isthmus.client.receive.branch import break_connection

if TYPE_CHECKING:
    from isthmus.client.endpoint import Endpoint
    from isthmus.client.receive.branch import Source

__all__ = ["FoundSession", "find_session"]

_ASK_SECONDS = 1.0  # at one namespace, before the other is asked
_AGAIN_SECONDS = 0.05
_GRACE_SECONDS = 2.0  # beyond every time-out that is given to a call

Opened = tuple[Any, Any]
"""A client of the SDK, and its open receiver of the session."""


@dataclass(slots=True)
class FoundSession:
    """A session and its locks.

    Attributes:
        session_id: its name.
        opened: its open receivers by namespace; an unavailable namespace is missing.
    """

    session_id: str
    opened: dict[str, Opened] = field(default_factory=dict)

    def close(self) -> None:
        """Release the locks."""
        while self.opened:
            _close(self.opened.popitem()[1])


def find_session(
    endpoints: Mapping[str, Endpoint], source: Source, seconds: float, connect_seconds: float
) -> FoundSession:
    """The next session.

    Args:
        endpoints: the namespaces by name; the first leads.
        source: the entity that is read there.
        seconds: how long to search.
        connect_seconds: the longest time for opening.

    Raises:
        OperationTimeoutError: no session was available.
        ServiceBusError: the answer of every namespace: the entity is missing, is not permitted, or has no sessions.
    """
    deadline = time.monotonic() + seconds
    while True:
        errors: dict[str, BaseException] = {}
        for side in endpoints:
            wait = min(_ASK_SECONDS, max(0.1, deadline - time.monotonic()))
            next_one = replace(source, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=wait)
            try:
                opened = _open(endpoints[side], next_one, connect_seconds)
            except Exception as error:  # noqa: BLE001  # judged by its class
                errors[side] = error
                continue
            found = _locked(endpoints, source, side, opened, connect_seconds)
            if found is not None:
                return found
        fatal = [error for error in errors.values() if classify(error) in _LASTING]
        if len(fatal) == len(endpoints):
            raise fatal[0]
        if time.monotonic() >= deadline:
            last = next(iter(errors.values()), None)
            raise OperationTimeoutError(message=f"no session of {source.path!r} is free and has messages") from last
        time.sleep(_AGAIN_SECONDS)


_LASTING = (Failure.MISSING, Failure.FORBIDDEN, Failure.REFUSED, Failure.MISUSE)


def _locked(
    endpoints: Mapping[str, Endpoint], source: Source, side: str, opened: Opened, connect_seconds: float
) -> FoundSession | None:
    """The session that was opened at one namespace, with its locks at the others; None if another receiver has one of them."""
    found = FoundSession(opened[1].session.session_id, {side: opened})
    named = replace(source, session_id=found.session_id)
    sides = list(endpoints)
    if side != sides[0]:  # N1
        found.close()
    try:
        for each in sides:
            if each not in found.opened:
                try:
                    found.opened[each] = _open(endpoints[each], named, connect_seconds)
                except Exception as error:
                    if not classify(error).region_may_be_gone:
                        raise
    except Exception:  # noqa: BLE001  # another receiver has it, or the entity is missing there: the search continues, and reports it at its end
        found.close()
        return None
    return found if found.opened else None


def _open(endpoint: Endpoint, source: Source, connect_seconds: float) -> Opened:
    client = endpoint.client(retry_total=0, try_timeout=connect_seconds)
    receiver = source.receiver(client)
    # The SDK waits without end for a remote side that accepts a connection and sends nothing.
    limit = connect_seconds + (source.max_wait_time or 0.0) + _GRACE_SECONDS
    watch = threading.Timer(limit, break_connection, (receiver,))
    watch.daemon = True
    watch.start()
    try:
        receiver.__enter__()
    except BaseException:
        _close((client, receiver))
        raise
    finally:
        watch.cancel()
    return client, receiver


def _close(opened: Opened) -> None:
    for each in reversed(opened):
        with contextlib.suppress(Exception):  # its lock ends by itself
            each.close()
