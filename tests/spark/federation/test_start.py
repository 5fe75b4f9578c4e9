"""How long a run takes to start is measured by `isthmus bench start`."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.bench.start import measure_start

pytestmark = pytest.mark.spark


@pytest.mark.soak  # six routes through a Spark of their own; the time is for benchmarks to record
def test_all_routes_of_a_federation_are_seen_to_start(tmp_path: Path) -> None:
    measured = measure_start(tmp_path / "start", 3)
    assert (measured["members"], measured["routes"]) == (3, 6)
    first, last = measured["first_route_seconds"], measured["start_seconds"]
    assert isinstance(first, float)
    assert isinstance(last, float)
    assert 0.0 < first <= last
