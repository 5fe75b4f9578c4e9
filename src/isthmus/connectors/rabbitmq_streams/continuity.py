"""Whether what a stream gives continues what was read of it.

What it is: where the consumer begins, by what was read and what there is; whether a record that comes is wanted; what of the stream is lost;
and whether a gap has to be looked at. Pure. What it is not: the consumer (`source`), one opening's decision (`opening`), or the account of what
was read (`isthmus.connectors.eventhubs.partition.reading`).

Invariants:
    I1. What the retention removed unread is told once, with its range (`loss`).
    I2. Nothing of a stream that was made again is given (`opening`): the first record that comes is compared with what was done with.
    I3. A gap is looked at once: notes of the broker take offsets, too, and nothing was removed while the message before the gap is there.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.connectors.checkpoint.checkpoint import Checkpoint
from isthmus.connectors.eventhubs.partition.reading import Reading
from isthmus.connectors.rabbitmq.protocol.property import Record
from isthmus.connectors.rabbitmq_streams.loss import Losses
from isthmus.connectors.rabbitmq_streams.opening import Opening, made_again, opening
from isthmus.connectors.rabbitmq_streams.option import StreamOptions
from isthmus.connectors.rabbitmq_streams.record import digest_of
from isthmus.connectors.rabbitmq_streams.settlement import PARTITION

__all__ = ["Continuity"]


class Continuity:
    """That of one source.

    Args:
        options: of the source.
        reading: the account.

    Attributes:
        opening: where the consumer begins; None: it is not decided yet.
        losses: what was removed unread.
    """

    def __init__(self, options: StreamOptions, reading: Reading) -> None:
        self.opening: Opening | None = None
        self.losses = Losses(options.topic)
        self._options = options
        self._reading = reading
        self._is_verified = False

    def reset(self) -> None:
        """The connection is another one: where the consumer begins is decided again."""
        self._begin(None)

    def decide(self, last: tuple[int, str], kept: Mapping[int, Checkpoint], first: dict[int, Checkpoint]) -> None:
        """Where the consumer of a new connection begins.

        Args:
            last: offset and digest of the stream's last message.
            kept: the checkpoint that exists.
            first: the checkpoint that is to be written before it begins; it is added here.

        Raises:
            IsthmusError: it is not the stream that was read, or it cannot be told whether it is.
        """
        reading, options = self._reading, self._options
        reached = reading.next_of(PARTITION)
        digest = reading.noted(PARTITION, reached - 1)
        known = kept.get(PARTITION) or first.get(PARTITION)
        found = opening(options.topic, options.checkpoints, *last, known, reached, options.start, digest)
        if found.first is not None:
            first[PARTITION] = found.first
        reading.assign(PARTITION, first=found.begin if found.is_known else -1)
        reading.rewind.clear()
        present = reading.present
        if present is not None:
            if present.ends is None:
                present.ends = {PARTITION: last[0] + 1}
            present.reached(PARTITION, found.begin)
        self._begin(found)

    def take_return(self) -> bool:
        """Whether something was given back: the consumer begins there."""
        if not self._reading.rewind:
            return False
        self._reading.rewind.clear()
        begin = self._reading.next_of(PARTITION)
        self._begin(Opening(begin, begin, is_known=True))
        return True

    def take_gap(self) -> bool:
        """Whether a gap has to be looked at: the consumer begins with the message before it."""
        found = self.opening
        if found is not None and found.missing is not None and not self._is_verified:
            return False  # such a look is under way
        gaps = [each for each in self._reading.gaps.get(PARTITION, ()) if self.losses.is_news(*each)]
        if not gaps:
            return False
        begin = self._reading.next_of(PARTITION)
        self._begin(Opening(min(gaps[0][0] - 1, begin), begin, is_known=True, missing=gaps))
        return True

    def is_wanted(self, offset: int, record: Record) -> bool:
        """Whether a record that came is to be given; `opening` is decided.

        Raises:
            IsthmusError: it shows that the stream was made again, or that something is lost that was not told.
        """
        found = self.opening
        if found is None:
            return False
        if not self._is_verified and offset >= found.ask:
            if found.digest and offset == found.ask and digest_of(record) != found.digest:
                raise made_again(self._options.topic, offset, self._options.checkpoints)
            self._is_verified = True
            if found.missing is not None:
                self._reading.drop_gaps(PARTITION, found.missing)
            awaited = self._reading.missing_before(PARTITION, offset)
            lost = self.losses.found(found.lost_before(offset, awaited))
            if lost is not None:
                raise lost
        return offset >= found.begin

    def _begin(self, found: Opening | None) -> None:
        """The consumer is going to be another one: what comes first is compared."""
        self.opening, self._is_verified = found, False
