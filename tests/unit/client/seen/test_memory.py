from __future__ import annotations

import pytest

from isthmus.client.seen import Bounds, MemorySeen, SeenStore
from isthmus.testing.clock import ManualClock
from isthmus.testing.seen_conformance import MakeSeen, SeenConformance


class TestMemorySeen(SeenConformance):
    @pytest.fixture(autouse=True)
    def clock(self) -> None:
        self.time = ManualClock()

    def advance(self, seconds: float) -> None:
        self.time.advance(round(seconds * 1000))

    @pytest.fixture
    def make(self) -> MakeSeen:
        made: list[MemorySeen] = []

        def make(bounds: Bounds) -> SeenStore:
            made.append(made[0] if made else MemorySeen(bounds, self.time))
            return made[-1]

        return make
