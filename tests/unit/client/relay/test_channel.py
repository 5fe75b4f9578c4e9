"""What a listener makes of an address that a relay tells it."""

from __future__ import annotations

import pytest

from isthmus.client.relay.address import RelayAddress
from isthmus.client.relay.channel import _secured

KEY = "SharedAccessKeyName=k;SharedAccessKey=v"


@pytest.mark.parametrize(
    ("more", "told", "wanted"),
    [
        ("", "ws://relay.example.org/$hc/orders?a=1", "wss://relay.example.org/$hc/orders?a=1"),
        ("", "wss://relay.example.org/$hc/orders", "wss://relay.example.org/$hc/orders"),
        (";UseDevelopmentEmulator=true", "ws://relay.example.org/$hc/orders", "ws://relay.example.org/$hc/orders"),
    ],
)
def test_a_listener_that_came_by_tls_never_goes_on_without(more: str, told: str, wanted: str) -> None:
    place = RelayAddress(f"Endpoint=sb://relay.example.org/;{KEY}{more}", "orders").resolve()
    assert _secured(told, place) == wanted
