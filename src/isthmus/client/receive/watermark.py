"""The enqueued time up to which every message at the primary is handled.

What it is: a low-water mark, pure, in milliseconds of the primary's clock: the enqueued time of the last message that was handled there, or
of the oldest that arrived and is not handled, whichever is earlier. A copy at the secondary whose original was enqueued before the mark,
less an allowance for clocks that differ, was handled, if this receiver was the only one. What it is not: exact; the list of seen messages is.

Invariants:
    W1. The mark never passes the enqueued time of a message that arrived and is not handled, failed ones included.
    W2. The mark moves back only to stay below such a message; its memory is bounded.
    W3. While the mark is paused it does not advance: unsettled messages of an earlier link or process may be delivered again.
"""

from __future__ import annotations

__all__ = ["Watermark"]

_REMEMBERED = 10_000


class Watermark:
    """The watermark.

    Args:
        at_ms: the stored mark; 0 if there is none.
    """

    def __init__(self, at_ms: int = 0) -> None:
        self._handled_ms = at_ms
        self._open: dict[object, int] = {}
        self._frozen_ms: int | None = None
        self._paused_ms: int | None = None

    @property
    def at_ms(self) -> int:
        """The mark; 0 if nothing was handled."""
        marks = [self._handled_ms, *self._open.values()]
        marks += [each for each in (self._frozen_ms, self._paused_ms) if each is not None]
        return min(marks)

    def pause(self) -> None:
        """Unhandled messages that are not known here may be delivered again (W3)."""
        self._paused_ms = self.at_ms

    def resume(self) -> None:
        """All of them have been delivered again."""
        self._paused_ms = None

    def arrived(self, key: object, enqueued_ms: int) -> None:
        """A message arrived from the primary."""
        if len(self._open) >= _REMEMBERED:
            self._frozen_ms = self.at_ms if self._frozen_ms is None else min(self._frozen_ms, enqueued_ms)
            return
        self._open[key] = enqueued_ms

    def handled(self, key: object) -> None:
        """A message from the primary is handled."""
        enqueued_ms = self._open.pop(key, None)
        if enqueued_ms is not None:
            self._handled_ms = max(self._handled_ms, enqueued_ms)
