"""What a consumer has read and the owner of the source has not finished with.

What it is: the queue of what was read and not taken, the account of what was taken, what is to be read again, and the messages that may
have to be set aside. What it is not: safe from several threads, its owner has a lock; nor the consumer (`consumer`).

Invariants:
    I1. What is read again after a return is given in the order of its partition.
    I2. Of partitions that were handed over nothing is given any more.
    I3. With `only_present` nothing is given that came after the first opening.
    I4. Of a partition whose offsets begin again nothing is given: they name other records.
    I5. A record that cannot be read is set aside, without what cannot be read of it, where there is a place for it; else it is read again,
        and the source is lost: nothing is passed over.
    I6. What should have come before a record, or before the end of its partition, and did not, is noted (`removed`).
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


class Delivered:
    """The state of one source.

    Args:
        options: of the source.
        only_present: give only what existed when it was opened first.
        removed: is told what did not come.

    Attributes:
        account: what was read and is not settled.
        queue: what was read and not taken.
        dead: where messages go that are set aside; None: nowhere.
        present: what was at the first opening; None: everything is given.
        rewind: partitions of which something is to be read again.
        begun_again: by partition, the first offset of those whose offsets begin again; the consumer is of no use then.
        record_bytes: the mean size of the records that were read last.
        unreadable: what is told of a record that cannot be read, for which there is no place; empty: there is none.
        topic: which one is read, as `offset_note` has it; empty: it is not known.
        came_free: whether something that was given back is gone, and holds up no commit any more; its reader resets it.
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
        self.topic = ""
        self.came_free = False
        self._reader = RecordReader.of(options)

    @property
    def outstanding(self) -> int:
        """Records taken and neither settled nor given back."""
        return self.account.outstanding - self.queue.count

    def put(self, messages: Sequence[Any]) -> tuple[bool, list[KafkaError]]:
        """What a consumer gave; whether there is something to take, and errors."""
        batch = Batch([], [])
        errors: list[KafkaError] = []
        for message in messages:
            error = message.error()
            if error is None:
                if self._belongs(message.partition(), message.offset()):
                    try:
                        position, payload = self._reader.read(message)
                    except Exception as failure:  # noqa: BLE001 - one record's fault: what was read with it would be lost for this reader
                        self._put_unreadable(message, failure)
                        continue
                    batch.positions.append(position)
                    batch.payloads.append(payload)
            elif error.code() != KafkaError._PARTITION_EOF:
                errors.append(error)
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
            f"partition {message.partition()}, offset {message.offset()}: the headers cannot be read; the name of one may be no UTF-8 text "
            f"({type(failure).__name__})"
        )
        if self.dead is not None:
            self.dead.keep((position,), (payload,))
            self.dead.add(position, position, Disposition("dead-letter", UNREADABLE, text))
            return
        self.unreadable = text
        self.account.give_back(position, position)
        self.rewind.add(message.partition())

    def _belongs(self, partition: int, offset: int) -> bool:
        """Whether a record is to be delivered; it is counted as such then."""
        found = self.account.partitions.get(partition)
        if found is None or partition in self.rewind or partition in self.begun_again:
            return False
        if found.begins_again(offset):
            self.begun_again[partition] = offset
            return False
        if self.present is not None and not self.present.belongs(partition, offset):
            return False
        self._note_missing(partition, found, offset)
        self._removed.came(partition, offset)
        if not found.is_new(offset):
            return False
        found.deliver(offset)
        return True

    def _at_end(self, partition: int, offset: int) -> None:
        """The partition has been read up to here."""
        found = self.account.partitions.get(partition)
        if found is not None and partition not in self.rewind and partition not in self.begun_again:
            self._note_missing(partition, found, offset)
            found.reached(offset)

    def _note_missing(self, partition: int, found: PartitionOffsets, offset: int) -> None:
        if found.next < 0:
            self._removed.first(partition, offset)
        self._removed.passed(partition, offset)
        for first, came in found.gone_before(offset):
            self.came_free = True
            self._removed.gap(partition, first, came, is_return=True)
        for first, came in found.passed_before(offset):
            self._removed.gap(partition, first, came)

    def take(self) -> list[Batch]:
        """What the credit allows."""
        batches = self.queue.take()
        if self.dead is not None:
            for batch in batches:
                self.dead.keep(batch.positions, batch.payloads)
        return batches

    def settle(self, first: int, last: int) -> bool:
        """Completes what was taken; whether an offset may have to be committed."""
        if self.dead is not None:
            self.dead.forget(first, last)
        return self.account.settle(first, last)

    def set_aside(self, first: int, last: int, disposition: Disposition) -> bool:
        """Gives what was taken to the dead-letter topic; False where there is none."""
        if self.dead is None:
            return False
        self.dead.add(first, last, disposition)
        return True

    def give_back(self, first: int, last: int) -> None:
        """What was taken is read again, and what was read of its partitions and not taken yet, too."""
        partitions = self.account.give_back(first, last)
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
        """The consumer reads from there. What was given back meanwhile and is before is left for the next time."""
        self.rewind -= {
            partition
            for partition in self.rewind
            if (found := self.account.partitions.get(partition)) is None
            or not found.returned
            or found.returned.first()[0] >= starts.get(partition, 1 << 62)
        }

    def note(self, partition: int) -> str:
        """What is noted beside the offset of a partition: what was given back, to this reader or one before, and has not come again."""
        found = self.account.partitions.get(partition)
        returned = [*(found.returned if found is not None else ()), *self._removed.awaited(partition)]
        return offset_note.write(returned, self.topic)

    def note_awaited(self) -> None:
        """What was given back is read no more by this reader: it may be gone."""
        for partition, found in self.account.partitions.items():
            for first, stop in found.returned:
                self._removed.gap(partition, first, stop)

    def is_over(self) -> bool:
        """Whether all that was at the first opening has been read, for the first time."""
        if self.present is None or not self.present.is_over(self.account.partitions):
            return False
        self.present.is_told = True
        return True

    def forget(self, partitions: Collection[int]) -> None:
        """Partitions are somebody else's."""
        self._remove_queued(partitions)
        for partition in partitions:
            self.begun_again.pop(partition, None)
        self.account.revoke(partitions)
        self.rewind.difference_update(partitions)

    def _remove_queued(self, partitions: Collection[int]) -> None:
        for position in self.queue.remove(partitions):
            self.account.give_back(position, position)
