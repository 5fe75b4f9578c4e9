from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.client.endpoint import Endpoint, EndpointError, EndpointUnavailableError, _OnlyTls
from isthmus.client.failure import classify

STRING = "Endpoint=sb://orders.example.net/;SharedAccessKeyName=send;SharedAccessKey=c2VjcmV0"


def test_a_connection_string_makes_a_client_and_shows_no_key() -> None:
    endpoint = Endpoint.of(STRING, retry_total=0)
    assert endpoint.host == "orders.example.net"
    assert "c2VjcmV0" not in repr(endpoint)
    assert endpoint.client().fully_qualified_namespace == "orders.example.net"


def test_a_host_with_a_credential() -> None:
    class Credential:
        def get_token(self, *_: Any, **__: Any) -> Any:
            raise AssertionError

    endpoint = Endpoint.of(("orders.example.net", Credential()))
    assert endpoint.client().fully_qualified_namespace == "orders.example.net"


def test_the_emulators_connection_string_keeps_its_port() -> None:
    local = "Endpoint=sb://localhost:5673;SharedAccessKeyName=a;SharedAccessKey=Yg==;UseDevelopmentEmulator=true;"
    assert Endpoint.of(local).client().fully_qualified_namespace == "localhost:5673"


def test_references_are_read_again_for_each_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I1."""
    path = tmp_path / "endpoints.json"
    path.write_text(json.dumps({"primary": STRING}))
    endpoint = Endpoint.of(f"file:{path}#primary")
    assert endpoint.host == "orders.example.net"
    path.write_text(json.dumps({"primary": STRING.replace("orders.", "moved.")}))
    assert endpoint.client().fully_qualified_namespace == "moved.example.net"
    monkeypatch.setenv("SENDER_ENDPOINT", STRING)
    assert Endpoint.of("env:SENDER_ENDPOINT").host == "orders.example.net"


def test_a_document_is_fetched_again_and_the_last_one_counts_while_it_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """I1, I2."""
    answers: list[bytes | OSError] = [OSError("away"), b"moved nowhere", OSError("away")]

    def fetched(url: str, timeout: float) -> io.BytesIO:
        assert url == "https://config.example.net/endpoints"
        assert timeout > 0
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return io.BytesIO(answer)

    monkeypatch.setattr("urllib.request.build_opener", lambda *_: SimpleNamespace(open=fetched))
    endpoint = Endpoint.of("https://config.example.net/endpoints#primary")
    with pytest.raises(EndpointUnavailableError, match="away") as raised:
        endpoint.resolve()
    assert classify(raised.value).region_may_be_gone
    with pytest.raises(EndpointError, match="has no text"):
        endpoint.resolve()
    answers[:] = [json.dumps({"primary": STRING}).encode(), OSError("away")]
    assert endpoint.resolve() == STRING
    assert endpoint.resolve() == STRING


class Cut(io.BytesIO):
    """What `http.client` gives of an answer that ends before its length."""

    length = 7


def test_a_document_that_is_cut_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a key is refused by the namespace, and is no reason to look elsewhere."""
    answers = [io.BytesIO(STRING.encode()), Cut(STRING[:-7].encode())]
    monkeypatch.setattr("urllib.request.build_opener", lambda *_: SimpleNamespace(open=lambda *_, **__: answers.pop(0)))
    endpoint = Endpoint.of("https://config.example.net/endpoints")
    assert [endpoint.resolve(), endpoint.resolve()] == [STRING, STRING]


def test_a_document_that_has_moved_is_fetched_over_tls_alone() -> None:
    asked = urllib.request.Request("https://config.example.net/endpoints")
    handler = _OnlyTls()
    moved = handler.redirect_request(asked, None, 302, "Found", Message(), "https://other.example.net/endpoints")
    assert moved is not None
    with pytest.raises(urllib.error.URLError, match="no TLS"):
        handler.redirect_request(asked, None, 302, "Found", Message(), "http://other.example.net/endpoints")


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ("orders.example.net", "no connection string"),
        (("orders.example.net", "key"), "not (host, credential)"),
        (7, "is no endpoint"),
    ],
)
def test_what_is_no_endpoint_is_refused_at_once(given: Any, reported: str) -> None:
    with pytest.raises(EndpointError) as raised:
        Endpoint.of(given)
    assert reported in str(raised.value)


def test_an_error_shows_no_key(tmp_path: Path) -> None:
    """I3."""
    with pytest.raises(EndpointError) as raised:
        Endpoint.of("SharedAccessKeyName=send;SharedAccessKey=c2VjcmV0")
    assert "c2VjcmV0" not in str(raised.value)
    with pytest.raises(EndpointError, match="cannot be read"):
        Endpoint.of(f"file:{tmp_path}/none").client()
    with pytest.raises(EndpointError, match="not set"):
        Endpoint.of("env:NO_SUCH_NAME_HERE").client()


def test_i3_the_signature_of_a_document_s_address_is_shown_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection string may be in a blob that a shared access signature opens."""

    class Gone:
        def open(self, *_: object, **__: object) -> None:
            raise OSError("no route")

    monkeypatch.setattr(urllib.request, "build_opener", lambda *_: Gone())
    url = "https://user:hunter2@contoso.blob.core.windows.net/c/doc.json?sv=1&sig=hunter2#primary"
    endpoint = Endpoint.of(url)
    assert endpoint.given == "https://contoso.blob.core.windows.net/c/doc.json?…#primary"
    with pytest.raises(EndpointUnavailableError, match="contoso") as raised:
        endpoint.resolve()
    assert "hunter2" not in f"{raised.value} {endpoint!r}"
    endpoint._resolve.__self__._last = "Endpoint=sb://x"  # type: ignore[attr-defined]
    assert endpoint.resolve() == "Endpoint=sb://x"
    assert "contoso" in caplog.text
    assert "hunter2" not in caplog.text


def test_a_byte_order_mark_is_no_part_of_a_connection_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Editors of Windows write one."""
    marked = f"\ufeff{STRING}\r\n"
    monkeypatch.setenv("ORDERS", marked)
    (tmp_path / "whole").write_text(marked)
    (tmp_path / "lines").write_text(f"\ufeffORDERS={STRING}\r\n")
    monkeypatch.setattr(
        "urllib.request.build_opener", lambda *_: SimpleNamespace(open=lambda *_, **__: io.BytesIO(marked.encode()))
    )
    for given in ("env:ORDERS", f"file:{tmp_path}/whole", f"file:{tmp_path}/lines#ORDERS", "https://example.net/doc"):
        assert Endpoint.of(given).resolve() == STRING
