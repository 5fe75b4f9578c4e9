"""Clients of queues, at a service that does not answer."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceResponseError
from azure.storage.queue import QueueClient

from isthmus.bridge.refusal import RefusalKind
from isthmus.connectors.administration import AdministrationError
from isthmus.connectors.queuestorage.administration import QueueAdministration
from isthmus.connectors.queuestorage.client import open_queue, refusal_of, text_of
from isthmus.connectors.queuestorage.option import read_account


def test_i3_a_request_without_an_answer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK waits 300 s by itself, longer than what was read is kept from others."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a"
        monkeypatch.setenv("ACCOUNT", f"AccountName=a;AccountKey=a2V5;QueueEndpoint={url};")
        with open_queue(read_account({"connection": "env:ACCOUNT"}), "orders", 0.1, 1) as client:
            begun = time.monotonic()
            with pytest.raises(ServiceResponseError):
                client.get_queue_properties()
    assert time.monotonic() < begun + 30


def test_who_issues_tokens_may_be_away_for_a_while() -> None:
    """azure-identity reports this by the error of a wrong key, without the answer of a service."""
    assert refusal_of("q", ClientAuthenticationError("Authentication failed: timed out")).kind is RefusalKind.UNKNOWN
    refused = ClientAuthenticationError("no", response=SimpleNamespace(status_code=403, reason="Forbidden"))  # type: ignore[arg-type]
    assert refusal_of("q", refused).kind is RefusalKind.FATAL
    text = text_of("q", ClientAuthenticationError("Authentication failed: timed out"))
    assert text == "queue 'q': no token for the identity: Authentication failed: timed out"


@pytest.mark.parametrize(("status", "retryable"), [(None, True), (429, True), (503, True), (403, False), (409, False)])
def test_an_account_that_cannot_answer_now_is_no_fault_of_the_file(
    status: int | None, retryable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run does not begin with a fault, and waits for what may pass."""
    monkeypatch.setenv("ACCOUNT", "AccountName=a;AccountKey=a2V5;QueueEndpoint=http://127.0.0.1:1/a;")

    def ask(*_: object, **__: object) -> None:
        error = ClientAuthenticationError("no") if status in (None, 403) else HttpResponseError("no")
        error.status_code = status
        raise error

    monkeypatch.setattr(QueueClient, "get_queue_properties", ask)
    with pytest.raises(AdministrationError) as raised:
        QueueAdministration(read_account({"connection": "env:ACCOUNT"})).count("orders")
    assert raised.value.retryable is retryable
