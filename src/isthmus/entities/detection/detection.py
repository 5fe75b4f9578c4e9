"""Duplicate detection: the message ids, or duplicate keys of copies, that were seen within the window.

What it is: ids on disk in generations as long as the window (`generation`). What it is not: a cache; memory has only the ids
that are not yet written.
Spec: Microsoft Learn, "Duplicate detection"; for keys, `isthmus.message.duplicate_key`.

Invariants:
    I1. An id counts as seen if and only if it was accepted less than a window ago, by the window's current length, restarts
        in between or not, and also where the clock was set back by up to a window since.
    I2. Ids are written in the same batch as their messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.detection.generation import Generations
from isthmus.entities.storage.key import DETECTION
from isthmus.entities.storage.staging import Staging

__all__ = ["Detection"]


class Detection:
    """The seen ids of one entity.

    Args:
        number: the entity's.
        window_ms: for how long an id counts as seen.
        staging: takes new ids.
        table: of the store, DETECTION for message ids and DUPLICATE_KEY for duplicate keys.
    """

    __slots__ = ("_generations", "_staging", "window_ms")

    def __init__(self, number: int, window_ms: int, staging: Staging, table: int = DETECTION) -> None:
        self._staging = staging
        self._generations = Generations(table, number, window_ms, staging)
        self.window_ms = window_ms

    def fresh(self, message_ids: Sequence[bytes], now_ms: int) -> list[bool]:
        """Per id whether it is new; repeats in the same call are not. Stages nothing."""
        prefixes = self._generations.asked(now_ms)
        journal, pending = self._staging.journal, self._staging.pending_ids
        keys = [[prefix + message_id for message_id in message_ids] for prefix in prefixes]
        stored = [journal.get_many(each) for each in keys]
        count = len(message_ids)
        if (
            all(times.count(None) == count for times in stored)
            and len(set(message_ids)) == count
            and all(map(pending.keys().isdisjoint, keys))
        ):
            return [True] * count  # the usual case, and checking message by message would cost more than the reads
        oldest = now_ms - self.window_ms
        flags = []
        added: set[bytes] = set()
        for message_id, *times in zip(message_ids, *stored, strict=True):
            seen = message_id in added
            for at in times:
                seen = seen or (at is not None and int.from_bytes(at, "big") > oldest)
            if pending and not seen:
                seen = any(pending.get(prefix + message_id, -1) > oldest for prefix in prefixes)
            flags.append(not seen)
            added.add(message_id)
        return flags

    def remember(self, message_ids: Sequence[bytes], now_ms: int) -> None:
        """Stage new ids, and the end of generations that are over."""
        current = self._generations.enter(now_ms)
        seen_at = now_ms.to_bytes(8, "big")
        keys = [current + message_id for message_id in message_ids]
        put = self._staging.batch.put
        for key in keys:
            put(key, seen_at)
        self._staging.pending_ids.update(dict.fromkeys(keys, now_ms))

    def change(self, window_ms: int) -> None:
        """Use another window from now on, also for ids that were seen before; stages it."""
        self._generations.change(window_ms)
        self.window_ms = window_ms

    def end_ms(self) -> int:
        """When the last generation that may have ids is over; 0 where there is none."""
        return self._generations.end_ms()
