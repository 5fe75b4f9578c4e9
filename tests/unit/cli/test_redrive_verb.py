"""What the verb redrive tells of work that is half done."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.cli.app import main
from isthmus.entities.queue.run import RunSet
from isthmus.errors import ConfigError, ConnectionLostError, Fault
from isthmus.operations.redrive import Redriven
from isthmus.operations.set_aside import SetAside
from isthmus.replication import reach

TEXT = """
isthmus: 1
namespaces:
  ewr: {connection: env:EWR_CONNECTION}
  jfk: {connection: env:JFK_CONNECTION}
tasks:
  flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}
"""


def found(*_: object, **__: object) -> SetAside:
    chosen = RunSet()
    chosen.add(1, 3)
    return SetAside(chosen=chosen)


def run(
    answers: list[Redriven | Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> tuple[int, Any]:
    def redrive(*_: object, **__: object) -> Redriven:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(reach.Reach, "open", lambda *_: SimpleNamespace(close=lambda seconds: None))
    monkeypatch.setattr("isthmus.operations.set_aside.look", found)
    monkeypatch.setattr("isthmus.operations.redrive.redrive", redrive)
    (tmp_path / "isthmus.yaml").write_text(TEXT)
    with pytest.raises(SystemExit) as ended:
        main(["redrive", str(tmp_path / "isthmus.yaml"), "--yes", "--json"])
    code = ended.value.code
    assert isinstance(code, int)
    return code, json.loads(capsys.readouterr().out)


def test_a_fault_of_the_file_does_not_hide_what_was_sent_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 says that nothing was changed."""
    fault = ConfigError([Fault("step 1: no such file")])
    code, told = run([Redriven(sent=3), fault], tmp_path, monkeypatch, capsys)
    assert (code, told["sent"], told["left"]) == (1, 3, 3)
    assert "no such file" in told["queues"][1]["error"]


def test_a_fault_of_the_file_ends_the_verb_where_nothing_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = run([ConfigError([Fault("step 1: no such file")])], tmp_path, monkeypatch, capsys)
    assert (code, "no such file" in told["error"]["message"]) == (2, True)


def test_a_queue_that_is_lost_half_way_tells_what_its_target_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = ConnectionLostError("gone")
    lost.add_note("the target had acknowledged 2 copies by then")
    code, told = run([lost, Redriven(sent=3)], tmp_path, monkeypatch, capsys)
    assert (code, told["sent"]) == (1, 3)
    assert told["queues"][0]["error"] == "gone; the target had acknowledged 2 copies by then"
