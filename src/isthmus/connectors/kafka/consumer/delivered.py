"""The records that a consumer has read and the owner of the source has not settled.

What it is: the queue of untaken records, the account of taken ones, the positions to read again from, and the messages that may
have to be set aside. What it is not: thread-safe, its owner has a lock; nor the consumer (`consumer`).

Invariants:
    I1. Records that are read again after a release are delivered in the order of their partition.
    I2. No record of a revoked partition is delivered any more.
    I3. With `only_present` no record is delivered that was written after the first opening.
    I4. No record of a partition whose offsets begin again is delivered: they name other records.
    I5. An unreadable record is set aside, without its unreadable parts, where there is a dead-letter topic; otherwise it is read again,
        and the source is lost: no record is skipped.
    I6. Records that should precede a record, or the end of its partition, and did not arrive, are noted (`removed`).
    I7. After a batch that the client cannot decode nothing of its partition is delivered: the client may continue behind it.
    I8. With `only_present` the end is reported only after all records have an outcome, those included that were released, or could not be read: the owner
        may close the source at the end, and one that cannot be set aside, or whose offset cannot be committed, is read again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from confluent_kafka import KafkaError

from isthmus.bridge.delivery_event import Disposition
from isthmus.connectors.kafka.consumer import offset_note
from isthmus.connectors.kafka.consumer.offset import OffsetAccount, PartitionOffsets
from isthmus.connectors.kafka.consumer.present import Present
from isthmus.connectors.kafka.consumer.read_queue import Batch, ReadQueue
from isthmus.connectors.kafka.consumer.record_reader import RecordReader
from isthmus.connectors.kafka.consumer.removed import RemovedRecords
from isthmus.connectors.kafka.dead_letter import DeadLetterTopic
from isthmus.connectors.kafka.option import SourceOptions

__all__ = ["Delivered"]

UNREADABLE = "Unreadable"
# With these librdkafka reports a batch of a partition instead of its records.
_OF_A_BATCH = {
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError._NOT_IMPLEMENTED,
    KafkaError.MSG_SIZE_TOO_LARGE,
}


class Delivered:
    """The state of one source.

    Args:
        options: of the source.
        only_present: deliver only records that existed when it was first opened.
        removed: notes the records that did not arrive.

    Attributes:
        account: the unsettled records.
        queue: the untaken records.
        dead: the dead-letter topic; None: there is none.
        present: the records at the first opening; None: everything is delivered.
        rewind: partitions to read again.
        begun_again: by partition, the first offset of those whose offsets begin again; the consumer is not usable then.
        record_bytes: the mean size of the last records.
        unreadable: the error of an unreadable record without a dead-letter topic; empty: there is none.
        undecodable: the first error of a batch that the client cannot decode; empty: there is none. The consumer is not usable then.
        topic: the topic that is read, in the form of `offset_note`; empty: unknown.
        is_unblocked: whether a released record no longer exists, so that it limits no commit any more; the reader resets it.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        only_present: bool,
        removed: RemovedRecords,
    ) -> None:
        self._removed = removed
        self.account = OffsetAccount()
        self.queue = ReadQueue()
        self.dead = DeadLetterTopic(options) if options.dead_letter_topic else None
        self.present = Present() if only_present else None
        self.rewind: set[int] = set()
        self.begun_again: dict[int, int] = {}
        self.record_bytes = 1024
        self.unreadable = ""
        self.undecodable = ""
        self.topic = ""
        self.is_unblocked = False
        self._reader = RecordReader.of(options)

    @property
    def outstanding(self) -> int:
        """Records taken and neither settled nor released."""
        return self.account.outstanding - self.queue.count

    def put(self, messages: Sequence[Any]) -> tuple[bool, list[tuple[KafkaError, bool]]]:
        """Adds records of the consumer; returns whether any can be taken, and errors, each with whether it is one partition's."""
        batch = Batch([], [])
        errors: list[tuple[KafkaError, bool]] = []
        for message in messages:
            error = message.error()
            if error is None:
                if self._belongs(message):
                    try:
                        position, payload = self._reader.read(message)
                    except Exception as failure:  # noqa: BLE001 - an invalid record must not lose the records that were read with it
                        self._put_unreadable(message, failure)
                        continue
                    batch.positions.append(position)
                    batch.payloads.append(payload)
            elif error.code() in _OF_A_BATCH and message.partition() >= 0:
                # The client takes the bytes that follow for batches, too, and reports them with invented offsets.
                text = f"partition {message.partition()}, offset {message.offset()}: {error.str()}"
                self.undecodable = self.undecodable or text
                self.rewind.add(message.partition())
            elif error.code() != KafkaError._PARTITION_EOF:
                errors.append((error, message.partition() >= 0))
            elif self.present is not None:
                self._at_end(message.partition(), message.offset())
                self.present.reached(message.partition(), message.offset())
        if batch.positions:
            self.queue.put(batch)
            self.record_bytes = max(1, sum(map(len, batch.payloads)) // len(batch.payloads))
        return bool(batch.positions), errors

    def _put_unreadable(self, message: Any, failure: Exception) -> None:
        position, payload = self._reader.read(message, with_headers=False)
        text = (
            f"partition {message.partition()}, offset {message.offset()}: the headers cannot be read; the name of one may not be UTF-8 text "
            f"({type(failure).__name__})"
        )
        if self.dead is not None:
            self.dead.keep((position,), (payload,))
            self.dead.add(position, position, Disposition("dead-letter", UNREADABLE, text))
            return
        self.unreadable = text
        self.account.release(position, position)
        self.rewind.add(message.partition())

    def _belongs(self, message: Any) -> bool:
        """Whether a record is to be delivered; it then counts as delivered."""
        partition, offset = message.partition(), message.offset()
        found = self.account.partitions.get(partition)
        if found is None or partition in self.rewind or partition in self.begun_again:
            return False
        epoch = message.leader_epoch()  # None: the broker does not report it
        if found.begins_again(offset, -1 if epoch is None else epoch):
            self.begun_again[partition] = offset
            return False
        if self.present is not None and not self.present.belongs(partition, offset):
            return False
        self._note_missing(partition, found, offset)
        self._removed.arrived(partition, offset)
        if not found.is_new(offset):
            return False
        found.deliver(offset)
        if epoch is not None and epoch > found.epoch:
            found.epoch = epoch
        return True

    def _at_end(self, partition: int, offset: int) -> None:
        """The partition was read up to here."""
        found = self.account.partitions.get(partition)
        if found is not None and partition not in self.rewind and partition not in self.begun_again:
            self._note_missing(partition, found, offset)
            found.reached(offset)

    def _note_missing(self, partition: int, found: PartitionOffsets, offset: int) -> None:
        if found.next < 0:
            self._removed.first(partition, offset)
        self._removed.passed(partition, offset)
        for first, came in found.lost_before(offset):
            self.is_unblocked = True
            self._removed.gap(partition, first, came, is_return=True)
        for first, came in found.passed_before(offset):
            self._removed.gap(partition, first, came)

    def take(self) -> list[Batch]:
        """The records within the credit."""
        if self.dead is not None and self.dead.is_full:
            return []
        batches = self.queue.take()
        if self.dead is not None:
            for batch in batches:
                self.dead.keep(batch.positions, batch.payloads)
        return batches

    def settle(self, first: int, last: int) -> bool:
        """Completes taken records; returns whether an offset may have to be committed."""
        if self.dead is not None:
            self.dead.forget(first, last)
        return self.account.settle(first, last)

    def set_aside(self, first: int, last: int, disposition: Disposition) -> bool:
        """Passes taken records to the dead-letter topic; False where there is none."""
        if self.dead is None:
            return False
        self.dead.add(first, last, disposition)
        return True

    def release(self, first: int, last: int) -> None:
        """Reads taken records again, and the untaken ones of their partitions, too."""
        partitions = self.account.release(first, last)
        self.rewind.update(partitions)
        self._remove_queued(partitions)
        if self.dead is not None:
            self.dead.forget(first, last)

    def starts(self) -> dict[int, int]:
        """By partition, the offset to read again from; `went_back` follows."""
        found = {}
        for partition in self.rewind:
            each = self.account.partitions.get(partition)
            if each is not None and each.returned:
                found[partition] = each.rewind()
        return found

    def went_back(self, starts: dict[int, int]) -> None:
        """The consumer reads from there. Earlier records that were released meanwhile are left for the next time."""
        self.rewind -= {
            partition
            for partition in self.rewind
            if (found := self.account.partitions.get(partition)) is None
            or not found.returned
            or found.returned.first()[0] >= starts.get(partition, 1 << 62)
        }

    def note(self, partition: int) -> str:
        """The note of a partition's offset: records released to this reader or an earlier one, and not redelivered."""
        found = self.account.partitions.get(partition)
        returned = [*(found.returned if found is not None else ()), *self._removed.awaited(partition)]
        return offset_note.write(returned, self.topic)

    def note_awaited(self) -> None:
        """Released records are not read any more by this reader: they may no longer exist."""
        for partition, found in self.account.partitions.items():
            for first, stop in found.returned:
                self._removed.gap(partition, first, stop)

    def begin_again(self, partitions: Collection[int]) -> None:
        """The offsets of partitions name other records; the next consumer reads these."""
        self.forget(partitions)
        self.topic = ""  # its id is unknown before the next opening
        if self.dead is not None:
            self.dead.disown(partitions)
        if self.present is not None:
            self.present.begin_again()

    def is_over(self) -> bool:
        """Whether all records of the first opening were read and taken, for the first time, and none has to be read again."""
        if self.present is None or self.queue.count or not self.present.is_over(self.account.partitions):
            return False
        if self.rewind or self.account.has_returned or self.outstanding:
            return False
        self.present.is_reported = True
        return True

    def forget(self, partitions: Collection[int]) -> None:
        """Partitions are revoked."""
        self._remove_queued(partitions)
        if self.present is not None:
            self.present.forget(partitions)
        for partition in partitions:
            self.begun_again.pop(partition, None)
        self.account.revoke(partitions)
        self.rewind.difference_update(partitions)

    def _remove_queued(self, partitions: Collection[int]) -> None:
        for position in self.queue.remove(partitions):
            self.account.release(position, position)
