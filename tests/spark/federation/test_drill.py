"""`isthmus drill`: the loss of a member under load loses nothing, and nothing is handled twice."""

from __future__ import annotations

import json

import pytest

from isthmus.cli.app import main

pytestmark = pytest.mark.spark


def test_nothing_is_lost_or_handled_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """The other pattern, and what the drill does, need no Spark: tests/interop/federation/test_drill.py."""
    with pytest.raises(SystemExit) as ended:
        main(["drill", "active-passive", "--rate", "50", "--before", "1", "--away", "2", "--after", "1", "--json"])
    output, errors = capsys.readouterr()
    assert (ended.value.code or 0) == 0, (output, errors)
    report = json.loads(output.splitlines()[-1])
    assert report["pattern"] == "active-passive"
    assert report["sent"] >= 100
    assert report["handled"] == report["sent"]
    assert (report["lost"], report["handled_twice"]) == (0, 0)
    assert report["rto_seconds"] is not None
    assert report["rpo_messages"] >= 0
    assert "ewr is lost" in errors
    assert "ewr is back" in errors
