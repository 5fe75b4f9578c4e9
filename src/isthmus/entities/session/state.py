"""The states of sessions, which receivers store with a session.

What it is: a state in the row of its session, and the quota that it counts to. What it is not: who may read and set it
(`session.lock`). Spec: docs/explanation/protocol.md, Sessions, Management.

Invariants:
    I1. A session's state is as durable as a message, and stays until it is cleared.
"""

from __future__ import annotations

from typing import Protocol

from isthmus.entities.member.quota import Owner, Quota
from isthmus.entities.session.messages import SessionMessages
from isthmus.entities.session.row import pack_row, unpack_row
from isthmus.entities.session.session import Session
from isthmus.entities.storage.key import session_key
from isthmus.entities.storage.staging import Member
from isthmus.errors import MessageTooLargeError

__all__ = ["StatefulQueue", "change", "read"]


class StatefulQueue(Owner, Member, Protocol):
    """The entity that has the sessions.

    Attributes:
        number: under which its sessions are in the store.
        max_message_size_bytes: of one message, and of a state.
        quota: its limit of bytes.
    """

    number: int
    max_message_size_bytes: int
    quota: Quota


def read(queue: StatefulQueue, session: Session) -> bytes | None:
    """A session's state; None if there is none."""
    if session.state_bytes is None:
        return None
    staging = queue.context.staging
    staging.write()
    row = staging.journal.get(session_key(queue.number, session.session_id))
    return None if row is None else unpack_row(row)[2]


def change(queue: StatefulQueue, session: Session, messages: SessionMessages, content: bytes | None) -> None:
    """Stage another state of a session; None clears it.

    Raises:
        MessageTooLargeError: the state is larger than a message may be.
        QuotaExceededError: the entity is full.
    """
    grown = len(content or b"") - (session.state_bytes or 0)
    if content is not None and len(content) > queue.max_message_size_bytes:
        raise MessageTooLargeError(len(content), queue.max_message_size_bytes)
    if grown > 0:
        queue.quota.check(queue, grown)
    session.state_at_ms = queue.context.clock.wall_ms()
    session.state_bytes = None if content is None else len(content)
    session.is_stored = True
    row = pack_row(session.number, session.state_at_ms, content)
    staging = queue.context.staging
    staging.batch.put(session_key(queue.number, session.session_id), row)
    queue.size_bytes += grown
    staging.touch(queue)
    staging.touch(messages)
