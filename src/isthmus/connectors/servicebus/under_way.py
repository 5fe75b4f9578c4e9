"""What a sink has handed over and is not done with.

What it is: the account of deliveries between row and settlement. A delivery is numbered as it is handed over; the sender's
ordinals, which begin anew with each connection, are mapped to it. The account says what is to be settled, in order, when
outcomes come, what must be sent again, and takes a refused envelope apart into its messages. What it is not: the sending
(`outlet`), which holds the lock under which all of this is called.

Invariants:
    I1. A row is settled only when its delivery and all before it have an outcome.
    I2. What `pending` gives is exactly what was sent and has no outcome, in order.
    I3. An envelope that is refused costs only the message that is at fault: the others are sent again, each alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from isthmus.connectors.servicebus.splice import Refused
from isthmus.errors import IsthmusError, MessageTooLargeError
from isthmus.transport.sender import envelope, messages_of

__all__ = ["Chunk", "UnderWay"]


class Chunk:
    """Deliveries handed over together; `sequences[i]` are the source's numbers of delivery i."""

    __slots__ = ("done", "flush", "payloads", "refused", "sequences")

    def __init__(
        self, payloads: list[bytes], sequences: Sequence[Any], refused: list[tuple[int, Refused]], flush: int | None
    ) -> None:
        self.payloads = payloads
        self.sequences = sequences
        self.refused = refused
        self.flush = flush
        self.done = 0


class UnderWay:
    """The account of one target.

    Args:
        batched: whether deliveries are envelopes, and `sequences` groups of numbers.
        settle: called with sequence numbers whose messages the target has taken.
        refuse: called with the sequence number of a row that gets another disposition; None where it has none.
        flushed: called with the number of a flush row before which everything is done with.

    Attributes:
        acknowledged: messages that the target has taken.
        transmitted: deliveries sent at least once, or refused unsent.
    """

    def __init__(
        self,
        *,
        batched: bool,
        settle: Callable[[Sequence[int]], None],
        refuse: Callable[[int | None, Refused], None],
        flushed: Callable[[int], None],
    ) -> None:
        self.acknowledged = 0
        self.transmitted = 0
        self._batched = batched
        self._settle = settle
        self._refuse = refuse
        self._flushed = flushed
        self._chunks: deque[Chunk] = deque()
        self._base = 0  # deliveries that are done with: those before the first chunk
        self._next = 0  # deliveries handed over
        self._early: dict[int, IsthmusError | None] = {}  # outcomes that came before those of earlier deliveries
        self._order: deque[list[int]] = deque()  # how ordinals map to deliveries: [ordinal, delivery, count]
        self._split: set[int] = set()  # refused envelopes, whose messages are sent again each alone

    def __len__(self) -> int:
        """Deliveries handed over and not done with."""
        return self._next - self._base

    @property
    def is_empty(self) -> bool:
        """Whether everything is done with, flush rows too."""
        return not self._chunks

    @property
    def unsent(self) -> int:
        """Deliveries handed over and never sent."""
        return self._next - self.transmitted

    # ---- handing over and sending

    def add(self, payloads: list[bytes], sequences: Sequence[Any], refused: list[tuple[int, Refused]]) -> Chunk:
        """Takes deliveries, and rows behind them that get another disposition."""
        chunk = Chunk(payloads, sequences, refused, None)
        self._chunks.append(chunk)
        self._next += len(payloads)
        return chunk

    def add_flush(self, number: int) -> None:
        """Takes a flush row."""
        self._chunks.append(Chunk([], [], [], number))

    def sent(self, ordinal: int, delivery: int, count: int) -> None:
        """Deliveries from `delivery` on were sent, `ordinal` being the sender's number of the first."""
        self.transmitted = max(self.transmitted, delivery + count)
        order = self._order
        if order and order[-1][0] + order[-1][2] == ordinal and order[-1][1] + order[-1][2] == delivery:
            order[-1][2] += count
        else:
            order.append([ordinal, delivery, count])

    def pending(self) -> list[tuple[int, bytes]]:
        """Deliveries that were sent and have no outcome, with their payloads."""
        return [
            (self._base + i, chunk.payloads[i - offset])
            for chunk, offset in self._offsets()
            for i in range(offset + chunk.done, offset + len(chunk.payloads))
            if self._base + i not in self._early and self._base + i < self.transmitted
        ]

    # ---- outcomes

    def deliveries(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """The deliveries of ordinals `first` to `last`: (first delivery, count)."""
        while first <= last:
            ordinal, delivery, length = next(run for run in self._order if run[0] <= first < run[0] + run[2])
            count = min(last + 1, ordinal + length) - first
            yield delivery + first - ordinal, count
            first += count

    def forget_before(self, ordinal: int) -> None:
        """No outcome will come for ordinals below this."""
        while len(self._order) > 1 and self._order[0][0] + self._order[0][2] <= ordinal:
            self._order.popleft()

    def forget_order(self) -> None:
        """The connection is gone: ordinals begin anew."""
        self._order.clear()

    def acknowledge(self, delivery: int, count: int) -> None:
        """The target took deliveries."""
        done = self._chunks[0].done if self._chunks else 0
        if delivery == self._base + done and not self._early:
            self._complete(count)
        else:
            for i in range(delivery, delivery + count):
                self._early[i] = None

    def refuse(self, delivery: int, count: int, error: IsthmusError) -> None:
        """The target will never take these deliveries, sent or not."""
        self.transmitted = max(self.transmitted, delivery + count)
        for i in range(delivery, delivery + count):
            self._early[i] = error

    def split_later(self, delivery: int, count: int) -> bool:
        """Notes refused envelopes for `split_envelopes`; False where each holds but one message."""
        if not self._batched or all(self._messages_in(i) <= 1 for i in range(delivery, delivery + count)):
            return False
        self._split.update(range(delivery, delivery + count))
        return True

    def advance(self) -> None:
        """Takes what is done with off the front."""
        while self._chunks:
            chunk = self._chunks[0]
            if chunk.done == len(chunk.payloads):
                self._pop_chunk(chunk)
                continue
            delivery = self._base + chunk.done
            if delivery not in self._early:
                return
            error = self._early.pop(delivery)
            if error is None:
                self._complete(1)
                continue
            sequence = chunk.sequences[chunk.done] if len(chunk.sequences) else None
            chunk.done += 1
            number = sequence[0] if self._batched and sequence else sequence
            self._refuse(number or None, Refused(0, "dead-letter", _reason(error), str(error)))

    def _complete(self, count: int) -> None:
        """Deliveries at the front are taken: settles them, chunk by chunk."""
        while count > 0:
            chunk = self._chunks[0]
            if chunk.flush is not None or not chunk.payloads:
                self._pop_chunk(chunk)
                continue
            part = min(count, len(chunk.payloads) - chunk.done)
            numbers = chunk.sequences[chunk.done : chunk.done + part]
            if self._batched and len(numbers):
                self.acknowledged += sum(map(len, numbers))
                for group in numbers:
                    self._settle(group)
            else:
                self.acknowledged += part
                if len(numbers):
                    self._settle(numbers)
            chunk.done += part
            count -= part
            if chunk.done == len(chunk.payloads):
                self._pop_chunk(chunk)

    def _pop_chunk(self, chunk: Chunk) -> None:
        self._chunks.popleft()
        self._base += len(chunk.payloads)
        for sequence, refused in chunk.refused:
            self._refuse(sequence, refused)
        if chunk.flush is not None:
            self._flushed(chunk.flush)

    # ---- envelopes

    def split_envelopes(self) -> None:
        """Replaces refused envelopes by one envelope per message; nothing is under way, so numbers may move."""
        for delivery in sorted(self._split, reverse=True):
            for chunk, offset in self._offsets():
                index = delivery - self._base - offset
                if not 0 <= index < len(chunk.payloads):
                    continue
                messages = messages_of(chunk.payloads[index])
                more = len(messages) - 1
                chunk.payloads[index : index + 1] = [envelope([message]) for message in messages]
                if len(chunk.sequences):
                    numbers = list(chunk.sequences)
                    numbers[index : index + 1] = [[number] for number in numbers[index]]
                    chunk.sequences = numbers
                self._early = {at + more if at > delivery else at: found for at, found in self._early.items()}
                self._next += more
                self.transmitted += more
                break
        self._split.clear()

    def _messages_in(self, delivery: int) -> int:
        for chunk, offset in self._offsets():
            index = delivery - self._base - offset
            if 0 <= index < len(chunk.payloads):
                return len(messages_of(chunk.payloads[index]))
        return 0

    def _offsets(self) -> list[tuple[Chunk, int]]:
        found, offset = [], 0
        for chunk in self._chunks:
            found.append((chunk, offset))
            offset += len(chunk.payloads)
        return found


def _reason(error: IsthmusError) -> str:
    """The dead-letter reason of a refusal."""
    return "MessageTooLarge" if isinstance(error, MessageTooLargeError) else f"RefusedByTarget:{error.code}"
