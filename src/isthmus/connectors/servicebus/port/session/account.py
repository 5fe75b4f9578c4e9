"""The unsettled deliveries of a source with sessions, across all its session links.

What it is: for each delivered position the link and the delivery id that settle it, and the positions that a lost session may redeliver
although they were completed. What it is not: it sends nothing, and keeps no message except the newest of each link.

A message of a session can be settled only by the link that has the session locked. When a link is lost its messages are available again, and
are redelivered over the session's next link, to the source or to another receiver. Meanwhile the owner may still settle them: a completion
is remembered, and repeated when the message is redelivered.

Why no message is taken for another. A position is remembered only for `KEPT_SECONDS`, and only for a message that was enqueued no later than
the newest that the lost link delivered: where an entity returns to an earlier state, positions are assigned to other messages.

Invariants:
    I1. A position is unsettled from `admit` until the first `settle` that covers it.
    I2. A position that is redelivered while it is unsettled is settled over the link of its last delivery.
    I3. A message that was completed within `RECENT_SECONDS` before its link or the connection was lost, or after that, is completed again when
        it is redelivered, and not passed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.bridge.lease.message_age import enqueued_ms

__all__ = ["KEPT_SECONDS", "RECENT_SECONDS", "Admitted", "SessionAccount", "Span"]

# So long before a loss is detected a settlement may have met a lock that was already lost.
RECENT_SECONDS = 10.0
# A lock lasts five minutes at most; then the message is redelivered.
KEPT_SECONDS = 600.0
_NO_LINK = 0


class Span(NamedTuple):
    """Consecutive deliveries of one link."""

    link: int
    first_id: int
    last_id: int


class Admitted(NamedTuple):
    """Received deliveries: those to pass to the owner, and those to complete at once."""

    positions: Sequence[int]
    payloads: Sequence[bytes]
    again: Sequence[Span]


class _Known(NamedTuple):
    until: float
    enqueued_ms: int


class _LinkState:
    """The state of a link: the count of unsettled deliveries, recent completions, and its newest message."""

    __slots__ = ("newest", "recent", "unsettled")

    def __init__(self) -> None:
        self.unsettled = 0
        self.recent: deque[tuple[float, int]] = deque()
        self.newest = b""


class SessionAccount:
    """The account of one source. Links are identified by numbers from 1 on."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, int]] = {}  # by position: link and delivery id
        self._links: dict[int, _LinkState] = {}
        self._bounds: dict[
            int, int
        ] = {}  # by position without a link: the newest enqueued time of the link that delivered it
        self._known: dict[int, _Known] = {}
        self._closed: deque[tuple[float, _LinkState]] = deque()  # links that released their session lately

    @property
    def unsettled(self) -> int:
        """How many positions are unsettled."""
        return len(self._entries)

    def unsettled_of(self, link: int) -> int:
        """How many deliveries of a link are unsettled."""
        state = self._links.get(link)
        return state.unsettled if state is not None else 0

    def admit(
        self, link: int, first_id: int, positions: Sequence[int], payloads: Sequence[bytes], now: float
    ) -> Admitted:
        """A link delivered messages with consecutive ids."""
        state = self._links.setdefault(link, _LinkState())
        state.newest = payloads[-1]
        again: list[Span] = []
        if self._known and not self._known.keys().isdisjoint(positions):
            fresh = []
            for at, position in enumerate(positions):
                if self._is_again(position, payloads[at], now):
                    again.append(Span(link, first_id + at, first_id + at))
                    state.recent.append((now, position))  # this completion may be lost, too
                else:
                    fresh.append(at)
        else:
            fresh = list(range(len(positions)))
        for at in fresh:
            position = positions[at]
            before = self._entries.get(position)
            if before is not None:
                self._forget_delivery(position, before[0])
            self._entries[position] = link, first_id + at
        state.unsettled += len(fresh)
        if again:
            return Admitted([positions[at] for at in fresh], [payloads[at] for at in fresh], again)
        return Admitted(positions, payloads, again)

    def settle(self, first: int, last: int, now: float, *, completes: bool) -> list[Span]:
        """Removes positions first to last from the account; returns how to settle those whose link is open.

        Args:
            first: position.
            last: position.
            now: monotonic seconds.
            completes: whether they are completed; other dispositions are lost with a link, and the messages are redelivered.
        """
        spans: list[Span] = []
        entries = self._entries
        is_wide = last - first >= len(entries)
        within = sorted(each for each in entries if first <= each <= last) if is_wide else range(first, last + 1)
        for position in within:
            found = entries.pop(position, None)
            if found is None:
                continue
            link, delivery_id = found
            if link == _NO_LINK:
                bound = self._bounds.pop(position)
                if completes:
                    self._known[position] = _Known(now + KEPT_SECONDS, bound)
                continue
            state = self._links[link]
            state.unsettled -= 1
            if completes:
                state.recent.append((now, position))
            if spans and spans[-1].link == link and spans[-1].last_id + 1 == delivery_id:
                spans[-1] = Span(link, spans[-1].first_id, delivery_id)
            else:
                spans.append(Span(link, delivery_id, delivery_id))
        for link in {span.link for span in spans} if completes else ():
            recent = self._links[link].recent
            while recent[0][0] < now - RECENT_SECONDS:
                recent.popleft()
        return spans

    def link_lost(self, link: int, now: float) -> None:
        """A link is lost with its locks: its unsettled messages are redelivered, and possibly some that were completed recently."""
        state = self._links.pop(link, None)
        if state is None:
            return
        self._known = {position: each for position, each in self._known.items() if now < each.until}
        bound = self._know(state, now)
        for position, (of, delivery_id) in self._entries.items():
            if of == link:
                self._entries[position] = _NO_LINK, delivery_id
                self._bounds[position] = bound

    def link_closed(self, link: int, now: float) -> None:
        """A link without unsettled messages releases its session. Its earlier settlements precede the release, and are received unless
        the connection is lost.
        """
        while self._closed and self._closed[0][0] < now - RECENT_SECONDS:
            self._closed.popleft()
        state = self._links.pop(link, None)
        if state is not None and state.recent:
            self._closed.append((now, state))

    def connection_lost(self, now: float) -> None:
        """All links are lost."""
        for link in list(self._links):
            self.link_lost(link, now)
        while self._closed:
            self._know(self._closed.popleft()[1], now)

    def forget(self) -> None:
        """Forgets all positions."""
        self._known.clear()

    def _know(self, state: _LinkState, now: float) -> int:
        """Remembers a link's recent completions; returns the enqueued time of its newest message."""
        bound = enqueued_ms(state.newest)
        for at, position in state.recent:
            if at >= now - RECENT_SECONDS:
                self._known[position] = _Known(now + KEPT_SECONDS, bound)
        return bound

    def _is_again(self, position: int, payload: bytes, now: float) -> bool:
        known = self._known.pop(position, None)
        return known is not None and now < known.until and 0 < enqueued_ms(payload) <= known.enqueued_ms

    def _forget_delivery(self, position: int, link: int) -> None:
        if link == _NO_LINK:
            del self._bounds[position]
        else:
            self._links[link].unsettled -= 1
