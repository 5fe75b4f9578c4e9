"""WebSocket handshakes that follow no redirect.

What it is: a redirect as an error. aiohttp follows it by itself, also from TLS to plain TCP, and sends the first request's
credential and everything after it to a host that nobody configured. What it is not: for requests other than handshakes;
these have `allow_redirects`.
Specification: RFC 6455, 4.1 (a redirect may be followed); aiohttp documentation, "Tracing".
"""

from __future__ import annotations

from types import SimpleNamespace

import aiohttp

__all__ = ["unredirected"]


def unredirected() -> aiohttp.TraceConfig:
    """The trace configuration of a session that refuses redirects; a redirect raises `WSServerHandshakeError`."""
    config = aiohttp.TraceConfig()
    config.on_request_redirect.append(_refuse)
    return config


async def _refuse(
    session: aiohttp.ClientSession, context: SimpleNamespace, redirect: aiohttp.TraceRequestRedirectParams
) -> None:
    answer = redirect.response
    answer.close()
    raise aiohttp.WSServerHandshakeError(
        answer.request_info, answer.history, status=answer.status, message="redirected", headers=answer.headers
    )
