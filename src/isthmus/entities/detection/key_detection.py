"""Detection of copies by their duplicate keys: as of message ids, except that copies in order need no read of the store.

What it is: the marks of copies' sources, rows of keys for copies above these (`key_run`), and a `Detection` of the keys of
all others. What it is not: the reading of keys (`copy`).
Specification: `isthmus.message.duplicate_key`; docs/explanation/guarantees.md.

Invariants:
    I1. Whether a key was seen is what `Detection` alone would return; the marks save its reads and change no result. A copy
        above the mark of its source was not taken (`source_mark`, I1), as long as all keys that count as seen were stored at or
        after the time from which on the marks cover all.
    I2. Keys that an earlier release stored without marks are looked up until they are over.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.detection.detection import Detection
from isthmus.entities.detection.key_run import KeyRuns
from isthmus.entities.detection.source_mark import SourceMarks
from isthmus.entities.storage.key import DUPLICATE_KEY
from isthmus.entities.storage.staging import Staging
from isthmus.message.duplicate_key import KEY_BYTES

__all__ = ["KeyDetection"]


class KeyDetection:
    """The duplicate keys of one entity.

    Args:
        number: the entity's.
        window_ms: for how long a key counts as seen.
        staging: takes new keys.
    """

    __slots__ = ("_detection", "_marks", "_runs")

    def __init__(self, number: int, window_ms: int, staging: Staging) -> None:
        self._detection = Detection(number, window_ms, staging, DUPLICATE_KEY)
        self._runs = KeyRuns(number, window_ms, staging)
        self._marks = SourceMarks(number, staging)

    def repeated(self, keys: Sequence[bytes], now_ms: int) -> list[bool]:
        """Per key whether it was seen before; empty where none was. Stages the new ones."""
        detection, marks = self._detection, self._marks
        ids = [key[:KEY_BYTES] for key in keys]
        positions = [key[KEY_BYTES:] for key in keys]
        raised = marks.ahead(positions) if self._trusts(now_ms) else None
        if raised is not None:
            self._runs.remember(ids, positions, raised, now_ms)
            self._raise(raised)
            return []
        in_runs = self._runs.seen(ids, positions, now_ms)
        flags = [is_new and not was for is_new, was in zip(detection.fresh(ids, now_ms), in_runs, strict=True)]
        if not any(flags):
            return [True] * len(keys)
        detection.remember([one for one, is_new in zip(ids, flags, strict=True) if is_new], now_ms)
        self._raise(marks.highest([position for position, is_new in zip(positions, flags, strict=True) if is_new]))
        return [] if all(flags) else [not is_new for is_new in flags]

    def _trusts(self, now_ms: int) -> bool:
        """Whether the marks cover all keys that count as seen."""
        if self._marks.trusted_from_ms is None:
            self._marks.begin(self._end_ms())
        trusted_from_ms = self._marks.trusted_from_ms
        return trusted_from_ms is not None and now_ms - self._detection.window_ms >= trusted_from_ms

    def _raise(self, marks: dict[bytes, bytes]) -> None:
        if self._marks.has_room(marks):
            self._marks.raise_to(marks)
        else:
            self._marks.begin(self._end_ms())

    def _end_ms(self) -> int:
        """When the generations of all keys are over, staged or stored; 0 where there are none."""
        return max(self._detection.end_ms(), self._runs.end_ms())
