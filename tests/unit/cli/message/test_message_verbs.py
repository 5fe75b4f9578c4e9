"""The output of the verbs about messages for work that is half done, without a namespace; with one: tests/interop/operator/test_operations.py."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.amqp import section
from isthmus.cli.app import main
from isthmus.cli.message import export, import_, peek, purge, receive, resubmit, send
from isthmus.cli.where import entity_path
from isthmus.entities.queue.run import RunSet
from isthmus.errors import IsthmusError, NotAllowedError, QuotaExceededError
from isthmus.operations.deliver import UnconfirmedError
from isthmus.operations.file.carry import Imported
from isthmus.operations.peek import Census
from isthmus.operations.receive import Received
from isthmus.operations.removal.purge import Removal
from isthmus.operations.resubmit import Resubmission

TARGET = SimpleNamespace(name="host", open=lambda path: nullcontext(None))


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 1
    return capsys.readouterr()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_send_that_fails_half_way_shows_how_many_were_accepted(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = [1]

    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        if groups:
            groups.pop()
            return [None] * len(payloads)
        if is_lost:
            lost = UnconfirmedError("lost")
            lost.results = [lost, None, *[lost] * (len(payloads) - 2)]
            raise lost
        return [None, QuotaExceededError("full"), None, *[QuotaExceededError("full")] * (len(payloads) - 3)]

    monkeypatch.setattr(send, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.deliver.deliver", deliver)
    monkeypatch.setattr("isthmus.transport.Sender", lambda *_: SimpleNamespace(wait_ready=lambda: None))
    _, reported = failed(capsys, "send", "orders", "body", "--count", "700")
    assert f"{501 if is_lost else 502} of 700 messages were accepted" in reported


def test_an_export_shows_what_could_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "target_of", lambda *_: TARGET)
    monkeypatch.setattr("isthmus.operations.file.carry.export", lambda *_, **__: (3, Removal(removed=2, left=1)))
    reported, _ = failed(capsys, "export", "orders", str(tmp_path / "file"), "--remove")
    assert "wrote 3 messages" in reported
    assert "removed 2, 1 are locked, or were removed by others" in reported


def test_receive_names_the_options_that_an_entity_with_sessions_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise NotAllowedError("It is not possible for an entity that requires sessions to create this receiver.")

    monkeypatch.setattr(receive, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.receive.receive", refused)
    assert "--next-session" in failed(capsys, "receive", "orders")[1]
    assert "--next-session" not in failed(capsys, "receive", "orders", "--session-id", "a")[1]


@pytest.mark.usefixtures("interrupts")
def test_ctrl_c_lets_what_resubmit_has_sent_leave_its_queue_and_shows_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    census = Census(RunSet(), RunSet(), RunSet())
    census.active.add(1, 3)

    def resubmitted(*_: object, is_stopped: Callable[[], bool], **__: object) -> Resubmission:
        signal.raise_signal(signal.SIGINT)
        assert is_stopped()
        return Resubmission(moved=1, refused=0, left=2, first_refusal="")

    client = SimpleNamespace(authorize=lambda path: None)
    target = SimpleNamespace(read_entity=None, open=lambda path: nullcontext(client))
    monkeypatch.setattr(resubmit, "target_of", lambda *_: target)
    monkeypatch.setattr("isthmus.operations.detection.check_detection", lambda *_, **__: None)
    monkeypatch.setattr("isthmus.operations.peek.take_census", lambda *_, **__: census)
    monkeypatch.setattr("isthmus.operations.resubmit.resubmit", resubmitted)
    with pytest.raises(SystemExit) as ended:
        main(["resubmit", "orders", "--yes"])
    out, reported = capsys.readouterr()
    assert ended.value.code == 130
    assert "sent 1 messages to orders, 0 refused, 2 left: interrupted" in out
    assert reported.startswith("interrupted: sent messages are removed from their queue")


def exported(
    *_: object, removing: Callable[[], AbstractContextManager[Callable[[], bool]]], **__: object
) -> tuple[int, Removal]:
    with removing() as is_stopped:
        return 3, interrupted(Removal(removed=1, left=2))(is_stopped=is_stopped)


def interrupted(done: Any) -> Callable[..., Any]:
    """Work that is interrupted, and what it has done then."""

    def work(*_: object, is_stopped: Callable[[], bool], **__: object) -> Any:
        assert not is_stopped()
        signal.raise_signal(signal.SIGTERM)
        assert is_stopped()
        return done

    return work


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize(
    ("arguments", "place", "work", "reported"),
    [
        (
            "purge orders --yes",
            "removal.purge.remove",
            interrupted(Removal(removed=1, left=2)),
            "orders: removed 1 messages, 2 left: interrupted",
        ),
        (
            "export orders FILE --remove",
            "file.carry.export",
            exported,
            "orders: wrote 3 messages to FILE, removed 1, 2 left: interrupted; they are in the file too",
        ),
        (
            "import FILE orders",
            "file.carry.import_file",
            interrupted(Imported(accepted=500, passed_over=0, deferred=0, complete=False)),
            "orders: sent 500 messages; interrupted: run it again to send the rest",
        ),
        ("receive orders --max 0", "receive.receive", interrupted(Received(3, 0, None)), ""),
    ],
    ids=["purge", "export", "import", "receive"],
)
def test_ctrl_c_and_sigterm_end_a_verb_in_good_order(
    arguments: str,
    place: str,
    work: Any,
    reported: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    census = Census(RunSet(), RunSet(), RunSet())
    census.active.add(1, 3)
    for module in (purge, export, import_):
        monkeypatch.setattr(module, "target_of", lambda *_: SimpleNamespace(**vars(TARGET), read_entity=None))
    monkeypatch.setattr(receive, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    detection = SimpleNamespace(created_at="", may_drop=False)
    monkeypatch.setattr("isthmus.operations.detection.check_detection", lambda *_, **__: detection)
    monkeypatch.setattr("isthmus.operations.peek.take_census", lambda *_, **__: census)
    monkeypatch.setattr(f"isthmus.operations.{place}", work)
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    out, err = capsys.readouterr()
    assert ended.value.code == 130
    assert out.strip() == reported
    assert err.startswith("interrupted: ")


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("as_json", [False, True])
def test_an_import_that_has_sent_all_is_not_to_be_run_again(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor would a script do it that looks at the exit code: all messages would be sent a second time."""
    monkeypatch.setattr(import_, "target_of", lambda *_: SimpleNamespace(**vars(TARGET), read_entity=None))
    detection = SimpleNamespace(created_at="", may_drop=False)
    monkeypatch.setattr("isthmus.operations.detection.check_detection", lambda *_, **__: detection)
    done = Imported(accepted=3, passed_over=0, deferred=0, complete=True)
    monkeypatch.setattr("isthmus.operations.file.carry.import_file", interrupted(done))
    with pytest.raises(SystemExit) as ended:
        main(["import", "FILE", "orders", *(["--json"] if as_json else [])])
    out, _ = capsys.readouterr()
    assert not ended.value.code
    if as_json:
        assert json.loads(out)["complete"] is True
    else:
        assert out == "orders: sent 3 messages\n"


@pytest.mark.usefixtures("interrupts")
def test_an_export_that_is_terminated_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def messages(*_: Any) -> Iterator[bytes]:
        yield section.encode_message(b"0")
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it goes on")

    monkeypatch.setattr(export, "target_of", lambda *_: TARGET)
    monkeypatch.setattr("isthmus.operations.file.carry.messages", messages)
    with pytest.raises(SystemExit) as ended:
        main(["export", "orders", str(tmp_path / "file")])
    assert ended.value.code == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("interrupts")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_send_that_is_interrupted_shows_how_many_were_accepted(
    as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        signal.raise_signal(signal.SIGINT)
        return [None] * len(payloads)

    monkeypatch.setattr(send, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.deliver.deliver", deliver)
    monkeypatch.setattr("isthmus.transport.Sender", lambda *_: SimpleNamespace(wait_ready=lambda: None))
    with pytest.raises(SystemExit) as ended:
        main(["send", "orders", "body", "--count", "700", *(["--json"] if as_json else [])])
    out, _ = capsys.readouterr()
    assert ended.value.code == 130
    if as_json:
        reported = json.loads(out)
        assert (reported["sent"], len(reported["message_ids"])) == (500, 500)
    else:
        assert out == "orders: sent 500 messages of 700: interrupted\n"


@pytest.mark.usefixtures("interrupts")
def test_a_send_whose_messages_are_all_accepted_is_not_to_be_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def deliver(client: Any, sender: Any, payloads: list[bytes]) -> list[IsthmusError | None]:
        signal.raise_signal(signal.SIGTERM)
        return [None] * len(payloads)

    monkeypatch.setattr(send, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.deliver.deliver", deliver)
    monkeypatch.setattr("isthmus.transport.Sender", lambda *_: SimpleNamespace(wait_ready=lambda: None))
    with pytest.raises(SystemExit) as ended:
        main(["send", "orders", "body", "--count", "3"])
    assert not ended.value.code
    assert capsys.readouterr().out == "orders: sent 3 messages\n"


WITH_FIELDS = section.encode_message(
    b"body",
    properties={"message_id": "m", "correlation_id": "c", "reply_to": "answers"},
    application_properties={"n": 1},
)


def test_receive_prints_the_standard_properties_that_are_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def received(client: Any, path: str, count: int, wait: float, take: Callable[..., object], **_: Any) -> Received:
        take(WITH_FIELDS, lambda: False)
        return Received(1, 0, None)

    monkeypatch.setattr(receive, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.receive.receive", received)
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["receive", "orders", *more])
        assert not ended.value.code
        out, _ = capsys.readouterr()
        if more:
            assert json.loads(out) | {"correlation_id": "c", "reply_to": "answers", "to": ""} == json.loads(out)
        else:
            assert out == "body\n  sequence number 0, MessageId m, CorrelationId c, ReplyTo answers, n = 1\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_the_lock_of_a_message_larger_than_the_pipe_is_kept_while_its_reader_pauses(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `isthmus receive orders --max 0 | less`: else it is printed again and again, until it is a dead letter."""
    body = b"x" * 200_000
    is_kept = threading.Event()
    results: list[Any] = []

    def read_late() -> None:
        results.append(is_kept.wait(20.0))
        with open(reading, "rb") as pipe:
            results.append(pipe.read().count(b"x") >= len(body))

    def received(client: Any, path: str, count: int, wait: float, take: Callable[..., object], **_: Any) -> Received:
        take(section.encode_message(body), is_kept.set)
        return Received(1, 0, None)

    monkeypatch.setattr(receive, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.receive.receive", received)
    reading, writing = os.pipe()
    reader = threading.Thread(target=read_late)
    reader.start()
    with os.fdopen(writing, "w") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        with pytest.raises(SystemExit) as ended:
            main(["receive", "orders", *(["--json"] if as_json else [])])
    reader.join()
    assert (ended.value.code or 0, results) == (0, [True, True])


class Terminal(io.StringIO):
    """A terminal that may be closed."""

    is_open = True

    def isatty(self) -> bool:
        return self.is_open


def test_a_message_that_is_printed_while_the_terminal_is_closed_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    results: list[bool] = []

    def received(client: Any, path: str, count: int, wait: float, take: Callable[..., object], **_: Any) -> Received:
        for is_open in (True, False):
            terminal.is_open = is_open
            results.append(False)
            take(WITH_FIELDS, lambda: False)
            results[-1] = True
        pytest.fail("it is taken")

    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(receive, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.receive.receive", received)
    with pytest.raises(SystemExit) as ended:
        main(["receive", "orders", "--max", "0"])
    assert (ended.value.code, results) == (130, [True, False])


def test_peek_prints_the_standard_properties_that_are_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peek, "address_of", lambda *_: SimpleNamespace(target=lambda: TARGET))
    monkeypatch.setattr("isthmus.operations.peek.messages", lambda *_, **__: iter([WITH_FIELDS]))
    for more in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["peek", "orders", *more])
        assert not ended.value.code
        out, _ = capsys.readouterr()
        if more:
            assert json.loads(out) | {"correlation_id": "c", "reply_to": "answers", "to": ""} == json.loads(out)
        else:
            assert "CorrelationId c, ReplyTo answers" in out


def test_resubmit_shows_what_is_deferred(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not sent: a receiver gets it only by its sequence number."""
    census = Census(RunSet(), RunSet(), RunSet())
    census.active.add(1, 3)
    census.deferred.add(4, 5)
    client = SimpleNamespace(authorize=lambda path: None)
    target = SimpleNamespace(read_entity=None, open=lambda path: nullcontext(client))
    monkeypatch.setattr(resubmit, "target_of", lambda *_: target)
    monkeypatch.setattr("isthmus.operations.detection.check_detection", lambda *_, **__: None)
    monkeypatch.setattr("isthmus.operations.peek.take_census", lambda *_, **__: census)
    for more in ((), ("--json",)):
        with pytest.raises(SystemExit) as ended:
            main(["resubmit", "orders", *more])
        assert not ended.value.code
        out, reported = capsys.readouterr()
        if more:
            assert json.loads(out) | {"meant": 3, "deferred": 2} == json.loads(out)
        else:
            assert "3 messages would be sent" in out
            assert "2 deferred ones stay" in reported


@pytest.mark.parametrize("number", ["9223372036854775808", "-9223372036854775809", "1" * 5000])
def test_a_number_that_no_property_can_hold_is_bad_input(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["send", "orders", "body", "--property", f"count={number}"])
    assert (ended.value.code, "64 bits" in capsys.readouterr().err) == (2, True)


def test_a_body_that_is_no_text_is_bad_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["send", "orders", "a\udcff"])
    assert (ended.value.code, "'a\\udcff' is not UTF-8" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize(
    ("entity", "dead_letter", "path"),
    [
        ("/orders/", False, "orders"),
        ("orders", True, "orders/$DeadLetterQueue"),
        ("orders/$deadletterqueue", True, "orders/$DeadLetterQueue"),
        ("orders/$DEADLETTERQUEUE", False, "orders/$DeadLetterQueue"),
    ],
)
def test_a_dead_letter_queue_in_any_case(entity: str, dead_letter: bool, path: str) -> None:
    """Else `resubmit` takes it for the queue that its messages came from."""
    assert entity_path(entity, dead_letter=dead_letter) == path


def test_a_closed_standard_input_is_no_body(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(SystemExit) as ended:
        main(["send", "orders", "-"])
    assert (ended.value.code, "standard input is closed" in capsys.readouterr().err) == (2, True)
