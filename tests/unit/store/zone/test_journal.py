"""The journal in three copies."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isthmus.entities import Journal
from isthmus.store.zone import ZonedJournal
from isthmus.testing.store_conformance import JournalConformance


class TestZonedJournal(JournalConformance):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path / "zones"
        self.copies = 0

    def open(self) -> Journal:
        return ZonedJournal([self.folder / name for name in "abc"])

    def crash(self, journal: Journal) -> Journal:
        # What a kill leaves: the files as they are now, opened by another process.
        self.copies += 1
        left = self.folder.with_name(f"left-{self.copies}")
        shutil.copytree(self.folder, left)
        journal.close()
        self.folder = left
        return self.open()
