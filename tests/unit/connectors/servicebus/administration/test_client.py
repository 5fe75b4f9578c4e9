"""The conversion of the administration client's errors."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest
import requests
from azure.core.exceptions import AzureError, ClientAuthenticationError, DecodeError
from azure.core.pipeline.transport import HttpRequest, RequestsTransport

from isthmus.connectors.administration import AdministrationError, NamespaceUnreachableError
from isthmus.connectors.servicebus.administration.client import administration_errors, client_of_string
from isthmus.connectors.servicebus.connection_string import ConnectionString


def test_an_answer_without_what_was_asked_for_is_an_error_of_the_namespace() -> None:
    """The client raises it for an empty body with status 200, and for a queue where it asks for a topic."""
    with pytest.raises(NamespaceUnreachableError), administration_errors("ewr"):
        raise AttributeError("'NoneType' object has no attribute 'content'")


def test_an_answer_that_breaks_off_is_reported_as_one_that_cannot_be_read() -> None:
    with (
        pytest.raises(NamespaceUnreachableError, match=r"ewr: gave an answer that cannot be read \(XML is invalid\)"),
        administration_errors("ewr"),
    ):
        raise DecodeError("XML is invalid")


def test_a_token_service_that_is_unavailable_is_no_refusal_of_the_namespace() -> None:
    with (
        pytest.raises(
            NamespaceUnreachableError, match=r"ewr: was not called: no token for the identity \(it is away\)"
        ),
        administration_errors("ewr"),
    ):
        raise ClientAuthenticationError("it is away")
    refused = ClientAuthenticationError("no right")
    refused.status_code = 401
    with (
        pytest.raises(AdministrationError, match="refused the key or identity") as raised,
        administration_errors("ewr"),
    ):
        raise refused
    assert not raised.value.retryable


@pytest.mark.parametrize(
    ("kind", "body", "reported"),
    [
        ("text/html", b"<html><head><title>Sign\n in</title></head></html>", "a page of HTML with the title 'Sign in'"),
        ("application/xml", b"<html xmlns='http://www.w3.org/1999/xhtml'><body/></html>", "a page of HTML"),
        ("application/xml", b"<queues/>", "an answer of type 'application/xml'"),
        ("application/json", b"{}", "an answer of type 'application/json'"),
        ("", b"", "an empty answer"),
    ],
)
def test_what_is_no_namespace_is_reported_and_has_neither_an_empty_list_nor_a_lack_of_entities(
    monkeypatch: pytest.MonkeyPatch, kind: str, body: bytes, reported: str
) -> None:
    def send(self: RequestsTransport, request: object, **options: object) -> SimpleNamespace:
        return SimpleNamespace(headers={"Content-Type": kind}, status_code=200, body=lambda: body)

    monkeypatch.setattr(RequestsTransport, "send", send)
    text = "Endpoint=sb://localhost:1;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"
    client = client_of_string(ConnectionString.parse(text), retries=0).client
    for ask in (
        lambda: list(client.list_queues()),
        lambda: client.get_queue("q"),
        lambda: client.create_queue("q"),
        client.get_namespace_properties,
    ):
        with pytest.raises(NamespaceUnreachableError, match=reported), administration_errors("ewr"):
            ask()


TEXT = "Endpoint=sb://localhost:1;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;UseDevelopmentEmulator=true"


def test_i3_no_request_shows_a_token_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's own policy uses an expired one for a minute: each hour the key of a client was reported as wrong."""
    begun = time.time()
    now = begun
    ends: list[float] = []

    def send(self: RequestsTransport, request: HttpRequest, **options: object) -> SimpleNamespace:
        reported = parse_qs(request.headers["Authorization"].partition(" ")[2])
        ends.append(float(reported["se"][0]) - now)
        raise AzureError("no answer")

    monkeypatch.setattr(RequestsTransport, "send", send)
    monkeypatch.setattr(time, "time", lambda: now)
    client = client_of_string(ConnectionString.parse(TEXT), retries=0).client
    for after in range(0, 7300, 10):
        now = begun + after
        with pytest.raises(AzureError):
            client.get_queue("q")
    assert 30 < min(ends) < 100
    assert max(ends) > 3000, "it is not made for each request"


def test_a_ready_signature_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK shows it as the token of an identity, which no namespace accepts: the key was reported as wrong."""
    shown: list[str] = []

    def send(self: RequestsTransport, request: HttpRequest, **options: object) -> SimpleNamespace:
        shown.append(request.headers["Authorization"])
        raise AzureError("no answer")

    monkeypatch.setattr(RequestsTransport, "send", send)
    signature = "SharedAccessSignature sr=a&sig=b&se=4102444800&skn=k"
    text = f"Endpoint=sb://localhost:1;SharedAccessSignature={signature}"
    with pytest.raises(AzureError):
        client_of_string(ConnectionString.parse(text), retries=0).client.get_queue("q")
    assert shown == [signature]


def test_no_password_of_netrc_replaces_the_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("default login anonymous password guest\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    shown: list[str] = []

    def send(self: requests.Session, request: requests.PreparedRequest, **options: object) -> None:
        shown.append(str(request.headers["Authorization"]))
        raise requests.ConnectionError("no answer")

    monkeypatch.setattr(requests.Session, "send", send)
    text = "Endpoint=sb://localhost:1;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0"
    with pytest.raises(AzureError):
        client_of_string(ConnectionString.parse(text), retries=0).client.get_queue("q")
    assert [each.partition(" ")[0] for each in shown] == ["SharedAccessSignature"]
