"""`isthmus rules eval`."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.app import main

MESSAGE = {"sys": {"Label": "flight", "MessageId": "m1"}, "user": {"origin": "EWR", "delay": 5, "ratio": 0.5}}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["rules", "eval", *arguments])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, printed.err


@pytest.fixture
def message(tmp_path: Path) -> str:
    path = tmp_path / "message.json"
    path.write_text(json.dumps(MESSAGE), encoding="utf-8")
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def test_verdicts(capsys: pytest.CaptureFixture[str], message: str) -> None:
    for text, verdict in (("origin = 'EWR'", "match"), ("origin = 'JFK'", "no match"), ("carrier = 'UA'", "unknown")):
        assert answer(capsys, "--filter", text, "--message", message) == {"verdict": verdict, "message": MESSAGE}


def test_the_changed_message(capsys: pytest.CaptureFixture[str], message: str) -> None:
    action = "SET Delay = 2.0; SET seen = newid(); SET sys.TimeToLive = '0:2:0'; REMOVE ratio; SET sys.Label = 'x'"
    found = answer(capsys, "--filter", "delay > 4", "--action", action, "--message", message)
    assert found["message"]["sys"] == {
        "Label": "x",
        "MessageId": "m1",
        "TimeToLive": {"$type": "timespan_seconds", "value": 120},
    }
    assert list(found["message"]["user"]) == ["origin", "delay", "seen"]
    assert type(found["message"]["user"]["delay"]) is int
    assert found["message"]["user"]["seen"]["$type"] == "uuid"


def test_an_action_leaves_a_message_alone_that_the_filter_does_not_select(
    capsys: pytest.CaptureFixture[str], message: str
) -> None:
    found = answer(capsys, "--filter", "delay > 5", "--action", "SET seen = 1", "--message", message)
    assert found == {"verdict": "no match", "message": MESSAGE}


def test_standard_input_and_typed_values(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    document = {
        "user": {
            "when": {"$type": "datetime", "value": "2013-01-01T05:15:00Z"},
            "took": {"$type": "timespan_seconds", "value": 90.5},
            "key": {"$type": "uuid", "value": "6b0a5d2e-6f0a-4c3e-9a55-0d6b3f1b7c11"},
        }
    }
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(document)))
    found = answer(
        capsys,
        "--filter",
        "took > @least",
        "--parameter",
        'least={"$type":"timespan_seconds","value":90}',
        "--message",
        "-",
    )
    assert found == {"verdict": "match", "message": {"sys": {}, **document}}


def test_a_failing_evaluation_is_unknown_and_says_why(capsys: pytest.CaptureFixture[str], message: str) -> None:
    found = answer(capsys, "--filter", "1 / (delay - 5) = 1", "--message", message)
    assert found["verdict"] == "unknown"
    assert "divides by zero" in found["error"]["message"]
    code, out, _ = run(capsys, "--filter", "delay = 5", "--action", "SET sys.TimeToLive = 'x'", "--message", message)
    assert code == 0
    assert out.startswith("match\nerror: ")


def test_an_expression_that_does_not_parse_ends_with_its_column(
    capsys: pytest.CaptureFixture[str], message: str
) -> None:
    code, out, err = run(capsys, "--filter", "a = = 1", "--action", "SET = 1", "--message", message, "--json")
    assert code == 2
    error = json.loads(out)["error"]
    assert (error["line"], error["column"]) == (1, 5)
    assert [(fault["file"], fault["column"]) for fault in error["faults"]] == [("--filter", 5), ("--action", 5)]
    assert "--filter: line 1, column 5" in err


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "no JSON"),
        ("[]", "a message is an object"),
        ('{"body": 1}', "'body' is no part"),
        ('{"sys": {"Lable": "x"}}', "did you mean Label?"),
        ('{"sys": {"Label": 5}}', "is to be a string"),
        ('{"user": {"a": 9223372036854775808}}', "64 bits"),
        ('{"user": {"a": [1]}}', "user.a: a value is"),
        ('{"user": {"a": {"$type": "uuid", "value": "x"}}}', "is no uuid"),
        ('{"user": {"a": {"$type": "date", "value": "x"}}}', "$type is"),
        ('{"user": {"a": NaN}}', "NaN is no JSON number"),
    ],
)
def test_a_message_that_is_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "message.json"
    path.write_text(content, encoding="utf-8")
    code, _, err = run(capsys, "--filter", "1=1", "--message", str(path))
    assert code == 2
    assert text in err


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "--filter", "1=1", "--message", str(tmp_path / "none.json"))
    assert code == 2
    assert "cannot read the message" in err
