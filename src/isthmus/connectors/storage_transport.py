"""How the SDKs of a storage account send their requests.

What it is: a transport with one connection for each thread, its time-outs, and the proxy and the certificate authorities from the
environment. What it is not: a client.
Specification: azure-core documentation, `RequestsTransport`: the time-outs of a client are ignored where it is given a transport.

Invariants:
    I1. No proxy is used for an emulator on this machine.
    I2. An idle connection is kept open, or its loss is detected (`keep_alive`).
    I3. No password of `.netrc` replaces the client's credentials.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import requests
from azure.core.pipeline.transport import RequestsTransport
from requests.adapters import HTTPAdapter
from requests.utils import get_environ_proxies
from urllib3.connection import HTTPConnection

from isthmus.connectors.keep_alive import KEEP_ALIVE
from isthmus.connectors.servicebus.plain_host import is_loopback

__all__ = ["CONNECT_SECONDS", "storage_transport"]

CONNECT_SECONDS = 10.0


def storage_transport(endpoint: str, timeout_seconds: float, connections: int) -> RequestsTransport:
    """A transport for the clients of one account.

    Proxies are looked up once: a look-up for each request takes as long as the rest of it.

    Args:
        endpoint: the account's address.
        timeout_seconds: how long reading may wait for bytes of an answer.
        connections: how many connections are kept.
    """
    session = requests.Session()
    if not is_loopback(urlsplit(endpoint).hostname or ""):
        session.proxies.update(get_environ_proxies(endpoint))
    session.trust_env = False
    adapter = _KeptAliveAdapter(pool_connections=1, pool_maxsize=connections)
    session.mount("https://", adapter)
    session.mount("http://", adapter)
    return RequestsTransport(
        session=session,
        session_owner=True,
        connection_timeout=min(timeout_seconds, CONNECT_SECONDS),
        read_timeout=timeout_seconds,
        connection_verify=os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True,
    )


class _KeptAliveAdapter(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(
            *arguments, **options, socket_options=[*HTTPConnection.default_socket_options, *KEEP_ALIVE]
        )
