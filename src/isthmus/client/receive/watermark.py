"""Up to which enqueued time everything at the primary is handled.

What it is: a low-water mark, pure, in milliseconds of the primary's clock: the enqueued time of the last message that was handled there, or
of the oldest that arrived and is not handled, whichever is earlier. A copy at the secondary whose original was enqueued before it, less an
allowance for clocks that differ, was handled, as far as this receiver was the only one. What it is not: exact; the list of seen messages is.

Invariants:
    W1. The mark never passes the enqueued time of a message that arrived and is not handled, failed ones included.
    W2. The mark never goes back but to stay below such a message; what it remembers is bounded.
    W3. While it is held the mark does not advance: what an earlier link or process had in hand may come again.
"""

from __future__ import annotations

__all__ = ["Watermark"]

_REMEMBERED = 10_000


class Watermark:
    """The mark.

    Args:
        at_ms: where it left off; 0 for nowhere.
    """

    def __init__(self, at_ms: int = 0) -> None:
        self._handled_ms = at_ms
        self._open: dict[object, int] = {}
        self._frozen_ms: int | None = None
        self._held_ms: int | None = None

    @property
    def at_ms(self) -> int:
        """The mark; 0 where nothing was handled."""
        marks = [self._handled_ms, *self._open.values()]
        marks += [each for each in (self._frozen_ms, self._held_ms) if each is not None]
        return min(marks)

    def hold(self) -> None:
        """Messages may be on their way back that are not handled, and are not known here (W3)."""
        self._held_ms = self.at_ms

    def let_go(self) -> None:
        """They have come."""
        self._held_ms = None

    def arrived(self, key: object, enqueued_ms: int) -> None:
        """A message came from the primary."""
        if len(self._open) >= _REMEMBERED:
            self._frozen_ms = self.at_ms if self._frozen_ms is None else min(self._frozen_ms, enqueued_ms)
            return
        self._open[key] = enqueued_ms

    def handled(self, key: object) -> None:
        """A message that came from the primary is handled."""
        enqueued_ms = self._open.pop(key, None)
        if enqueued_ms is not None:
            self._handled_ms = max(self._handled_ms, enqueued_ms)
