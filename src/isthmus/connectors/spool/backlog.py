"""The messages in a spool that its reader has not taken yet.

What it is: a read-only query of a spool's folder, by any process. What it is not: its reading.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from isthmus.connectors.spool.block import HEADER_BYTES, written_ms_of
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.connectors.spool.reader import SpoolReader
from isthmus.connectors.spool.refused import count_refused

__all__ = ["SpoolBacklog", "source_of_waiting", "spool_backlog"]

# Most blocks are small: reading one at a time would open the file for each.
_READ_BYTES = 1 << 20


class SpoolBacklog(NamedTuple):
    """The contents of a spool.

    Attributes:
        messages: messages not taken yet; notes are counted too.
        size_bytes: size of the segments, including taken messages.
        oldest_ms: wall time at which the first block of the oldest segment with untaken messages was written; 0 where there are none.
        refused: messages that were set aside.
    """

    messages: int = 0
    size_bytes: int = 0
    oldest_ms: int = 0
    refused: int = 0


def spool_backlog(path: Path, taken: int | None = None) -> SpoolBacklog:
    """Reads the backlog of a spool.

    Args:
        path: its folder.
        taken: the first record that is not taken; None: as the spool's own note of its reader says.
    """
    folder, reader = SpoolFolder(path), SpoolReader(path)
    numbers = folder.numbers()
    size = 0
    for number in numbers:
        with suppress(FileNotFoundError):
            size += folder.segment(number).stat().st_size
    if taken is None:
        taken = folder.taken()
    taken = max(taken or 0, numbers[0] if numbers else 0)
    messages = max(0, reader.last().number - taken)
    return SpoolBacklog(messages, size, _oldest_ms(folder, reader, taken) if messages else 0, count_refused(path))


def source_of_waiting(path: Path) -> str:
    """Alias and entity from which the first untaken message was received; empty where there is none, or it cannot be read.

    Args:
        path: of the spool.
    """
    if not spool_backlog(path).messages:  # else the last segment would be read in vain
        return ""
    reader = SpoolReader(path)
    taken = reader.taken() or 0
    position = reader.position(taken)
    with suppress(SpoolError):
        while (end := reader.end(position, _READ_BYTES)) != position:
            for part in reader.ranges(position, end, 1 << 62):
                for block, records in reader.blocks(part):
                    for number, record in enumerate(records, block.first):
                        if record.key and number >= taken:
                            return record.key.rpartition(" ")[0]
            position = end
    return ""


def _oldest_ms(folder: SpoolFolder, reader: SpoolReader, taken: int) -> int:
    """When the segment of the first message was begun, from its first block."""
    try:
        with folder.segment(reader.position(taken).segment).open("rb") as file:
            return written_ms_of(file.read(HEADER_BYTES))
    except FileNotFoundError:
        return 0
