"""isthmus.connectors.servicebus.administration.transport."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from azure.core.pipeline.transport import HttpRequest, RequestsTransport

from isthmus.connectors.servicebus.administration.transport import AdministrationTransport


@pytest.mark.parametrize(("plain", "url"), [(True, "http://127.0.0.1:5710/q"), (False, "https://127.0.0.1:5710/q")])
def test_i1_a_request_goes_without_tls_only_where_that_is_asked_for(
    plain: bool, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def send(self: RequestsTransport, request: HttpRequest, **options: object) -> SimpleNamespace:
        sent.append(request.url)
        return SimpleNamespace(headers={}, status_code=404, body=bytes)

    monkeypatch.setattr(RequestsTransport, "send", send)
    transport = AdministrationTransport(plain=plain)
    for _ in range(2):  # a retry sends the same request again
        transport.send(HttpRequest("GET", "https://127.0.0.1:5710/q"))
    assert sent == [url, url]
