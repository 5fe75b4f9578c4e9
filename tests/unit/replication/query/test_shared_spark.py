"""The control port of a run is opened at the address that the federation file names."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.bridge.host.control.client import dial_control
from isthmus.replication.query import shared_spark
from isthmus.replication.query.shared_spark import SharedSettings, open_shared_run
from isthmus.topology.spark import ControlAddress


def test_the_control_port_is_reported_by_the_advertised_host(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = []

    class Server(shared_spark.ControlServer):
        def __init__(self, token: str, **settings: Any) -> None:
            super().__init__(token, **settings)
            servers.append((self, token))

    monkeypatch.setattr(shared_spark, "ControlServer", Server)
    settings = SharedSettings("unused", control=ControlAddress("0.0.0.0", 0, "localhost"))
    run = open_shared_run(None, settings, lambda key: 0.0)  # type: ignore[arg-type] - no query is started
    try:
        ((server, token),) = servers
        assert server.address.startswith("localhost:")
        dial_control(server.address, token, 5.0).close()
    finally:
        run.close()
