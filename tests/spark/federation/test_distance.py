"""`isthmus bench rtt`, with few messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isthmus.cli.app import create_app

pytestmark = pytest.mark.spark


@pytest.mark.soak  # a measurement: minutes of load
def test_the_command_shows_rates_times_and_ratios(tmp_path: Path) -> None:
    arguments = ["bench", "rtt", "--messages", "1000", "--delays", "0,40", "--seconds", "1", "--rate", "50", "--json"]
    done = CliRunner().invoke(create_app("bench"), [*arguments, "--alone", "--data", str(tmp_path)])
    assert done.exit_code == 0, done.output
    reported = json.loads(done.output.strip().splitlines()[-1])
    assert (reported["benchmark"], reported["messages"], reported["credit"]) == ("rtt", 1000, 1000)
    near, far = reported["by_round_trip_ms"]["0"], reported["by_round_trip_ms"]["40"]
    assert near["ratio"] == near["alone_ratio"] == 1.0
    assert far["messages_per_second"] > 0
    assert far["p50_ms"] >= 20  # half a round trip
    assert far["alone_p50_ms"] >= 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak  # another start of Spark
def test_a_measurement_whose_query_fails_ends_and_says_why(tmp_path: Path) -> None:
    arguments = ["bench", "bridge", "--messages", "1000", "--option", "window=5", "--data", str(tmp_path)]
    done = CliRunner().invoke(create_app("bench"), arguments)
    assert done.exit_code != 0
    assert "no option 'window'" in str(done.exception)
