"""The row that every entity keeps in the store: cursors, counts, and the time of its last use.

What it is: its form, and what of an entity is in it. What it is not: the meaning of a kind of entity's own mark (`topic`).
Spec: docs/explanation/store.md.
"""

from __future__ import annotations

import struct
from typing import Protocol

__all__ = ["cursors", "fresh_state", "load_state", "pack_state"]

_STATE = struct.Struct(">9QB")
# Of an entity that has no row.
_FRESH = (0, 1, 1, 0, 0, 0, 0, 0, 0, 0)


class Stateful(Protocol):
    """Whose row it is.

    Attributes:
        last: highest sequence number given out.
        head: lowest sequence number of a message that is not gone.
        cleaned: lowest sequence number under which something may be in the store.
        active_count: messages that are neither deferred nor scheduled.
        deferred_count: messages set aside.
        scheduled_count: messages that are not due.
        size_bytes: of all records.
        accessed_at_ms: wall time of the last use.
        mark: what else the kind of entity has to remember.
        may_expire: whether some message may have an end of life.
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
    """Give an entity what its row says; None: it has none yet."""
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
    """Of an entity's row in the store: last sequence number, head, active and deferred messages."""
    last, head, _, active_count, deferred_count, *_ = _STATE.unpack(row)
    return last, head, active_count, deferred_count


def fresh_state(before_first: int) -> bytes:
    """The row of an entity without messages whose first sequence number will be the next."""
    return _STATE.pack(before_first, before_first + 1, before_first + 1, 0, 0, 0, 0, 0, 0, 0)
