"""`$management` operations on sessions: renew the lock, get and set the state, list.

What it is: requests converted to calls of the entity, results to reply bodies. What it is not: the semantics.
Spec: docs/explanation/protocol.md, Management, Sessions.

Invariants:
    I1. A connection (and link, where the client names it) that does not have the lock of a session can neither renew it nor
        read or change its state.
"""

from __future__ import annotations

from isthmus.amqp.types import Array, Int, Timestamp
from isthmus.broker.link.condition import refusal
from isthmus.broker.link.request import Reply, Request, Respond
from isthmus.entities import Engine
from isthmus.entities.port import Entity, MessageSource, SessionLock
from isthmus.errors import InvalidArgumentError, NotAllowedError, SessionLockLostError

__all__ = ["get_state", "held", "linked_session", "list_sessions", "renew_lock", "set_state", "settling"]

_STRING = 0xB1
# What clients send for "with active messages or a state": .NET's DateTime.MaxValue, which they round differently.
_FOREVER_MS = 253_402_300_799_000
_LIMIT = 10_000


def held(engine: Engine, entity: str, request: Request) -> SessionLock:
    """The lock of the session that a request names.

    Raises:
        NotAllowedError: the entity has no sessions.
        SessionLockLostError: the client does not have it.
        InvalidArgumentError: the request names none.
    """
    sessions = engine.receiver(entity).sessions
    if sessions is None:
        raise NotAllowedError(f"The operation needs a session, and '{entity}' does not require sessions.")
    link_name = request.properties.get("associated-link-name")
    session_id = request.field("session-id", str)
    return sessions.held_session(session_id, request.holder, link_name if isinstance(link_name, str) else "")


def settling(engine: Engine, entity: str, request: Request) -> MessageSource:
    """The owner of the messages that a request settles: the entity, or the session that it names.

    Raises:
        InvalidArgumentError: the entity requires sessions, and the request names neither one nor the link that has it.
        SessionLockLostError: the client does not hold it.
    """
    queue = engine.receiver(entity)
    sessions = queue.sessions
    if sessions is None:
        return queue
    if request.field("session-id", str, optional=True) is None:
        # The Go SDK names the link on which it has the session, and not the session.
        link_name = request.properties.get("associated-link-name")
        if isinstance(link_name, str) and link_name:
            return sessions.hold_on(request.holder, link_name).messages
        raise InvalidArgumentError(f"'{entity}' requires sessions; the request must name its 'session-id'")
    return held(engine, entity, request).messages


def linked_session(queue: Entity, request: Request) -> str | None:
    """The session of the link that a request names; None if it names none that has a session."""
    link_name = request.properties.get("associated-link-name")
    sessions = queue.source.sessions if queue.source is not None else None
    if sessions is None or not isinstance(link_name, str):
        return None
    try:
        return sessions.hold_on(request.holder, link_name).session_id
    except SessionLockLostError:
        return None


def renew_lock(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """renew-session-lock."""
    respond(Reply(body={"expiration": Timestamp(held(engine, entity, request).renew())}))


def get_state(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """get-session-state."""
    respond(Reply(body={"session-state": held(engine, entity, request).get_state()}))


def set_state(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """set-session-state."""
    # An empty state counts as none: the Go SDK clears the state with one, and then reads null from the service.
    state = request.field("session-state", bytes, optional=True) or None

    def failed(error: Exception) -> None:
        status, condition, text = refusal(error)
        respond(Reply(status, text, None, condition))

    held(engine, entity, request).set_state(state, lambda: respond(Reply()), failed)


def list_sessions(engine: Engine, entity: str, request: Request, respond: Respond) -> None:
    """get-message-sessions."""
    sessions = engine.receiver(entity).sessions
    ids: list[str] = []
    skip = max(0, request.field("skip", int, optional=True) or 0)
    if sessions is not None:
        updated_ms = request.field("last-updated-time", int, optional=True)
        if updated_ms is not None and updated_ms >= _FOREVER_MS:
            updated_ms = None
        top = request.field("top", int, optional=True)
        ids = sessions.list_sessions(updated_ms, skip, _LIMIT if top is None else max(0, min(top, _LIMIT)))
    if ids:
        respond(Reply(body={"skip": Int(skip), "sessions-ids": Array(_STRING, ids)}))
    else:
        respond(Reply(204, "No sessions were found.", None, "com.microsoft:session-not-found"))
