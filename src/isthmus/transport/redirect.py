"""WebSockets that lead nowhere else than they were asked to.

What it is: an answer that names another address, as the refusal that it is. aiohttp follows it by itself, also from TLS to none, with
what the first request showed, and what is sent then goes to whom nobody named. What it is not: for requests that are no handshake; these have
`allow_redirects`.
Specification: RFC 6455, 4.1 (a redirect may be followed); aiohttp documentation, "Tracing".
"""

from __future__ import annotations

from types import SimpleNamespace

import aiohttp

__all__ = ["unredirected"]


def unredirected() -> aiohttp.TraceConfig:
    """What a session traces so that none of its handshakes is redirected; it raises `WSServerHandshakeError`."""
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
