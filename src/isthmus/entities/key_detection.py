"""Detection of copies by their duplicate keys: as of message ids, but that copies in order need no look into the store.

What it is: the marks of copies' sources, rows of keys for copies above these (`key_run`), and a `Detection` of the keys of
all others. What it is not: the reading of keys (`copy`).
Specification: `isthmus.message.duplicate_key`; docs/explanation/guarantees.md.

Invariants:
    I1. Whether a key was seen is what `Detection` alone would say; the marks save its reads and change no answer. A copy
        above the mark of its source was not taken (`source_mark`, I1), as long as all generations that would be asked
        begin at or after the time from which on the marks cover all.
    I2. Keys that an earlier release kept without marks are looked up until they are over.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.detection import Detection
from isthmus.entities.key import DUPLICATE_KEY, KEY_RUN, detection_generation, detection_key, numbered_span
from isthmus.entities.key_run import KeyRuns
from isthmus.entities.source_mark import SourceMarks
from isthmus.entities.staging import Staging
from isthmus.message.duplicate_key import KEY_BYTES

__all__ = ["KeyDetection"]


class KeyDetection:
    """The keys of copies that one entity keeps.

    Args:
        number: the entity's.
        window_ms: for how long a key counts as seen.
        staging: where new keys go.
    """

    __slots__ = ("_detection", "_marks", "_number", "_runs", "_staging")

    def __init__(self, number: int, window_ms: int, staging: Staging) -> None:
        self._number = number
        self._staging = staging
        self._detection = Detection(number, window_ms, staging, DUPLICATE_KEY)
        self._runs = KeyRuns(number, window_ms, staging)
        self._marks = SourceMarks(number, staging)

    def repeated(self, keys: Sequence[bytes], now_ms: int) -> list[bool]:
        """Per key whether it was seen before; empty where none was. Stages those that were not."""
        detection, marks = self._detection, self._marks
        ids = [key[:KEY_BYTES] for key in keys]
        places = [key[KEY_BYTES:] for key in keys]
        raised = marks.ahead(places) if self._trusts(now_ms) else None
        if raised is not None:
            self._runs.remember(ids, places, raised, now_ms)
            self._raise(raised)
            return []
        in_runs = self._runs.seen(ids, places, now_ms)
        flags = [is_new and not was for is_new, was in zip(detection.fresh(ids, now_ms), in_runs, strict=True)]
        if not any(flags):
            return [True] * len(keys)
        detection.remember([one for one, is_new in zip(ids, flags, strict=True) if is_new], now_ms)
        self._raise(marks.highest([place for place, is_new in zip(places, flags, strict=True) if is_new]))
        return [] if all(flags) else [not is_new for is_new in flags]

    def _trusts(self, now_ms: int) -> bool:
        """Whether the marks cover all keys that count as seen."""
        if self._marks.trusted_from_ms is None:
            self._marks.begin(self._after_all())
        window_ms = self._detection.window_ms
        asked_from_ms = (now_ms // window_ms - 1) * window_ms
        trusted_from_ms = self._marks.trusted_from_ms
        return trusted_from_ms is not None and asked_from_ms >= trusted_from_ms

    def _raise(self, marks: dict[bytes, bytes]) -> None:
        if not self._marks.has_room(marks):
            # What is staged now is in the latest generation, and the store need not have it yet.
            latest_ms = (max(self._detection.latest, self._runs.latest) + 1) * self._detection.window_ms
            self._marks.begin(max(latest_ms, self._after_all()))
        else:
            self._marks.raise_to(marks)

    def _after_all(self) -> int:
        """When the generations of all keys in the store are over; 0 where there are none."""
        latest = max(self._latest_of(DUPLICATE_KEY), self._latest_of(KEY_RUN))
        return (latest + 1) * self._detection.window_ms

    def _latest_of(self, table: int) -> int:
        """The latest generation of a table; -1 where there is none."""
        generation = -1
        first, end = numbered_span(table, self._number)
        while (found := next(iter(self._staging.journal.scan(first, end)), None)) is not None:
            generation = detection_generation(found[0])
            first = detection_key(table, self._number, generation + 1)
        return generation
