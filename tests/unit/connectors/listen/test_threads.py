"""isthmus.connectors.listen.threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.check.until import until
from isthmus.amqp.section import encode_message
from isthmus.bridge.delivery_event import Disposition
from isthmus.bridge.port import Exhausted
from isthmus.connectors.http.mapping import to_messages
from isthmus.connectors.listen import threads
from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.listen.threads import SECRET_SECONDS, ListenThread
from isthmus.connectors.secret import Secret, SecretUnavailableError
from isthmus.connectors.spool.block import Record
from isthmus.connectors.spool.writer import SpoolWriter


def options(spool: Path) -> ListenOptions:
    return ListenOptions(
        host="127.0.0.1",
        port=0,
        entity="hook",
        spool=spool,
        auth="bearer",
        secret="keyvault:v/n",
        signature="standard",
        certificate_file="",
        key_file="",
        max_body_bytes=1,
        spool_bytes=1 << 20,
    )


def test_i4_a_vault_that_does_not_answer_delays_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half a minute to give it up; meanwhile nothing would be given to the route, or noted as settled."""
    answers, asked = threading.Event(), 0
    vault: list[Secret | Exception] = [
        Secret("first"),
        SecretUnavailableError("keyvault:v/n", "away"),
        Secret("second"),
    ]

    def resolve(reference: str) -> Secret:
        nonlocal asked
        asked += 1
        if asked > 1:
            assert answers.wait(10)
        found = vault[asked - 1]
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(threads, "resolve", resolve)
    thread = ListenThread(options(tmp_path), to_messages, lambda: None, only_present=False, handshakes=False)
    thread._renew_secret(0.0)
    thread._renew_secret(SECRET_SECONDS - 1)
    assert (thread._secret, asked) == ("first", 1)
    thread._renew_secret(SECRET_SECONDS)
    assert thread._secret == "first"
    answers.set()
    until(lambda: asked == 2)
    thread._renew_secret(2 * SECRET_SECONDS)
    until(lambda: thread._secret == "second")


def test_i5_the_end_waits_for_messages_that_are_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner closes the source at the end. Where the disk was full, a run ended in good order, and had counted the message as dead-lettered."""
    writer = SpoolWriter(tmp_path).open()
    writer.append([Record("hook", number, 1, encode_message(b"m")) for number in range(3)])
    writer.sync()
    writer.close()
    thread = ListenThread(options(tmp_path), to_messages, lambda: None, only_present=True, handshakes=False)
    outgoing = thread._outgoing
    outgoing.open(3)
    thread._end = 2  # the third one arrived later
    thread.grant(10)
    thread._fill(outgoing, 10)
    events, messages = thread.take()
    assert events == []
    assert [position for position, _ in messages] == [1, 2]
    thread.ask(2, 2, "complete")
    thread.ask(1, 1, "set-aside", Disposition("dead-letter", "Bad", "it is"))
    with monkeypatch.context() as patched:

        def full(*arguments: object) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(thread, "_set_aside", full)
        with pytest.raises(OSError, match="No space"):
            thread._serve_asked(outgoing)
    thread._fill(outgoing, 10)
    assert thread.take() == ([], [])
    thread._serve_asked(outgoing)
    thread._fill(outgoing, 10)
    assert thread.take() == ([Exhausted()], [])
