"""`isthmus drill`: the loss of a member under load loses nothing, and nothing is handled twice."""

from __future__ import annotations

import json

import pytest

from isthmus.cli.app import main


@pytest.mark.parametrize("pattern", ["active-passive", "all-active"])
def test_nothing_is_lost_or_handled_twice(pattern: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["drill", pattern, "--rate", "50", "--before", "2", "--away", "3", "--after", "2", "--json"])
    output, errors = capsys.readouterr()
    assert (ended.value.code or 0) == 0, (output, errors)
    report = json.loads(output.splitlines()[-1])
    assert report["pattern"] == pattern
    assert report["sent"] >= 200
    assert report["handled"] == report["sent"]
    assert (report["lost"], report["handled_twice"]) == (0, 0)
    assert report["rto_seconds"] is not None
    assert report["rpo_messages"] >= 0
    assert "ewr is lost" in errors
    assert "ewr is back" in errors
