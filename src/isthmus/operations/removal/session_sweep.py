"""Completes selected messages of an entity that may require sessions.

What it is: one `isthmus.operations.removal.sweep` over an entity without sessions, and one for each session in an entity with them. What it
is not: a choice of messages.

Invariants:
    I1. One session is locked at a time, and no longer than its messages take. A session that another receiver has locked is left, and the others follow.
    I2. `take` ends all passes by clearing `wanted`, as in `sweep`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isthmus.entities.queue.run import RunSet
from isthmus.errors import IsthmusError, LockLostError, NotAllowedError
from isthmus.operations.message import sequence_of, session_of, state_of
from isthmus.operations.peek import Census, messages
from isthmus.operations.removal.sweep import Take, Taken, sweep
from isthmus.transport import Client, Receiver

__all__ = ["by_session", "requires_sessions", "sweep_entity"]


def requires_sessions(client: Client, path: str) -> bool:
    """Whether the entity refuses receivers without a session; an entity that refuses all of them is detected later."""
    try:
        Receiver(client, path).wait_attached().close()
    except NotAllowedError:
        return True
    return False


def by_session(
    client: Client, path: str, meant: Census, is_stopped: Callable[[], bool] = lambda: False
) -> dict[str, Census]:
    """The selected messages that exist, by session; memory grows with the runs of messages of one session. Peeking ends when it is stopped."""
    found: dict[str, Census] = {}
    for payload in messages(client, path):
        if is_stopped():
            break
        sequence, state = sequence_of(payload), state_of(payload)
        if sequence in meant.active or sequence in meant.deferred:
            part = found.setdefault(session_of(payload), Census(RunSet(), RunSet(), RunSet()))
            part[state].add(sequence, sequence)
    return found


def sweep_entity(
    client: Client,
    path: str,
    wanted: RunSet,
    take: Take,
    *,
    on_locked: Callable[[str], None] = lambda session_id: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Pass the wanted messages on and complete those that were taken, session by session if the entity requires sessions.

    Args:
        client: connected.
        path: queue, subscription or dead-letter queue.
        wanted: sequence numbers; those that were passed on are removed from it.
        take: as for `sweep`.
        on_locked: called with each session that another receiver has locked.
        is_stopped: as for `sweep`.

    Returns:
        How many messages were completed.

    Raises:
        IsthmusError: the namespace refused or is unreachable; its attribute `completed` says how many were completed, as for `sweep`.
    """
    if not wanted:
        return 0
    if not requires_sessions(client, path):
        return sweep(client, path, wanted, take, is_stopped=is_stopped)
    completed = 0
    meant = Census(wanted, RunSet(), RunSet())
    for session_id, (part, _, _) in by_session(client, path, meant, is_stopped).items():
        if not wanted or is_stopped():
            break
        try:
            completed += sweep(
                client, path, part, _noting(take, wanted, part), session_id=session_id, is_stopped=is_stopped
            )
        except LockLostError as error:
            completed += int(error.attributes.get("completed", 0))
            on_locked(session_id)
        except IsthmusError as error:
            error.attributes["completed"] = completed + int(error.attributes.get("completed", 0))
            raise
    return completed


def _noting(take: Take, wanted: RunSet, part: RunSet) -> Take:
    """`take` for one session; its messages are removed from all wanted ones."""

    def noting(taken: Sequence[Taken], renew: Callable[[], None]) -> Sequence[Taken]:
        for each in taken:
            sequence = sequence_of(each.payload)
            wanted.discard(sequence, sequence)
        done = take(taken, renew)
        if not wanted:
            part.clear()
        return done

    return noting
