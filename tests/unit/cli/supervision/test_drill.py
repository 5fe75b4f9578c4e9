"""Refusals of `isthmus drill` before anything starts."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from isthmus.cli.app import main
from isthmus.cli.supervision import drill
from isthmus.errors import InvalidArgumentError

FILE = """isthmus: 1
namespaces: {ewr: {connection: env:A}, jfk: {connection: env:B}}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk], subscriptions: [all]}
"""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["spillover"], "there is no drill for spillover: write active-passive or all-active"),
        (["all-active", "--task", "flights"], "--task and --subscription go with --file"),
        (["active-passive", "--file", "FILE"], "no task has this pattern"),
        (["all-active", "--file", "FILE", "--task", "gone"], "write --task: flights"),
        (["all-active", "--file", "FILE", "--task", "flights"], "write --subscription NAME"),
        (["all-active", "--file", "FILE", "--task", "flights", "--subscription", "all"], "no run of"),
    ],
)
def test_what_is_no_drill_is_refused(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "isthmus.yaml"
    file.write_text(FILE, encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main(["drill", *(str(file) if word == "FILE" else word for word in arguments)])
    assert ended.value.code == 2
    assert text in capsys.readouterr().err


def test_a_drill_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that was not made unreachable is not lost: its RPO and RTO would be those of nothing."""
    operator = drill._Operator()
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    operator.lose("ewr")
    with pytest.raises(InvalidArgumentError, match="standard input has ended"):
        operator.bring_back("ewr")
