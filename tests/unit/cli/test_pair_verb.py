"""`isthmus pair` and `isthmus run` where the file declares something else than they need."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.cli.app import main

PAIRS = """\
isthmus: 1
namespaces:
  ewr: {connection: env:EWR}
  jfk: {connection: env:JFK}
pairs:
  contoso: {primary: ewr, secondary: jfk}
"""


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run"], "has no tasks; write tasks:, or use isthmus pair run for its pairs"),
        (["pair", "status", "acme"], "declares no pair 'acme'; it has: contoso"),
        (["pair", "failover", "contoso", "--consume-for", "soon"], "--consume-for is 'soon', which is no duration"),
        (["pair", "failover", "contoso", "--force", "--abort"], "--force and --abort contradict each other"),
    ],
)
def test_bad_input_is_told(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("isthmus.yaml").write_text(PAIRS)
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
