"""isthmus.connectors.listen.threads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from harness.check.until import until
from isthmus.connectors.http.mapping import to_messages
from isthmus.connectors.listen import threads
from isthmus.connectors.listen.option import ListenOptions
from isthmus.connectors.listen.threads import SECRET_SECONDS, ListenThread
from isthmus.connectors.secret import Secret, SecretUnavailableError


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
    options = ListenOptions(
        host="127.0.0.1",
        port=0,
        entity="hook",
        spool=tmp_path,
        auth="bearer",
        secret="keyvault:v/n",
        signature="standard",
        certificate_file="",
        key_file="",
        max_body_bytes=1,
        spool_bytes=1 << 20,
    )
    thread = ListenThread(options, to_messages, lambda: None, only_present=False, handshakes=False)
    thread._renew_secret(0.0)
    thread._renew_secret(SECRET_SECONDS - 1)
    assert (thread._secret, asked) == ("first", 1)
    thread._renew_secret(SECRET_SECONDS)
    assert thread._secret == "first"
    answers.set()
    until(lambda: asked == 2)
    thread._renew_secret(2 * SECRET_SECONDS)
    until(lambda: thread._secret == "second")
