"""The reading of a spool: the limits of a batch, its records, and the deletion of segments.

What it is: pure functions of the folder's files, so that a batch that is read twice has the same records. Any number of processes may
read while one writes. What it is not: Spark (`spark.source`). docs/explanation/spool.md.

Invariants:
    I1. Only synced bytes are read.
    I2. A range that is read twice gives the same records.
    I3. A segment is deleted only by `release`, and only as a whole; one with damaged bytes is kept in quarantine, with a note of the
        missing records.
    I4. If the next segment to read is missing and was not deleted by `release`, that is an error that names it. The records of one between
        others count as missing from the segment before it (I3).
    I5. A reader that another one may overtake gets an error, too, where that one has deleted records that it has not read.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from isthmus.connectors.spool.block import Block, Damage, Record, decode, walk
from isthmus.connectors.spool.folder import SpoolError, SpoolFolder
from isthmus.whole_file import sync_folder, write_file

__all__ = ["SpoolPosition", "Range", "SpoolMissingError", "SpoolReader"]

log = logging.getLogger(__name__)


class SpoolMissingError(SpoolError):
    """A segment that is still needed is missing."""

    code = "spool-missing"
    retryable = False


class SpoolPosition(NamedTuple):
    """A position between two records: the segment, the offset in it in bytes, and the number of the next record."""

    segment: int
    position: int
    number: int


class Range(NamedTuple):
    """A part of one segment, from one block to another."""

    segment: int
    start: int
    stop: int


class SpoolReader:
    """Reads one spool.

    Args:
        path: its folder.
        releases: whether what was deleted has been read, by the reader that the spool is for.
    """

    def __init__(self, path: Path, *, releases: bool = True) -> None:
        self._releases = releases
        self._folder = SpoolFolder(path)
        self._reported: set[int] = set()

    @property
    def identity(self) -> str:
        """The spool's identity; empty where it has not been created yet."""
        return self._folder.identity()

    def first(self) -> SpoolPosition:
        """The position of a reader that has read nothing yet."""
        numbers = self._folder.numbers()
        number = numbers[0] if numbers else self._folder.released()
        return SpoolPosition(number, 0, number)

    def last(self) -> SpoolPosition:
        """The position after the last synced record."""
        numbers = self._folder.numbers()
        durable = self._folder.durable()
        if durable is not None and durable.segment in numbers[-2:]:
            return SpoolPosition(*durable)
        # The last segment counts once its writer has published its synced part.
        return SpoolPosition(numbers[-1], 0, numbers[-1]) if numbers else self.first()

    def position(self, number: int) -> SpoolPosition:
        """The beginning of a record's segment, or of the first existing one, where that segment was deleted."""
        found = [each for each in self._folder.numbers() if each <= number]
        return SpoolPosition(found[-1], 0, found[-1]) if found else self.first()

    def at(self, number: int) -> SpoolPosition:
        """The start of the block that contains a record, with the number of the record."""
        position, last = self.position(number), self.last()
        stop = last.position if position.segment == last.segment else None
        if position.number < number:
            with self._bytes(position.segment) as data:
                for block in walk(data, 0, stop):
                    if isinstance(block, Block) and block.end > number:
                        break
                    if isinstance(block, Block):
                        position = SpoolPosition(position.segment, block.stop, block.end)
        return position._replace(number=max(number, position.number))

    def end(self, start: SpoolPosition, limit_bytes: int) -> SpoolPosition:
        """The end of a batch that begins at `start` and has approximately so many bytes at most, but one block at least.

        Raises:
            SpoolMissingError: a segment is missing that was not released.
        """
        last = self.last()
        at, left = self._existing(start), limit_bytes
        while left > 0 and at.number < last.number:
            stop = last.position if at.segment == last.segment else None
            with self._bytes(at.segment) as data:
                for block in walk(data, at.position, stop):
                    if isinstance(block, Damage):
                        self._report(at.segment, block)
                        left -= block.stop - block.start
                        at = at._replace(position=block.stop)
                        continue
                    at = SpoolPosition(at.segment, block.stop, block.end)
                    left -= block.stop - block.start
                    if left <= 0:
                        break
                else:
                    if at.segment == last.segment:
                        return last
                    following = next(each for each in self._folder.numbers() if each > at.segment)
                    at = SpoolPosition(following, 0, following)
        return at

    def ranges(self, start: SpoolPosition, end: SpoolPosition, part_bytes: int) -> list[Range]:
        """The parts of a batch, each of approximately so many bytes.

        Raises:
            SpoolMissingError: a segment is missing that was not released.
        """
        found: list[Range] = []
        at = self._existing(start)
        numbers = [each for each in self._folder.numbers() if at.segment <= each <= end.segment]
        for number in numbers:
            begin = at.position if number == at.segment else 0
            with self._bytes(number) as data:
                stop = end.position if number == end.segment else len(data)
                for each in walk(data, begin, stop):
                    if each.stop - begin >= part_bytes:
                        found.append(Range(number, begin, each.stop))
                        begin = each.stop
                if begin < stop:
                    found.append(Range(number, begin, stop))
        return found

    def blocks(self, part: Range) -> Iterator[tuple[Block, list[Record]]]:
        """The blocks of a part with their records; damaged bytes are skipped."""
        with self._bytes(part.segment) as data:
            for block in walk(data, part.start, part.stop):
                if isinstance(block, Block):
                    yield block, list(decode(data, block))

    def taken(self) -> int | None:
        """The record up to which the reader of this spool has taken its records (`take`); None where unknown."""
        return self._folder.taken()

    def take(self, number: int) -> None:
        """Writes that everything before a record was taken."""
        descriptor = self._folder.open_taken()
        try:
            self._folder.write_taken(descriptor, self.identity, number)
        finally:
            os.close(descriptor)

    def would_release(self, before: SpoolPosition) -> bool:
        """Whether `release` would delete anything."""
        return bool(self._ended(before, self._folder.numbers()))

    def release(self, before: SpoolPosition) -> None:
        """Deletes the segments that end before a position."""
        numbers = self._folder.numbers()
        ended = self._ended(before, numbers)
        if not ended:
            return
        following = numbers[numbers.index(ended[-1]) + 1]
        if following > self._folder.released():
            self._folder.write_released(following)
        for number in ended:
            end = numbers[numbers.index(number) + 1]
            missing = self._missing(number, end)
            if missing:
                self._set_aside(number, end, missing)
            else:
                self._folder.segment(number).unlink(missing_ok=True)
        sync_folder(self._folder.segments)

    # ---- segments

    @staticmethod
    def _ended(before: SpoolPosition, numbers: list[int]) -> list[int]:
        """The segments that end before a position."""
        return [
            number for number, following in pairwise(numbers) if following <= before.number and number < before.segment
        ]

    def _existing(self, start: SpoolPosition) -> SpoolPosition:
        """The position, or the first existing one after it where its segment was deleted."""
        numbers = self._folder.numbers()
        if start.segment in numbers or not numbers:
            return start
        behind = next((each for each in numbers if each > start.segment), None)
        if behind is None or behind > max(self._folder.released(), start.number):
            raise SpoolMissingError(
                f"segment {self._folder.segment(start.segment)} is missing, and no batch that read it has committed; put it back, or "
                "accept the loss of its messages by deleting the checkpoint of the task's table query"
            )
        if behind > start.number and not self._releases:
            raise SpoolMissingError(
                f"spool {self._folder.path}: the records from {start.number} up to {behind} were deleted before this query read them, since the query "
                "that the spool is for has read them; a new checkpoint begins with those that exist"
            )
        return SpoolPosition(behind, 0, behind)

    @contextmanager
    def _bytes(self, number: int) -> Iterator[bytes]:
        path = self._folder.segment(number)
        try:
            with path.open("rb") as file:
                if not path.stat().st_size:
                    yield b""
                    return
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    yield data  # type: ignore[misc]  # a memory map has the methods of bytes that `walk` and `decode` use
        except FileNotFoundError as error:
            raise SpoolMissingError(f"segment {path} is missing, but has to be read now") from error

    def _missing(self, number: int, end: int) -> list[tuple[int, int]]:
        """The records of a segment that cannot be read, as ranges."""
        found: list[tuple[int, int]] = []
        at = number
        with self._bytes(number) as data:
            for each in walk(data):
                if isinstance(each, Damage):
                    continue
                if each.first > at:
                    found.append((at, each.first))
                at = each.end
        return [*found, (at, end)] if at < end else found

    def _set_aside(self, number: int, end: int, missing: list[tuple[int, int]]) -> None:
        """Keeps a segment with damaged bytes, with a note."""
        path, folder = self._folder.segment(number), self._folder.quarantine
        folder.mkdir(mode=0o700, exist_ok=True)
        count = sum(stop - start for start, stop in missing)
        note = {"segment": path.name, "records": [number, end], "missing": missing, "messages": count}
        write_file(folder / f"{path.stem}.json", json.dumps(note).encode())
        with suppress(FileNotFoundError):
            path.replace(folder / path.name)
        sync_folder(folder)
        log.error(
            "spool segment %s is damaged: %d messages that were settled at their source cannot be read; it is kept as %s",
            path,
            count,
            folder / path.name,
        )

    def _report(self, segment: int, damage: Damage) -> None:
        if segment not in self._reported:
            self._reported.add(segment)
            log.error(
                "spool segment %s is damaged from byte %d to %d; the rest of it is read",
                self._folder.segment(segment),
                damage.start,
                damage.stop,
            )
