"""Whether the records of a stream continue those read before.

What it is: the start of the consumer, from the position and the stream's end; whether a received record has to be delivered; which records are
lost; and whether a gap has to be checked. Pure. What it is not: the consumer (`source`), one opening's decision (`opening`), or the account of
read records (`isthmus.connectors.eventhubs.partition.reading`).

Invariants:
    I1. Records that the retention removed unread are reported once, with their range (`loss`).
    I2. No record of a stream that was created again is delivered (`opening`): the first record is compared with the last settled one. Nor is
        any, by a new connection, after one that differs from the last record that was read: the stream has lost its end since the checkpoint.
    I3. A gap is checked once: the broker's own entries use offsets, too, and nothing was removed while the message before the gap exists.
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
    """The continuity of one source.

    Args:
        options: of the source.
        reading: the account.

    Attributes:
        opening: the start of the consumer; None: not decided yet.
        losses: the records that were removed unread.
    """

    def __init__(self, options: StreamOptions, reading: Reading) -> None:
        self.opening: Opening | None = None
        self.losses = Losses(options.topic)
        self._options = options
        self._reading = reading
        self._is_verified = False
        self._last_read = -1, ""  # offset and digest; empty: unknown

    def reset(self) -> None:
        """The connection has changed: the start of the consumer is decided again."""
        self._begin(None)

    def decide(self, last: tuple[int, str], kept: Mapping[int, Checkpoint], first: dict[int, Checkpoint]) -> None:
        """Decides the start of the consumer of a new connection.

        Args:
            last: offset and digest of the stream's last message.
            kept: the existing checkpoint.
            first: the checkpoint to write before it begins; it is added here.

        Raises:
            IsthmusError: the stream is not the one that was read, or this is unknown.
        """
        reading, options = self._reading, self._options
        reached = reading.next_of(PARTITION)
        digest = reading.noted(PARTITION, reached - 1)
        account = reading.account.partitions.get(PARTITION)
        last_read = account.next - 1 if account is not None else -1
        self._last_read = last_read, reading.noted(PARTITION, last_read)
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
        """Whether records were released: the consumer begins at the first of them."""
        if not self._reading.rewind:
            return False
        self._reading.rewind.clear()
        begin = self._reading.next_of(PARTITION)
        self._begin(Opening(begin, begin, is_known=True))
        return True

    def take_gap(self) -> bool:
        """Whether a gap has to be checked: the consumer begins with the message before it."""
        found = self.opening
        if found is not None and found.missing is not None and not self._is_verified:
            return False  # such a check is in progress
        gaps = [each for each in self._reading.gaps.get(PARTITION, ()) if self.losses.is_news(*each)]
        if not gaps:
            return False
        begin = self._reading.next_of(PARTITION)
        self._begin(Opening(min(gaps[0][0] - 1, begin), begin, is_known=True, missing=gaps))
        return True

    def is_wanted(self, offset: int, record: Record) -> bool:
        """Whether a received record has to be delivered; `opening` is decided.

        Raises:
            IsthmusError: the record shows that the stream was created again, or that records are lost that were not reported.
        """
        found = self.opening
        if found is None:
            return False
        last_read, digest = self._last_read
        is_another = bool(digest) and offset == last_read and digest_of(record) != digest
        if not self._is_verified and offset >= found.ask:
            is_another |= bool(found.digest) and offset == found.ask and digest_of(record) != found.digest
        if is_another:
            raise made_again(self._options.topic, offset, self._options.checkpoints)
        if not self._is_verified and offset >= found.ask:
            self._is_verified = True
            if found.missing is not None:
                self._reading.drop_gaps(PARTITION, found.missing)
            awaited = self._reading.missing_before(PARTITION, offset)
            lost = self.losses.found(found.lost_before(offset, awaited))
            if lost is not None:
                raise lost
        return offset >= found.begin

    def _begin(self, found: Opening | None) -> None:
        """The consumer will be replaced: its first record is compared."""
        self.opening, self._is_verified = found, False
