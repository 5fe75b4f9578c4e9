"""The walk over a write-ahead log agrees with RocksDB, wherever records meet the ends of blocks."""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from isthmus.errors import StoreError
from isthmus.store import RocksJournal
from isthmus.store.log_walk import LogWalk, missed_record, walk

BLOCK = 32 << 10
HEADER, HEAD = 7, 12


def left_log(folder: Path, sizes: Sequence[int]) -> Path:
    """The log of a store that was killed: a record for each size, of random bytes."""
    randomness = random.Random(str(sizes))
    journal = RocksJournal(folder / "s")
    for number, size in enumerate(sizes):
        batch = journal.batch()
        batch.put(b"%06d" % number, randomness.randbytes(size))
        journal.write(batch)
    journal.sync()
    shutil.copytree(folder / "s", folder / "left")
    journal.close()
    [log] = (folder / "left").glob("*.log")
    return log


def record_walks(content: bytes) -> list[LogWalk]:
    """For each record what a walk up to its end finds."""
    found: list[LogWalk] = []
    walked = walk(content)
    while walked.last:
        found.insert(0, walked)
        walked = walk(content[: walked.last[0].at])
    return found


# A header takes 7 bytes, and what RocksDB puts in front of a batch 12.
@pytest.mark.parametrize("left", [*range(20), *(pytest.param(left, marks=pytest.mark.soak) for left in range(20, 40))])
def test_i2_a_record_may_begin_with_any_few_bytes_of_a_block(tmp_path: Path, left: int) -> None:
    journal = RocksJournal(tmp_path / "s")

    def put(number: int, size: int) -> None:
        batch = journal.batch()
        batch.put(b"%d" % number, b"x" * size)
        journal.write(batch)

    put(0, BLOCK - 26 - left)  # the header of a record and a batch of one key of one byte take 26 with such a value
    for number in range(1, 6):
        put(number, 100_000 if number % 2 else 50)
    journal.sync()
    shutil.copytree(tmp_path / "s", tmp_path / "left")
    journal.close()
    [log] = (tmp_path / "left").glob("*.log")
    content = log.read_bytes()
    walked = walk(content)
    assert (walked.damage, walked.is_torn, walked.first, walked.next) == ("", False, 1, 7)
    for size in (*range(0, len(content), 29_989), *range(BLOCK - 60, BLOCK + 60)):
        cut = walk(content[:size])
        assert not cut.damage
        assert walk(content[: cut.end]) == cut._replace(size=cut.end)
    again = RocksJournal(tmp_path / "left")
    assert len(list(again.scan(b"0", b"9"))) == 6
    again.close()


SIZES = {
    "small": [100, 100, 30, 100],
    "a large one at the end": [100, 100, 100, 40_000],
    "a block ends between": [100, 32_600, 50, 100, 40_000],
    "a block ends before a header": [100, BLOCK - 128 - 26 - 3, 60, 60],
    "two that take blocks": [100, 200, 70_000, 100, 60, 33_000],
}


@pytest.mark.parametrize("name", SIZES)
def test_i1_a_bit_of_a_header_hides_no_intact_record(tmp_path: Path, name: str) -> None:
    """Whatever is wrong with a length, a type or a sequence number: what is behind it is not taken for a torn end."""
    content = left_log(tmp_path, SIZES[name]).read_bytes()
    whole = walk(content)
    walks = record_walks(content)
    assert len(walks) == len(SIZES[name])
    for index, walked in enumerate(walks):
        is_last = index == len(walks) - 1
        for fragment in walked.last:
            for at in range(fragment.at + 4, min(fragment.at + HEADER + HEAD, fragment.end), 1 if index % 2 else 3):
                for bits in (0x01, 0x80):
                    mutated = bytearray(content)
                    mutated[at] ^= bits
                    found = walk(bytes(mutated))
                    if is_last:
                        assert not found.damage
                        continue
                    # Otherwise the checksum shows it, and RocksDB checks that; what it refuses is not cut off as torn.
                    is_passed = (found.next, found.end) == (whole.next, whole.end)
                    assert found.damage or is_passed or missed_record(bytes(mutated), found), (index, at, bits)


@pytest.mark.parametrize("seed", range(3))
def test_i1_a_cut_at_any_byte_leaves_the_records_before_it(tmp_path: Path, seed: int) -> None:
    randomness = random.Random(seed)
    sizes = [randomness.choice([1, 30, 60, 33_000]) + randomness.randrange(40) for _ in range(8)]
    content = left_log(tmp_path, sizes).read_bytes()
    walks = record_walks(content)
    for index, walked in enumerate(walks[-4:], len(walks) - 4):
        begin = walked.last[0].at
        step = max(1, (walked.end - begin) // 100)  # each byte of small ones, and of both ends of large ones
        ends = {*range(begin, min(begin + 30, walked.end)), *range(max(begin, walked.end - 30), walked.end)}
        for size in ends | {*range(begin, walked.end, step)}:
            cut = walk(content[:size])
            assert not cut.damage
            assert (cut.next, cut.last) == (walks[index - 1].next, walks[index - 1].last)


@pytest.mark.parametrize("seed", range(5))
def test_a_start_gives_what_was_before_the_damage_or_refuses(tmp_path: Path, seed: int) -> None:
    """A model: of records with one place cut or changed, a start gives all in order but the torn last one, or is refused."""
    randomness = random.Random(seed)
    sizes = [randomness.choice([1, 30, 1_000, 33_000]) + randomness.randrange(60) for _ in range(5)]
    log = left_log(tmp_path, sizes)
    content = log.read_bytes()
    walks = record_walks(content)
    for run in range(6):
        folder = tmp_path / f"run-{run}"
        shutil.copytree(log.parent, folder)
        index = randomness.randrange(len(walks))
        fragment = randomness.choice(walks[index].last)
        at = randomness.randrange(fragment.at, min(fragment.at + HEADER + HEAD, fragment.end))
        mutated = bytearray(content)
        is_cut = run % 2 == 0
        if is_cut:
            del mutated[at:]
        else:
            mutated[at] ^= 1 << randomness.randrange(8)
        (folder / log.name).write_bytes(mutated)
        try:
            journal = RocksJournal(folder)
        except StoreError:
            assert not is_cut
            assert index < len(walks) - 1
            assert (folder / log.name).read_bytes() == mutated
            continue
        count = len(list(journal.scan(b"0", b"9")))
        journal.close()
        assert count == (index if is_cut else len(walks) - 1), (index, at, is_cut)
        assert is_cut or index == len(walks) - 1
