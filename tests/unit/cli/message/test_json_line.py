"""isthmus.cli.message.json_line."""

from __future__ import annotations

import io
import json

import pytest

from isthmus.cli.message.json_line import json_line


@pytest.mark.parametrize(
    ("encoding", "is_readable"), [("utf-8", True), ("UTF8", True), ("ascii", False), ("latin-1", False)]
)
def test_it_is_json_whatever_the_output_can_have(
    encoding: str, is_readable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    output = io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr("sys.stdout", output)
    message = {"body": "Größe 日本 \U0001f600"}
    output.write(line := json_line(message))
    output.flush()
    assert json.loads(raw.getvalue().decode(encoding)) == message
    assert ("日本" in line) is is_readable
