"""By which address a listener accepts a requester."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from isthmus.broker.relay.request import host_of, origin_of


@pytest.mark.parametrize(
    ("headers", "origin"),
    [
        ({}, "ws://relay:5672"),
        ({"X-Forwarded-Proto": "https"}, "wss://relay:5672"),
        (
            {"X-Forwarded-Proto": "https, http", "X-Forwarded-Host": "relay.example.org, inner"},
            "wss://relay.example.org",
        ),
        ({"X-Forwarded-Proto": "http"}, "ws://relay:5672"),
        ({"Forwarded": "for=10.0.0.1;proto=https;host=relay.example.org:8443"}, "wss://relay.example.org:8443"),
        ({"Forwarded": 'proto=https;host="[2001:db8::1]:443"'}, "wss://[2001:db8::1]:443"),
        ({"X-Forwarded-Host": "a/b?c"}, "ws://relay:5672"),
        ({"X-Forwarded-Host": "relay_1:80"}, "ws://relay_1:80"),
        ({"Host": "relay_1:5672"}, "ws://relay_1:5672"),
        ({"Host": "caf\xe9"}, "ws://localhost"),
        ({"Host": "a/b?c"}, "ws://localhost"),
    ],
)
def test_behind_a_proxy_that_ends_tls_it_is_the_proxys(headers: dict[str, str], origin: str) -> None:
    http = make_mocked_request("GET", "/$hc/orders", headers={"Host": "relay:5672", **headers})
    assert origin_of(http) == origin
    assert host_of(http) == origin.partition("://")[2]
