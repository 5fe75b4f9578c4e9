"""The deliveries that a broker may repeat over the next link.

What it is: the memory of one source across its lost links. A broker numbers deliveries by link, so that only the message itself identifies a
redelivery. What it is not: duplicate detection: it covers no links of other sources, and no messages without
message-id.

Why no message is taken for another: it is identified by its message-id, which "uniquely identifies a message within the message system" (OASIS
AMQP 1.0, 3.2.4), and by a checksum of the sections of its sender, which no broker may change (3.2); header and annotations may differ.

Invariants:
    I1. A position is expected again only if it was delivered over a lost link and was unsettled, or settled within `RECENT_SECONDS` before.
    I2. Each is expected once; of identical messages, as many as there were, the unsettled ones first. An expectation is forgotten
        `KEPT_SECONDS` after the source is open again, and after the owner has settled the last of the unsettled ones: a message is
        redelivered only once there is credit for it.
    I3. A released message is not expected: when it arrives, it is delivered to the owner.
    I4. Besides unsettled messages at most `RECENT_BYTES` are kept.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from isthmus.amqp import section
from isthmus.amqp.codec import CodecError
from isthmus.amqp.performative import Modified, Released

__all__ = ["KEPT_SECONDS", "RECENT_SECONDS", "Again", "RedeliveryMemory", "message_key"]

# So long before a loss is detected, frames may have been written that the broker did not receive: a connection on which nothing arrives
# any more is given up after 60 s (`isthmus.transport.client`).
RECENT_SECONDS = 75.0
RECENT_BYTES = 32 << 20
KEPT_SECONDS = 600.0

# After these outcomes a message is redelivered, as a new delivery.
_GIVEN_BACK = (Released, Modified)

Key = tuple[bytes, int, int]


def message_key(payload: bytes) -> Key | None:
    """The identity of a message; None where it has none."""
    try:
        sections = section.locate(payload)
        at = section.message_id_at(payload, sections.properties)
        message_id = section.message_id_text(payload, at)
    except (CodecError, IndexError, ValueError):
        return None
    if not message_id:
        return None
    start = sections.properties[0]
    return message_id, len(payload) - start, crc32(memoryview(payload)[start:])


class Again(NamedTuple):
    """A delivery that was delivered before.

    Attributes:
        position: its position then.
        is_settled: whether it is settled: then `state` is its outcome, and it is not delivered to the owner.
        state: see `is_settled`; None is accepted.
    """

    position: int
    is_settled: bool
    state: Any = None


class _Batch(NamedTuple):
    positions: Sequence[int]
    payloads: Sequence[bytes]
    nbytes: int


class RedeliveryMemory:
    """The memory of one source."""

    def __init__(self) -> None:
        self._open: deque[_Batch] = deque()  # some may be unsettled; in the order of positions
        self._recent: deque[tuple[float, _Batch]] = deque()
        self._recent_bytes = 0
        self._outcomes: deque[tuple[int, int, Any]] = deque()  # outcomes other than accepted
        self._expected: dict[Key, deque[int]] = {}  # a sender may have sent a message twice
        self._unsettled: dict[int, Key] = {}  # positions of lost links that the owner has not settled
        self._owed: dict[int, Any] = {}  # outcomes of positions of lost links
        self._until = math.inf

    @property
    def is_expecting(self) -> bool:
        """Whether any delivery may be a redelivery."""
        return bool(self._expected)

    def delivered(self, positions: Sequence[int], payloads: Sequence[bytes], now: float, lowest: int | None) -> None:
        """Messages were delivered to the owner, with ascending positions; `lowest` is the lowest position that was unsettled before."""
        self._trim(now, lowest)
        self._open.append(_Batch(positions, payloads, sum(map(len, payloads))))

    def payload(self, position: int) -> bytes:
        """The unsettled message that the present link delivered with this position."""
        for batch in self._open:
            if batch.positions[0] <= position <= batch.positions[-1]:
                return batch.payloads[batch.positions.index(position)]
        raise LookupError(position)

    def settled(self, first: int, last: int, state: Any) -> None:
        """Positions of the present link got an outcome; None is accepted."""
        if state is not None:
            self._outcomes.append((first, last, state))

    def _trim(self, now: float, lowest: int | None) -> None:
        batches, recent = self._open, self._recent
        while batches and (lowest is None or batches[0].positions[-1] < lowest):
            batch = batches.popleft()
            recent.append((now, batch))
            self._recent_bytes += batch.nbytes
        while recent and (recent[0][0] < now - RECENT_SECONDS or self._recent_bytes > RECENT_BYTES):
            self._recent_bytes -= recent.popleft()[1].nbytes
        if self._outcomes:
            # A message that was delivered over two links has a lower position than messages before it.
            lowest_kept = min((each.positions[0] for each in self._batches()), default=math.inf)
            while self._outcomes and self._outcomes[0][1] < lowest_kept:
                self._outcomes.popleft()

    def _batches(self) -> list[_Batch]:
        return [*(each for _, each in self._recent), *self._open]

    def lost(self, unsettled: Iterable[tuple[int, int]], now: float) -> None:
        """The link is lost; `unsettled` are the first and last positions of its unsettled runs."""
        runs = list(unsettled)
        self._trim(now, runs[0][0] if runs else None)
        outstanding = {position for first, last in runs for position in range(first, last + 1)}
        outcomes = {position: state for first, last, state in self._outcomes for position in range(first, last + 1)}
        found: dict[Key, list[int]] = {}
        for batch in self._batches():
            for position, payload in zip(batch.positions, batch.payloads, strict=True):
                state = outcomes.get(position)
                key = None if isinstance(state, _GIVEN_BACK) else message_key(payload)
                if key is None:
                    continue
                found.setdefault(key, []).append(position)
                if position in outstanding:
                    self._unsettled[position] = key
                elif state is not None:
                    self._owed[position] = state
        for key, positions in found.items():
            both = [*positions, *self._expected.get(key, ())]
            self._expected[key] = deque(sorted(both, key=lambda each: (each not in self._unsettled, each)))
        self._open.clear()
        self._recent.clear()
        self._outcomes.clear()
        self._recent_bytes = 0
        self._until = math.inf

    def opened(self, now: float) -> None:
        """The source is open again."""
        self._until = now + KEPT_SECONDS

    def settle(self, first: int, last: int, state: Any, now: float) -> None:
        """The owner settles positions, of which some may be of lost links."""
        if not self._unsettled:
            return
        for position in [each for each in self._unsettled if first <= each <= last]:
            key = self._unsettled.pop(position)
            self._until = max(self._until, now + KEPT_SECONDS)
            if isinstance(state, _GIVEN_BACK):
                self._forget_one(key, position)
            elif state is not None:
                self._owed[position] = state

    def again(self, payload: bytes, now: float) -> Again | None:
        """The earlier delivery of a message; None where there is none, or it was released. The result has to be passed to `delivered`, and
        where it is settled to `settled`: its link may be lost, too.
        """
        if now >= self._until and not self._unsettled:
            self._forget()
        if not self._expected:
            return None
        key = message_key(payload)
        if key is None or key not in self._expected:
            return None
        position = self._expected[key][0]
        self._forget_one(key, position)
        if self._unsettled.pop(position, None) is not None:
            return Again(position, is_settled=False)
        return Again(position, is_settled=True, state=self._owed.pop(position, None))

    def _forget_one(self, key: Key, position: int) -> None:
        positions = self._expected.get(key, deque())
        if position in positions:
            positions.remove(position)
        if not positions:
            self._expected.pop(key, None)

    def _forget(self) -> None:
        self._expected.clear()
        self._unsettled.clear()
        self._owed.clear()
        self._until = math.inf
