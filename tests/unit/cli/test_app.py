from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

import isthmus.cli
from isthmus.cli import app as frame
from isthmus.errors import ConfigError, Fault, InvalidArgumentError, IsthmusError, ServerBusyError

VERB = """
import typer
from isthmus.errors import ConfigError, Fault, ServerBusyError

def register(app: typer.Typer) -> None:
    @app.command("example")
    def example(kind: str = "", as_json: bool = typer.Option(False, "--json")) -> None:
        if kind == "busy":
            raise ServerBusyError("come back later")
        if kind == "config":
            raise ConfigError([Fault("a is wrong", hint="write b", file="x.yaml", line=2, column=3)])
        print("done")
"""


@pytest.fixture(autouse=True)
def example_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example.py").write_text(VERB)
    monkeypatch.setattr(isthmus.cli, "__path__", [str(tmp_path), *isthmus.cli.__path__])


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        frame.main(words)
    code = caught.value.code
    return code if isinstance(code, int) else 0


def test_a_verb_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("example") == 0
    assert capsys.readouterr().out == "done\n"


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"isthmus {isthmus.__version__}\n"


def test_i1_an_error_is_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("example", "--kind", "busy") == 1
    captured = capsys.readouterr()
    assert captured.err == "isthmus: come back later\n"
    assert captured.out == ""


def test_i1_an_error_is_json_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("example", "--kind", "config", "--json") == 2
    captured = capsys.readouterr()
    assert captured.err == "isthmus: x.yaml:2:3: a is wrong; write b\n"
    error = json.loads(captured.out.splitlines()[-1])["error"]
    assert error["code"] == "bad-config"
    assert error["faults"][0]["line"] == 2


@pytest.mark.parametrize("words", [("nothing",), ("example", "--unknown"), ("example", "extra")])
def test_i2_bad_words_are_bad_input(words: tuple[str, ...]) -> None:
    assert run(*words) == 2


def test_exit_codes() -> None:
    assert frame.exit_code(ConfigError([Fault("x")])) == 2
    assert frame.exit_code(InvalidArgumentError("x")) == 2
    assert frame.exit_code(ServerBusyError("x")) == 1
    assert frame.exit_code(IsthmusError("x")) == 1


def test_every_verb_module_registers() -> None:
    app = frame.create_app()
    assert isinstance(app, typer.Typer)
    assert "example" in frame.verbs()
