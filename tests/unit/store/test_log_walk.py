"""The walk over a write-ahead log agrees with RocksDB, wherever records meet the ends of blocks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isthmus.store import RocksJournal
from isthmus.store.log_walk import walk

BLOCK = 32 << 10


@pytest.mark.parametrize("left", range(40))
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
    for size in (*range(0, len(content), 9973), *range(BLOCK - 60, BLOCK + 60)):
        cut = walk(content[:size])
        assert not cut.damage
        assert walk(content[: cut.end]) == cut._replace(size=cut.end)
    again = RocksJournal(tmp_path / "left")
    assert len(list(again.scan(b"0", b"9"))) == 6
    again.close()
