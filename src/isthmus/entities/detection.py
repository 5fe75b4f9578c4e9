"""Duplicate detection: which message ids were seen within the window.

What it is: ids on disk in generations as long as the window, so that at most two are asked and an old one is dropped as
one range. What it is not: a cache; memory holds only the ids that are not yet written.
Spec: SERVICE-BUS.md 5.4, W6.

Invariants:
    I1. An id is seen again if and only if it was accepted less than a window ago, restarts in between or not.
    I2. Ids are written in the same batch as their messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.key import after, detection_key
from isthmus.entities.staging import Staging

__all__ = ["Detection"]


class Detection:
    """The seen ids of one entity.

    Args:
        number: the entity's.
        window_ms: for how long an id counts as seen.
        staging: where new ids go.
    """

    __slots__ = ("_generation", "_number", "_staging", "window_ms")

    def __init__(self, number: int, window_ms: int, staging: Staging) -> None:
        self._number = number
        self._staging = staging
        self._generation = -1
        self.window_ms = window_ms

    def fresh(self, message_ids: Sequence[bytes], now_ms: int) -> list[bool]:
        """Per id whether it is new; later equals in the same call are not. Stages nothing."""
        generation = now_ms // self.window_ms
        current = detection_key(self._number, generation)
        before = detection_key(self._number, generation - 1)
        keys = [current + message_id for message_id in message_ids]
        journal, pending = self._staging.journal, self._staging.pending_ids
        older = journal.get_many([before + message_id for message_id in message_ids])
        newer = journal.get_many(keys)
        oldest = now_ms - self.window_ms
        flags = []
        added: set[bytes] = set()
        for key, new, old in zip(keys, newer, older, strict=True):
            seen = key in added or pending.get(key, -1) > oldest
            seen = seen or (new is not None and int.from_bytes(new, "big") > oldest)
            seen = seen or (old is not None and int.from_bytes(old, "big") > oldest)
            flags.append(not seen)
            added.add(key)
        return flags

    def remember(self, message_ids: Sequence[bytes], now_ms: int) -> None:
        """Stage new ids, and the end of generations that are over."""
        batch, pending = self._staging.batch, self._staging.pending_ids
        generation = now_ms // self.window_ms
        if generation != self._generation:
            self._generation = generation
            batch.delete_range(detection_key(self._number, 0), detection_key(self._number, max(0, generation - 1)))
        current = detection_key(self._number, generation)
        seen_at = now_ms.to_bytes(8, "big")
        for message_id in message_ids:
            key = current + message_id
            batch.put(key, seen_at)
            pending[key] = now_ms

    def forget(self) -> None:
        """Stage the removal of all ids, since the window's length changed or the entity goes."""
        self._generation = -1
        end = after(detection_key(self._number, (1 << 64) - 2))
        self._staging.batch.delete_range(detection_key(self._number, 0), end)
