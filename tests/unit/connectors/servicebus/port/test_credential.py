"""isthmus.connectors.servicebus.port.credential, and connections with tokens of a replaced secret."""

from __future__ import annotations

import threading
from urllib.parse import parse_qs

import pytest

from harness.check.until import until
from isthmus.connectors.iothub.endpoint import hub_endpoint
from isthmus.connectors.iothub.option import read_hub
from isthmus.connectors.secret import SecretError
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.port import credential as module
from isthmus.connectors.servicebus.port.connection import dial
from isthmus.connectors.servicebus.port.credential import REREAD_SECONDS, RereadCredential
from isthmus.testing.peer import Peer
from isthmus.transport import Credential, SharedKeyCredential


def policy(text: str) -> str:
    """The policy that signed a token."""
    return parse_qs(text.partition(" ")[2])["skn"][0]


class Secret:
    """Where a credential is read from."""

    def __init__(self) -> None:
        self.now = 0.0
        self.read: Credential | Exception | None = None
        self.reads = 0
        self.may_read = threading.Event()
        self.may_read.set()
        self.credential = RereadCredential(SharedKeyCredential("old", "key"), self._read, lambda: self.now)

    def _read(self) -> Credential | None:
        assert self.may_read.wait(10)
        self.reads += 1
        if isinstance(self.read, Exception):
            raise self.read
        return self.read

    def shown(self) -> str:
        token = self.credential.token("sb://host/q", 0.0)
        assert token is not None
        return policy(token.text)

    def settle(self) -> None:
        until(lambda: not self.credential._is_reading)


def test_i3_a_secret_that_was_replaced_is_used_by_the_second_token_that_is_asked_for() -> None:
    secret = Secret()
    secret.read = SharedKeyCredential("new", "key")
    assert secret.shown() == "old"
    assert secret.reads == 0, "it was read just now"
    secret.now = REREAD_SECONDS
    assert secret.shown() == "old"
    secret.settle()
    assert secret.shown() == "new"
    assert secret.reads == 1


def test_i3_a_secret_is_read_later_where_no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the secret would never be read again, and a replaced one never be used."""
    secret = Secret()
    secret.read = SharedKeyCredential("new", "key")
    secret.now = REREAD_SECONDS

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert secret.shown() == "old"
    assert secret.shown() == "old"
    secret.settle()
    assert secret.shown() == "new"


def test_i1_a_vault_that_does_not_answer_is_not_waited_for_and_asked_once() -> None:
    secret = Secret()
    secret.may_read.clear()
    secret.now = REREAD_SECONDS
    assert [secret.shown() for _ in range(3)] == ["old"] * 3
    secret.may_read.set()
    secret.settle()
    assert secret.reads == 1


@pytest.mark.parametrize("read", [None, SecretError("env:X", "it is not set"), ValueError("odd")])
def test_a_secret_that_cannot_be_read_now_is_the_last_one(read: Exception | None) -> None:
    secret = Secret()
    secret.read = read
    secret.now = REREAD_SECONDS
    assert secret.shown() == "old"
    secret.settle()
    assert secret.shown() == "old"


def test_i4_a_connection_that_others_use_takes_on_a_key_that_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes that are refused for the old key come back to it as long as one of them uses it: they would be stopped for ever."""
    monkeypatch.setattr(module, "REREAD_SECONDS", 0.0)
    with Peer("a", "b") as peer:

        def write(name: str, port: int = peer.port) -> None:
            text = f"Endpoint=sb://127.0.0.1:{port}/;SharedAccessKeyName={name};SharedAccessKey=a2V5;UseDevelopmentEmulator=true"
            monkeypatch.setenv("NAMESPACE", text)

        def shown() -> str:
            client.withdraw("a")
            client.authorize("a")
            with peer.lock:
                return policy(peer.requests[-1][2])

        write("old")
        with dial(SourceOptions.read({"connection": "env:NAMESPACE", "entity": "a"})) as client:
            assert shown() == "old"
            write("new")
            until(lambda: shown() == "new")
            write("elsewhere", peer.port + 1 if peer.port < 65535 else 1)
            reread = client.endpoint.credential
            assert isinstance(reread, RereadCredential)
            reread._reread()
            assert shown() == "new", "no namespace is shown the key of another one"


def test_an_iot_hub_is_shown_tokens_of_its_key_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(host: str, name: str) -> None:
        monkeypatch.setenv("IOT", f"HostName={host};SharedAccessKeyName={name};SharedAccessKey=a2V5")

    write("contoso.azure-devices.net", "old")
    found = hub_endpoint(read_hub({"connection": "env:IOT"})).credential
    assert isinstance(found, RereadCredential)
    for host, name, reported in (
        ("contoso.azure-devices.net", "new", "new"),
        ("fabrikam.azure-devices.net", "other", "new"),
    ):
        write(host, name)
        found._reread()
        token = found.token("", 0.0)
        assert token is not None
        assert policy(token.text) == reported
