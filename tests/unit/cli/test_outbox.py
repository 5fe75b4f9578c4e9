from __future__ import annotations

import json
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from isthmus.cli.app import main
from isthmus.client import DurableSender
from isthmus.client.outbox.frame import encode_record
from isthmus.client.send.lane import Attempt
from isthmus.operations.file.message_file import MessageReader

NOWHERE = "Endpoint=sb://127.0.0.1:1/;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true"


@pytest.fixture
def box(tmp_path: Path) -> Path:
    with DurableSender(NOWHERE, "orders", tmp_path / "box", drain=False) as sender:
        for number in range(5):
            sender.send_messages(ServiceBusMessage(b"body", message_id=f"m{number}", subject="s", session_id="a"))
    return tmp_path / "box"


def ran(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, str]:
    try:
        main(["outbox", *map(str, arguments)])
    except SystemExit as end:
        out = capsys.readouterr()
        return int(end.code or 0), out.out + out.err
    return 0, capsys.readouterr().out


def test_status_says_what_waits(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = ran(capsys, "status", box, "--json")
    assert code == 0
    reported = json.loads(out)
    assert (reported["messages"], reported["live"], reported["is_draining"], reported["refused"]) == (5, 0, False, 0)
    code, out = ran(capsys, "status", box)
    assert "5 messages" in out


def test_peek_shows_messages_and_takes_none_out(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = ran(capsys, "peek", box, "--max", 2, "--json")
    assert code == 0
    rows = json.loads(out)["messages"]
    assert [row["message_id"] for row in rows] == ["m0", "m1"]
    assert rows[0]["subject"] == "s"
    assert rows[0]["group_id"] == "a"
    assert "m4" in ran(capsys, "peek", box)[1]
    assert json.loads(ran(capsys, "peek", box, "--refused", "--json")[1]) == {"messages": []}


def test_peek_shows_what_cannot_be_read(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DurableSender(NOWHERE, "orders", box, drain=False) as sender:
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"1", properties=AmqpMessageProperties(subject=b"\xff")))
    rows = json.loads(ran(capsys, "peek", box, "--json")[1])["messages"]
    assert len(rows) == 6
    assert rows[-1]["message_id"] == ""


def test_export_writes_what_namespace_import_reads(
    box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = ran(capsys, "export", box, tmp_path / "messages", "--json")
    assert code == 0
    assert json.loads(out)["messages"] == 5
    with MessageReader(tmp_path / "messages") as reader:
        assert len(list(reader)) == 5
    assert json.loads(ran(capsys, "status", box, "--json")[1])["messages"] == 5


def test_drain_says_what_is_left_and_why(box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("ISTHMUS_CONNECTION", NOWHERE)
    code, out = ran(capsys, "drain", box, "--timeout", 1)
    assert code == 1
    assert "5 messages still wait" in out
    assert "refused" in out


def test_a_drain_that_leaves_messages_prints_one_object(box: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = ran(capsys, "drain", box, "--connection", NOWHERE, "--timeout", 1, "--json")
    reported, _, text = out.partition("\n")
    found = json.loads(reported)
    assert (code, found["left"], found["error"]["code"]) == (1, 5, "timeout")
    assert text.startswith("isthmus: 5 messages still wait")
    assert "{" not in text


def test_a_drain_without_its_connection_string_waits_for_nothing(
    box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_CONNECTION", raising=False)
    code, out = ran(capsys, "drain", box)
    assert (code, "the environment variable is not set" in out) == (2, True)


def test_ctrl_c_ends_a_drain_and_what_was_delivered_is_reported(
    box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was taken while it ended: the attempt that is under way is waited for."""
    monkeypatch.setenv("ISTHMUS_CONNECTION", NOWHERE)
    flush = DurableSender.flush

    def interrupted(sender: DurableSender, timeout: float | None = None) -> bool:
        signal.raise_signal(signal.SIGINT)
        return flush(sender, timeout)

    monkeypatch.setattr(DurableSender, "flush", interrupted)
    code, out = ran(capsys, "drain", box, "--json")
    reported, _, _ = out.partition("\n")
    assert (code, json.loads(reported)) == (130, {"waited": 5, "left": 5, "delivered": 0, "refused": 0, "damaged": 0})


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_drain_ends_once_the_batch_that_is_under_way_has_its_outcome(
    is_interrupted: bool, box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over a slow network it takes long. Given up, it may have arrived, and would be sent again by the next drain."""
    joined: list[float | None] = []

    class Sending:
        """A lane with a batch that needs longer than anyone waits."""

        max_message_bytes = max_batch_bytes = 0

        entity = "orders"

        def __init__(self, *_: object) -> None:
            self.has_begun, self.is_over = threading.Event(), threading.Event()
            made.append(self)

        def open_soon(self) -> None:
            pass

        def send(self, *_: object, **__: object) -> Attempt:
            self.has_begun.set()
            assert self.is_over.wait(20.0)
            return Attempt()

        def abandon(self) -> None:
            pytest.fail("it is given up")

        def close(self) -> None:
            pass

    made: list[Sending] = []
    monkeypatch.setattr("isthmus.client.send.durable_sender.Lane", Sending)
    join = threading.Thread.join

    def joining(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name.startswith("isthmus-outbox"):
            joined.append(timeout)
            made[-1].is_over.set()
        join(thread, timeout)

    def flush(sender: DurableSender, timeout: float | None = None) -> bool:
        assert made[-1].has_begun.wait(20.0)
        if is_interrupted:
            signal.raise_signal(signal.SIGINT)
        return False

    monkeypatch.setattr(threading.Thread, "join", joining)
    monkeypatch.setattr(DurableSender, "flush", flush)
    code, out = ran(capsys, "drain", box, "--connection", NOWHERE, "--timeout", "0.1", "--json")
    assert joined[0] is None
    assert (code, json.loads(out.partition("\n")[0])["delivered"]) == (130 if is_interrupted else 0, 5)


def test_a_drain_whose_messages_were_refused_fails(
    box: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Sender:
        """Delivers all but what is refused, which is set aside."""

        refused = 0

        def __init__(self, *_: Any) -> None:
            pass

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def flush(self, timeout: float) -> bool:
            return True

        def close(self, *, is_patient: bool) -> None:
            pass

        def statistics(self) -> SimpleNamespace:
            return SimpleNamespace(drain=SimpleNamespace(delivered=5 - self.refused, refused=self.refused, error=""))

    monkeypatch.setattr("isthmus.client.send.durable_sender.DurableSender", Sender)
    empty = SimpleNamespace(messages=0, refused=0, damaged=0)
    monkeypatch.setattr("isthmus.client.outbox.store.status", lambda _: empty)
    assert ran(capsys, "drain", box, "--connection", NOWHERE)[0] == 0
    Sender.refused = 2
    code, out = ran(capsys, "drain", box, "--connection", NOWHERE)
    assert code == 1
    assert "3 messages delivered, 2 refused, 0 left" in out
    assert f"2 messages were refused; isthmus outbox peek {box} --refused shows why" in out


def test_messages_in_damaged_bytes_are_no_success(
    box: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = box.glob("*.log")
    whole = log.read_bytes()
    log.write_bytes(whole + whole[:10])  # a write that was broken off was never a message
    assert ran(capsys, "export", box, tmp_path / "torn")[0] == 0
    at = whole.index(b"m2")
    log.write_bytes(whole[:at] + b"\xff\xff" + whole[at + 2 :])
    code, out = ran(capsys, "export", box, tmp_path / "damaged")
    assert (code, "4 messages written" in out, "1 pieces" in out) == (1, True, True)
    refused = encode_record([b'{"reason": "large"}', b"message"], 0)
    (box / "refused.log").write_bytes(refused[:-4] + b"oops" + refused)
    code, out = ran(capsys, "export", box, tmp_path / "refused", "--refused")
    assert (code, "1 messages written" in out, "1 pieces" in out) == (1, True, True)

    sender = SimpleNamespace(
        flush=lambda timeout: True,
        close=lambda is_patient: None,
        statistics=lambda: SimpleNamespace(drain=SimpleNamespace(delivered=4, refused=0, error="")),
    )
    monkeypatch.setattr("isthmus.client.send.durable_sender.DurableSender", lambda *_: nullcontext(sender))
    before, after = (SimpleNamespace(messages=4 - 4 * n, refused=0, damaged=1 + n) for n in range(2))
    looks = iter([before, after, after])
    monkeypatch.setattr("isthmus.client.outbox.store.status", lambda _: next(looks))
    code, out = ran(capsys, "drain", box, "--connection", NOWHERE)
    assert (code, "the messages in 1 damaged pieces are not sent" in out) == (1, True)


def test_what_is_no_outbox_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        for verb in ("status", "peek", "drain"):
            code, out = ran(capsys, verb, folder)
            assert code == 2
            assert "is not an outbox" in out
    assert not (tmp_path / "none").exists()
