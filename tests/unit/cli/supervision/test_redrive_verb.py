"""The output of the verb redrive for work that is half done."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.cli.app import main
from isthmus.entities.queue.run import RunSet
from isthmus.errors import ConfigError, ConnectionLostError, EntityNotFoundError, Fault
from isthmus.operations.redrive.redrive import Redriven
from isthmus.operations.redrive.set_aside import SetAside
from isthmus.replication import namespace_clients

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
    answers: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
    count_queue: Callable[..., SetAside] = found,
    as_json: bool = True,
    text: str = TEXT,
) -> tuple[int, Any]:
    def redrive(*arguments: object, **named: Any) -> Any:
        answer = answers.pop(0)
        if callable(answer):
            return answer(*arguments, **named)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(
        namespace_clients.NamespaceClients, "open", lambda *_: SimpleNamespace(close=lambda seconds: None)
    )
    monkeypatch.setattr("isthmus.operations.redrive.set_aside.count_queue", count_queue)
    monkeypatch.setattr("isthmus.operations.redrive.redrive.redrive", redrive)
    for alias, port in (("EWR", 5701), ("JFK", 5702)):
        monkeypatch.setenv(
            f"{alias}_CONNECTION",
            f"Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName=k;SharedAccessKey=eA==;UseDevelopmentEmulator=true",
        )
    (tmp_path / "isthmus.yaml").write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["redrive", str(tmp_path / "isthmus.yaml"), "--yes", *(["--json"] if as_json else [])])
    code = ended.value.code
    assert isinstance(code, int)
    shown = capsys.readouterr().out
    return code, json.loads(shown) if as_json else shown


def test_a_fault_of_the_file_does_not_hide_what_was_sent_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2 says that nothing was changed."""
    fault = ConfigError([Fault("step 1: no such file")])
    code, reported = run([Redriven(sent=3), fault], tmp_path, monkeypatch, capsys)
    assert (code, reported["sent"], reported["left"]) == (1, 3, 3)
    assert "no such file" in reported["queues"][1]["error"]


def test_a_fault_of_the_file_ends_the_verb_where_nothing_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, reported = run([ConfigError([Fault("step 1: no such file")])], tmp_path, monkeypatch, capsys)
    assert (code, "no such file" in reported["error"]["message"]) == (2, True)


def test_the_dead_letters_of_an_archive_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table is no namespace."""
    text = TEXT + "  lake: {pattern: archive, source: ewr, topic: flights, table: lake}\n"
    code, reported = run([Redriven(sent=3), Redriven(sent=3)], tmp_path, monkeypatch, capsys, text=text)
    row = reported["queues"][2]
    assert (code, row["found"], row["sent"]) == (1, 0, 0)
    assert "ends in a table" in row["error"]


def test_a_queue_that_is_lost_half_way_shows_what_its_target_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half = Redriven(sent=2, left=1, failure="127.0.0.1:5702: Connection refused")
    code, reported = run([half, Redriven(sent=1, dropped=2)], tmp_path, monkeypatch, capsys)
    assert (code, reported["sent"], reported["dropped"], reported["left"]) == (1, 3, 2, 1)
    assert reported["queues"][0]["error"] == "jfk (127.0.0.1:5702): Connection refused"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ConnectionLostError("127.0.0.1:5701: Connection refused"), "ewr (127.0.0.1:5701): Connection refused"),
        (
            EntityNotFoundError("flights"),
            "there is no ewr/flights/Subscriptions/isthmus.flights.jfk/$DeadLetterQueue; isthmus apply makes it",
        ),
    ],
)
def test_a_queue_that_could_not_be_read_has_no_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, text: str
) -> None:
    looks: Iterator[SetAside | Exception] = iter([error, SetAside()])

    def count_queue(*_: object, **__: object) -> SetAside:
        answer = next(looks)
        if isinstance(answer, Exception):
            raise answer
        return answer

    code, reported = run([], tmp_path, monkeypatch, capsys, count_queue=count_queue)
    assert (code, reported["found"]) == (1, 0)
    assert [each["found"] for each in reported["queues"]] == [None, 0]
    assert reported["queues"][0]["error"] == text


def test_what_the_divert_queue_dead_lettered_itself_is_reported_with_how_to_return_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def count_queue(*_: object, **__: object) -> SetAside:
        return SetAside(dead_lettered=3)

    code, shown = run([], tmp_path, monkeypatch, capsys, count_queue=count_queue, as_json=False)
    queue = "flights/Subscriptions/isthmus.flights.jfk"
    assert code == 0
    assert "3 messages are in ewr/flights" in shown
    assert f"$DeadLetterQueue: isthmus resubmit {queue}" in shown


def test_ctrl_c_lets_what_was_sent_leave_its_queue_and_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], interrupts: object
) -> None:
    def answer(*_: object, is_stopped: Callable[[], bool], **__: object) -> Redriven:
        assert not is_stopped()
        signal.raise_signal(signal.SIGINT)
        assert is_stopped()
        return Redriven(sent=1, left=2)

    code, reported = run([answer], tmp_path, monkeypatch, capsys)
    assert (code, reported["sent"], reported["left"], len(reported["queues"])) == (130, 1, 2, 1)
    assert reported["queues"][0]["error"] == "interrupted: run it again to send the rest"
    assert signal.getsignal(signal.SIGINT) is interrupts


def test_ctrl_c_while_the_next_queue_is_looked_at_hides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([found, None])

    def count_queue(*_: object, **__: object) -> SetAside:
        each = next(looks)
        if each is None:
            raise KeyboardInterrupt
        return each()

    code, reported = run([Redriven(sent=3)], tmp_path, monkeypatch, capsys, count_queue=count_queue)
    assert (code, reported["sent"], len(reported["queues"])) == (130, 3, 1)
