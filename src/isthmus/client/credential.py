"""Asyncio credentials for connections that are served by threads.

What it is: an adapter that calls a credential of `azure.identity.aio` in the event loop that the credential belongs to. What it
is not: a cache; the SDK and the credential cache tokens.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from isthmus.client.endpoint import EndpointLike

__all__ = ["blocking"]

_TOKEN_SECONDS = 30.0


def blocking(endpoint: EndpointLike) -> EndpointLike:
    """The endpoint, with a credential that any thread may call.

    Raises:
        RuntimeError: the credential is one for asyncio, and no loop runs.
    """
    if isinstance(endpoint, tuple) and len(endpoint) == 2:
        host, credential = endpoint
        if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
            return host, _Blocking(credential, asyncio.get_running_loop())
    return endpoint


class _Blocking:
    """A credential for asyncio, with the interface that the SDK's blocking clients expect."""

    def __init__(self, credential: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._credential = credential
        self._loop = loop

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """Returns a token; blocks until the event loop has it."""
        request = asyncio.run_coroutine_threadsafe(self._credential.get_token(*scopes, **options), self._loop)
        return request.result(_TOKEN_SECONDS)
