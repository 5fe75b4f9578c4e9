"""Connections without TLS are allowed only to this machine, unless a host is named."""

from __future__ import annotations

import logging
import pickle

import pytest

from isthmus.connectors.servicebus.connect import endpoint_of, endpoint_of_string
from isthmus.connectors.servicebus.connection_string import ConnectionString
from isthmus.connectors.servicebus.option import SourceOptions
from isthmus.connectors.servicebus.plain_host import ALLOWED_VARIABLE, PlainConnectionError
from isthmus.operations.server.target import find_target

KEY = "cGxhbnRlZA=="


def text(host: str, emulator: str = "true") -> str:
    return f"Endpoint=sb://{host}/;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator={emulator}"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:5672", "127.0.0.1", "127.8.9.1:1", "[::1]:5672"])
def test_this_machine_needs_no_tls(host: str, caplog: pytest.LogCaptureFixture) -> None:
    assert not endpoint_of_string(ConnectionString.parse(text(host))).tls
    assert not caplog.records


@pytest.mark.parametrize(
    "host", ["ewr.example", "10.0.0.1:5672", "[fe80::1]:5672", "localhost.example", "127.0.0.1.nip.io"]
)
def test_i1_another_machine_is_refused_and_warned_of(
    host: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parsed = ConnectionString.parse(text(host))
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert KEY not in caplog.text
    monkeypatch.setenv("PLAIN", text(host))
    for connect in (
        lambda: endpoint_of_string(parsed),
        lambda: endpoint_of_string(parsed, websocket=True),
        lambda: endpoint_of(SourceOptions.read({"connection": "env:PLAIN", "entity": "q"})),
        lambda: find_target("env:PLAIN"),
    ):
        with pytest.raises(PlainConnectionError, match=ALLOWED_VARIABLE) as refused:
            connect()
        assert KEY not in str(refused.value)
        assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert endpoint_of_string(ConnectionString.parse(text(host, "false"))).tls
    monkeypatch.setenv(ALLOWED_VARIABLE, "other, " + parsed.host.upper())
    assert not endpoint_of_string(parsed).tls
