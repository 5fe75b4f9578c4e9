"""isthmus.cli.message.result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import IO, Any

import pytest

from isthmus.cli.app import main
from isthmus.cli.message import send
from isthmus.cli.message.result import print_result


@contextmanager
def full_disk() -> Iterator[IO[str]]:
    with open("/dev/full", "w") as full:
        yield full


@contextmanager
def ended_reader() -> Iterator[IO[str]]:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as broken:
        yield broken


@pytest.mark.parametrize("output", [full_disk, ended_reader])
@pytest.mark.parametrize("as_json", [False, True])
def test_a_send_whose_result_cannot_be_written_is_not_to_be_run_again(
    output: Any, as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a script would that looks at the exit code."""
    target = SimpleNamespace(open=lambda path: nullcontext(None))
    monkeypatch.setattr(send, "address_of", lambda *_: SimpleNamespace(target=lambda: target))
    monkeypatch.setattr("isthmus.operations.deliver.deliver", lambda client, sender, payloads: [None] * len(payloads))
    monkeypatch.setattr("isthmus.transport.Sender", lambda *_: SimpleNamespace(wait_ready=lambda: None))
    with output() as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        with pytest.raises(SystemExit) as ended:
            main(["send", "orders", "body", "--message-id", "m", *(["--json"] if as_json else [])])
    assert not ended.value.code
    reported = capsys.readouterr().err
    assert reported.startswith("standard output cannot be written (")
    assert ('"message_ids": ["m"]' if as_json else "orders: sent 1 message, MessageId m") in reported


def test_a_result_that_nobody_reads_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `isthmus send … 2>&1 | head -0`."""
    with ended_reader() as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stream)
        with ended_reader() as errors:
            patch.setattr("sys.stderr", errors)
            print_result("orders: sent 1 message")
            os.dup2(os.open(os.devnull, os.O_WRONLY), errors.fileno())
