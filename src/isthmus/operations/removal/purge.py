"""Removes messages.

What it is: every selected message, whatever its state: active ones are received and completed, deferred ones received
and deleted, scheduled ones cancelled; in an entity with sessions, session by session. What it is not: undoable;
`carry.export` writes them to a file first.

Invariants:
    I1. Only messages that existed when the removal began are removed, and only selected ones.
    I2. After a kill at any instant, every message exists whole or is removed.
    I3. Removed messages are counted, also if the removal is stopped or fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from isthmus.amqp.types import Array, Long, UInt
from isthmus.entities.queue.run import RunSet
from isthmus.errors import (
    InvalidArgumentError,
    IsthmusError,
    LockLostError,
    MessageNotFoundError,
    MessageTooLargeError,
)
from isthmus.operations.peek import Census, Progress
from isthmus.operations.removal.session_sweep import by_session, requires_sessions
from isthmus.operations.removal.sweep import RENEWAL_SECONDS, sweep
from isthmus.transport import Client, Management, Receiver

__all__ = ["Removal", "remove"]

_AT_ONCE = 200
_LONG = 0x81


class Removal(NamedTuple):
    """The result: messages removed, and selected ones that were not (locked by others, removed by others, or not reached)."""

    removed: int
    left: int


def remove(
    client: Client,
    path: str,
    meant: Census,
    *,
    progress: Progress = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Removal:
    """Remove the messages of a census.

    Args:
        client: connected.
        path: the entity.
        meant: the census; used up.
        progress: called with the number of messages removed since the last call.
        is_stopped: called repeatedly; once it returns true nothing more is removed, and pending requests are waited for.

    Raises:
        IsthmusError: the namespace refused or is unreachable; a note and its attribute `completed` say how many messages were removed until then.
    """
    count = meant.total

    def take(messages: Any, _: Any) -> Any:
        progress(len(messages))
        return messages

    management = Management(client, path)
    removed = 0
    try:
        if (meant.active or meant.deferred) and requires_sessions(client, path):
            removed += _remove_in_sessions(client, path, management, meant, take, progress, is_stopped)
        else:
            removed += sweep(client, path, meant.active, take, is_stopped=is_stopped)
            removed += _each(
                meant.deferred, lambda numbers: _delete_deferred(management, numbers), progress, is_stopped
            )
        removed += _each(meant.scheduled, lambda numbers: _cancel(management, numbers), progress, is_stopped)
    except IsthmusError as error:
        removed += int(error.attributes.get("completed", 0))
        error.attributes["completed"] = removed
        error.add_note(f"{removed} of {count} messages were removed before, as far as the namespace has answered")
        raise
    finally:
        management.close()
    return Removal(removed, count - removed)


def _remove_in_sessions(
    client: Client,
    path: str,
    management: Management,
    meant: Census,
    take: Any,
    progress: Progress,
    is_stopped: Callable[[], bool],
) -> int:
    """Remove active and deferred messages, one session locked at a time; sessions that others have locked are left."""
    removed = 0
    for session_id, (active, deferred, _) in by_session(client, path, meant, is_stopped).items():
        if is_stopped():
            break
        try:
            removed += sweep(client, path, active, take, session_id=session_id, is_stopped=is_stopped)
            if deferred:
                removed += _delete_deferred_in(client, path, management, session_id, deferred, progress, is_stopped)
        except LockLostError as error:
            removed += int(error.attributes.get("completed", 0))
        except IsthmusError as error:
            error.attributes["completed"] = removed + int(error.attributes.get("completed", 0))
            raise
    return removed


def _delete_deferred_in(
    client: Client,
    path: str,
    management: Management,
    session_id: str,
    deferred: RunSet,
    progress: Progress,
    is_stopped: Callable[[], bool],
) -> int:
    holder = Receiver(client, path, in_session=True, session_id=session_id).wait_attached()
    renewed_at = time.monotonic()

    def delete(numbers: list[int]) -> None:
        nonlocal renewed_at
        if time.monotonic() - renewed_at >= RENEWAL_SECONDS:
            renewed_at = time.monotonic()
            management.renew_session(session_id)
        _delete_deferred(management, numbers, session_id)

    try:
        return _each(deferred, delete, progress, is_stopped)
    finally:
        holder.close()


def _each(
    numbers: RunSet, remove_some: Callable[[list[int]], None], progress: Progress, is_stopped: Callable[[], bool]
) -> int:
    """Remove in groups; a group with a missing message, one by one, and one that is too large for an answer, by halves. An
    error's attribute `completed` says how many were removed.
    """
    removed = 0
    groups: list[list[int]] = []
    try:
        while (groups or numbers) and not is_stopped():
            if not groups:
                first, last = numbers.take(_AT_ONCE)
                groups.append(list(range(first, last + 1)))
            wanted = groups.pop()
            try:
                remove_some(wanted)
            except MessageNotFoundError:
                if len(wanted) > 1:
                    groups += [[number] for number in reversed(wanted)]
            except (InvalidArgumentError, MessageTooLargeError):
                if len(wanted) == 1:
                    raise
                half = len(wanted) // 2
                groups += [wanted[half:], wanted[:half]]
            else:
                removed += len(wanted)
                progress(len(wanted))
    except IsthmusError as error:
        error.attributes["completed"] = removed
        raise
    return removed


def _cancel(management: Management, numbers: list[int]) -> None:
    _ask(management, "cancel-scheduled-message", {"sequence-numbers": _longs(numbers)})


def _delete_deferred(management: Management, numbers: list[int], session_id: str | None = None) -> None:
    body: dict[str, Any] = {"sequence-numbers": _longs(numbers), "receiver-settle-mode": UInt(0)}
    if session_id is not None:
        body["session-id"] = session_id
    _ask(management, "receive-by-sequence-number", body)


def _ask(management: Management, operation: str, body: dict[str, Any]) -> None:
    reply = management.start(operation, body)
    try:
        management.finish(reply)
    except IsthmusError as error:
        # The service reports both as a missing message; as a status only if it gives no condition.
        if reply.status == 404:
            raise MessageNotFoundError(str(error)) from None
        raise


def _longs(numbers: list[int]) -> Array:
    return Array(_LONG, [Long(number) for number in numbers])
