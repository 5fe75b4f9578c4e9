"""The row that every entity keeps in the store: cursors, counts, and the time of its last use.

What it is: its form. What it is not: the meaning of a kind of entity's own mark (`topic`). Spec: docs/explanation/store.md.
"""

from __future__ import annotations

import struct

__all__ = ["FRESH", "cursors", "fresh_state", "pack_state", "unpack_state"]

_STATE = struct.Struct(">9QB")
_State = tuple[int, int, int, int, int, int, int, int, int, int]

pack_state = _STATE.pack
# Of an entity that has no row: last, head, cleaned, active, deferred, scheduled, bytes, last use, mark, flags.
FRESH: _State = (0, 1, 1, 0, 0, 0, 0, 0, 0, 0)


def unpack_state(row: bytes) -> _State:
    """The fields of a row, as `pack_state` takes them."""
    fields: _State = _STATE.unpack(row)
    return fields


def cursors(row: bytes) -> tuple[int, int, int, int]:
    """Of an entity's row in the store: last sequence number, head, active and deferred messages."""
    last, head, _, active_count, deferred_count, *_ = _STATE.unpack(row)
    return last, head, active_count, deferred_count


def fresh_state(before_first: int) -> bytes:
    """The row of an entity without messages whose first sequence number will be the next."""
    return _STATE.pack(before_first, before_first + 1, before_first + 1, 0, 0, 0, 0, 0, 0, 0)
