"""The folders of these tests are in memory: they write the state of a pair some hundred thousand times, each time as a whole file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="isthmus-test-", dir=MEMORY) as folder:
        yield Path(folder)
