"""Duplicate detection of messages sent to an entity.

What it is: detection by MessageId, where the entity is set so, and by the duplicate keys of routes' copies, always.
What it is not: the storage of ids and keys (`isthmus.entities.detection`). Spec: docs/explanation/protocol.md, Sending.
"""

from __future__ import annotations

from collections.abc import Sequence

from isthmus.entities.detection.detection import Detection
from isthmus.entities.detection.key_detection import KeyDetection
from isthmus.entities.fragment.message_key import detection_id
from isthmus.entities.record.amend import message_id_of
from isthmus.entities.record.record import Parts
from isthmus.entities.storage.staging import Staging

__all__ = ["DuplicateFilter"]


class DuplicateFilter:
    """The detection of one entity.

    Args:
        number: of the entity.
        staging: of its store.
        key_window_ms: for how long duplicate keys are kept.
    """

    __slots__ = ("_by_id", "_by_key", "_key_window_ms", "_number", "_staging")

    def __init__(self, number: int, staging: Staging, key_window_ms: int) -> None:
        self._number = number
        self._staging = staging
        self._key_window_ms = key_window_ms
        self._by_id: Detection | None = None
        # For copies' duplicate keys, which every entity stores once such copies arrive.
        self._by_key: KeyDetection | None = None

    def configure(self, window_ms: int) -> None:
        """Compare message ids within a window; 0 changes nothing."""
        if not window_ms:
            return
        if self._by_id is None:
            self._by_id = Detection(self._number, window_ms, self._staging)
        elif self._by_id.window_ms != window_ms:
            self._by_id.change(window_ms)

    def reset(self) -> None:
        """Drop state that is not in the store; `configure` is called again."""
        self._by_id = self._by_key = None

    def fresh(self, messages: Sequence[Parts], now_ms: int, *, is_fragment: bool) -> Sequence[Parts | None]:
        """The messages, with None for each duplicate; stages the ids and keys.

        A copy with a duplicate key is compared by the key alone, whether or not the entity compares message ids.
        """
        keyed = [parts for parts in messages if parts.duplicate_key]
        if not keyed:
            return _without(messages, self._equal_ids(messages, now_ms, is_fragment))
        if self._by_key is None:
            self._by_key = KeyDetection(self._number, self._key_window_ms, self._staging)
        repeated = self._by_key.repeated([parts.duplicate_key for parts in keyed], now_ms)
        if len(keyed) == len(messages):
            return _without(messages, repeated)
        equal = self._equal_ids([parts for parts in messages if not parts.duplicate_key], now_ms, is_fragment)
        by_key, by_id = iter(repeated or [False] * len(messages)), iter(equal or [False] * len(messages))
        return _without(messages, [next(by_key if parts.duplicate_key else by_id) for parts in messages])

    def fresh_moved(
        self, messages: Sequence[Parts], origins: Sequence[int], now_ms: int, *, is_fragment: bool
    ) -> tuple[Sequence[Parts], Sequence[int]]:
        """The messages forwarded by another entity that are no duplicates, with their origins.

        A message whose id a rule's action has removed is never a duplicate.
        """
        detection = self._by_id
        if detection is None:
            return messages, origins
        named = [(parts, message_id_of(parts)) for parts in messages]
        ids = [message_id for _, message_id in named if message_id]
        if is_fragment:
            ids = [detection_id(parts._replace(message_id=message_id)) for parts, message_id in named if message_id]
        new = detection.fresh(ids, now_ms)
        detection.remember([one for one, is_new in zip(ids, new, strict=True) if is_new], now_ms)
        left = iter(new)
        flags = [next(left) if message_id else True for _, message_id in named]
        return (
            [parts for parts, is_new in zip(messages, flags, strict=True) if is_new],
            [origin for origin, is_new in zip(origins, flags, strict=True) if is_new],
        )

    def _equal_ids(self, messages: Sequence[Parts], now_ms: int, is_fragment: bool) -> list[bool]:
        """Per message whether its id was seen before; empty where none was, or the entity compares none."""
        detection = self._by_id
        if detection is None:
            return []
        ids = [detection_id(parts) if is_fragment else parts.message_id for parts in messages]
        flags = detection.fresh(ids, now_ms)
        fresh = [one for one, is_new in zip(ids, flags, strict=True) if is_new]
        if fresh:
            detection.remember(fresh, now_ms)
        return [] if len(fresh) == len(ids) else [not is_new for is_new in flags]


def _without(messages: Sequence[Parts], dropped: Sequence[bool]) -> Sequence[Parts | None]:
    if not any(dropped):
        return messages
    return [None if is_dropped else parts for parts, is_dropped in zip(messages, dropped, strict=True)]
