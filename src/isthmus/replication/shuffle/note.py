"""The note that a query writes with the messages of a batch into its spool.

What it is: the note, and the search for the last one. A note is a record without a key in the same block as the batch's messages; a block
is on disk completely or not at all. So a batch that Spark repeats is recognised, independent of Spark's checkpoint. The last note is also
stored in a separate file, since its segment may be deleted. What it is not: the query (`query`).

Spark syncs nothing. After a power cut its checkpoint may be some batches older, and a repeated batch may end later than the written batch
with the same number: its number alone does not show which of its messages were written.

Invariants:
    I1. If a note of a batch is found, the messages of the batch are in the spool; if none is found, they are not.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.whole_file import write_file

__all__ = ["BatchNote", "last_note", "write_note"]

_FILE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNote:
    """The note of a batch.

    Attributes:
        number: number of the batch in this spool, from 1.
        query: identity of the query, stored in its checkpoint.
        batch: its number in the query.
        taken: messages that all batches have read.
        passed: messages that they have written.
        suppressed: messages that they have not passed on because an equal one arrived before.
        spool: identity of the spool that `deduplicate` reads.
        read: the first record there that no batch has read; 0 if unknown.
        closed_ms: end of the latest window of `aggregate` that the query has written; 0 if there is none.
    """

    number: int = 0
    query: str = ""
    batch: int = -1
    taken: int = 0
    passed: int = 0
    suppressed: int = 0
    spool: str = ""
    read: int = 0
    closed_ms: int = 0

    def has(self, query: str, batch: int) -> bool:
        """Whether a batch was written."""
        return query == self.query and batch <= self.batch

    def record(self) -> Record:
        """The note as the record after the messages."""
        return Record("", -1, 0, json.dumps(asdict(self)).encode())

    @classmethod
    def from_bytes(cls, data: bytes) -> BatchNote:
        """The note from the bytes of `record`.

        Raises:
            ValueError: the bytes are no note.
        """
        try:
            return cls(**json.loads(data))
        except TypeError as error:
            raise ValueError(f"no note: {error}") from None


def last_note(spool: Path) -> BatchNote:
    """The last note of a spool; an empty one if there is none.

    Raises:
        SpoolError: the file of the last note is damaged.
    """
    found = _in_file(spool)
    reader, folder = SpoolReader(spool), SpoolFolder(spool)
    for number in folder.numbers()[-2:]:
        start = reader.position(number)
        for part in reader.ranges(start, reader.last(), 1 << 62):
            for _, records in reader.blocks(part):
                for record in records[-1:]:
                    if not record.key:
                        note = BatchNote.from_bytes(record.message)
                        found = note if note.number > found.number else found
    return found


def write_note(spool: Path, note: BatchNote) -> None:
    """Store the last note in a file beside the segments; returns once it is on disk."""
    write_file(spool / _FILE, note.record().message)


def _in_file(spool: Path) -> BatchNote:
    path = spool / _FILE
    try:
        return BatchNote.from_bytes(path.read_bytes())
    except FileNotFoundError:
        return BatchNote()
    except ValueError as error:
        raise SpoolError(f"{path} is damaged ({error}); without it a batch could be sent twice: put it back") from None
