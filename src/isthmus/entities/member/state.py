"""The row of every entity in the store: cursors, counts, and the time of its last use.

What it is: its form, and the attributes in it. What it is not: the meaning of `mark`, which depends on the kind of entity (`topic`).
Spec: docs/explanation/store.md.
"""

from __future__ import annotations

import struct
from typing import Protocol

__all__ = ["cursors", "fresh_state", "load_state", "pack_state"]

_STATE = struct.Struct(">9QB")
# The row of an entity that has none.
_FRESH = (0, 1, 1, 0, 0, 0, 0, 0, 0, 0)


class Stateful(Protocol):
    """The entity that has the row.

    Attributes:
        last: highest sequence number assigned.
        head: lowest sequence number of a message that is not removed.
        cleaned: lowest sequence number under which something may be in the store.
        active_count: messages that are neither deferred nor scheduled.
        deferred_count: deferred messages.
        scheduled_count: messages that are not due.
        size_bytes: of all records.
        accessed_at_ms: wall time of the last use.
        mark: an additional value for the kind of entity.
        may_expire: whether some message may expire.
    """

    last: int
    head: int
    cleaned: int
    active_count: int
    deferred_count: int
    scheduled_count: int
    size_bytes: int
    accessed_at_ms: int
    mark: int
    may_expire: bool


def pack_state(entity: Stateful) -> bytes:
    """The row of an entity."""
    return _STATE.pack(
        entity.last,
        entity.head,
        entity.cleaned,
        entity.active_count,
        entity.deferred_count,
        entity.scheduled_count,
        entity.size_bytes,
        entity.accessed_at_ms,
        entity.mark,
        entity.may_expire,
    )


def load_state(entity: Stateful, row: bytes | None) -> None:
    """Set an entity's attributes from its row; None: it has none yet."""
    (
        entity.last,
        entity.head,
        entity.cleaned,
        entity.active_count,
        entity.deferred_count,
        entity.scheduled_count,
        entity.size_bytes,
        entity.accessed_at_ms,
        entity.mark,
        flags,
    ) = _STATE.unpack(row) if row else _FRESH
    entity.may_expire = bool(flags & 1)


def cursors(row: bytes) -> tuple[int, int, int, int]:
    """From an entity's row in the store: last sequence number, head, active and deferred messages."""
    last, head, _, active_count, deferred_count, *_ = _STATE.unpack(row)
    return last, head, active_count, deferred_count


def fresh_state(before_first: int) -> bytes:
    """The row of an entity without messages whose first sequence number will be the next."""
    return _STATE.pack(before_first, before_first + 1, before_first + 1, 0, 0, 0, 0, 0, 0, 0)
