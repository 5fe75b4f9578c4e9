"""Clients of queues, at a service that does not answer."""

from __future__ import annotations

import socket
import time

import pytest
from azure.core.exceptions import ServiceResponseError

from isthmus.connectors.queuestorage.client import open_queue
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
