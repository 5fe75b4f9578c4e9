"""The proxy that the environment names for an address.

What it is: `HTTPS_PROXY`, `HTTP_PROXY` (`WSS_PROXY`, `WS_PROXY`) and `NO_PROXY`, as other programs read them; this machine itself is always
reached directly. What it is not: aiohttp's own reading of the environment (`trust_env`), with which it also sends what `.netrc` has for a host,
or for all.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

__all__ = ["proxy_of"]


def proxy_of(url: str) -> str | None:
    """The proxy by which to reach an address; None: directly."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme) or None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
