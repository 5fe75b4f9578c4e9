from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

import isthmus.cli
from isthmus.cli import app as frame
from isthmus.cli.completion import completed_verb
from isthmus.connectors.secret import SecretUnavailableError
from isthmus.connectors.servicebus.connection_string import ConnectionStringError
from isthmus.errors import ConfigError, Fault, InvalidArgumentError, IsthmusError, ServerBusyError
from isthmus.topology.file.reference import SecretError

VERB = """
import typer
from isthmus.errors import ConfigError, Fault, ServerBusyError

def register(app: typer.Typer) -> None:
    @app.command("example")
    def example(kind: str = "", as_json: bool = typer.Option(False, "--json")) -> None:
        if kind == "busy":
            raise ServerBusyError("come back later")
        if kind == "long":
            print("x" * 100_000)
        if kind == "config":
            raise ConfigError([Fault("a is wrong", hint="write b", file="x.yaml", line=2, column=3)])
        print("done")
"""


@pytest.fixture(autouse=True)
def example_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example.py").write_text(VERB)
    monkeypatch.setattr(isthmus.cli, "__path__", [str(tmp_path), *isthmus.cli.__path__])
    monkeypatch.setitem(frame.VERBS, "example", "example")


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        frame.main(arguments)
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


@pytest.mark.parametrize("arguments", [("nothing",), ("example", "--unknown"), ("example", "extra")])
def test_i2_bad_arguments_are_bad_input(arguments: tuple[str, ...]) -> None:
    assert run(*arguments) == 2


@pytest.mark.parametrize("kind", ["", "long", "busy"])
def test_i4_an_output_that_is_no_longer_read_is_no_error_text(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `isthmus … --json | head`, whether it shows while the verb prints, at its end, or with its error."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        monkeypatch.setattr("sys.stdout", broken)
        assert run("example", "--kind", kind, "--json") == 1
        monkeypatch.undo()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["", "long"])
def test_i4_an_output_that_a_full_disk_refuses_is_reported(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert run("example", "--kind", kind) == 1
        monkeypatch.setattr("sys.stdout", None)
    assert capsys.readouterr().err == "isthmus: a write was refused: No space left on device\n"


def test_i4_without_an_output_a_verb_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert run("example") == 0


def test_exit_codes() -> None:
    assert frame.exit_code(ConfigError([Fault("x")])) == 2
    assert frame.exit_code(InvalidArgumentError("x")) == 2
    assert frame.exit_code(SecretError("env:X", "the environment variable is not set")) == 2
    assert frame.exit_code(ConnectionStringError("no '='")) == 2
    assert frame.exit_code(SecretUnavailableError("keyvault:x/y", "the vault answered 503")) == 1
    assert frame.exit_code(ServerBusyError("x")) == 1
    assert frame.exit_code(IsthmusError("x")) == 1


def test_every_module_with_a_verb_is_in_the_table_and_is_named_like_it() -> None:
    group: Any = typer.main.get_command(frame.create_app())
    assert set(group.commands) == set(frame.VERBS)
    root = Path(frame.__file__).parent
    found = {".".join(path.relative_to(root).with_suffix("").parts) for path in root.rglob("*.py")}
    of_verbs = {
        name
        for name in found
        if "def register(app" in (root / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")
    }
    assert of_verbs == set(frame.VERBS.values()) - {"example"}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))


def test_every_command_and_every_option_has_a_help_text() -> None:
    group = typer.main.get_command(frame.create_app())
    named = dict(commands(group))
    assert ("entity", "create") in named
    for path, command in named.items():
        if path == ("example",):
            continue
        assert command.help, path
        for parameter in command.params:
            if parameter.name != "help":
                assert getattr(parameter, "help", ""), (*path, parameter.name)


@pytest.mark.parametrize("verb", ["entity", "send", "receive", "peek", "import", "plan"])
def test_help_ends_with_0_and_fits_80_columns(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(verb, "--help") == 0
    output = capsys.readouterr().out
    assert f"isthmus {verb}" in output
    assert max(map(len, output.splitlines())) <= 80
    assert "\x1b[3" not in output


@pytest.mark.parametrize(
    ("arguments", "place", "verb"),
    [
        ("isthmus", "1", None),
        ("isthmus pe", "1", None),
        ("isthmus peek or", "2", "peek"),
        ("isthmus peek --namespace ewr", "3", "peek"),
        ("isthmus peek", "2", "peek"),  # the cursor is behind a blank
    ],
)
def test_a_completion_imports_the_verb_that_is_complete(
    arguments: str, place: str, verb: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_ISTHMUS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", arguments)
    monkeypatch.setenv("COMP_CWORD", place)
    assert completed_verb() == verb


def test_the_words_that_complete_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "isthmus.yaml").write_text(
        "isthmus: 1\nnamespaces: {ewr: {connection: env:A}, jfk: {connection: env:B}}\n"
        "tasks: {flights: {pattern: all-active, topic: flights, members: [ewr, jfk]}}\n"
    )
    monkeypatch.setenv("_ISTHMUS_COMPLETE", "complete_bash")
    for arguments, expected in (
        ("isthmus pau", "pause"),
        ("isthmus run --task fl", "flights"),
        ("isthmus entity cr", "create"),
        ("isthmus peek --namespace e", "ewr"),
        ("isthmus init all", "all-active"),
    ):
        monkeypatch.setenv("COMP_WORDS", arguments)
        monkeypatch.setenv("COMP_CWORD", str(len(arguments.split()) - 1))
        assert run() == 0
        assert capsys.readouterr().out.split() == [expected], arguments


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", shell) == 0
    assert f"_ISTHMUS_COMPLETE=complete_{shell}" in capsys.readouterr().out
