"""Credentials for asyncio, for connections that live in threads.

What it is: an adapter by which a credential of `azure.identity.aio` is asked in the event loop that it belongs to. What it is
not: a cache; the SDK and the credential keep tokens.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from isthmus.client.endpoint import EndpointLike

__all__ = ["blocking"]

_TOKEN_SECONDS = 30.0


def blocking(endpoint: EndpointLike) -> EndpointLike:
    """The endpoint, with a credential that may be asked from any thread.

    Raises:
        RuntimeError: the credential is one for asyncio, and no loop runs.
    """
    if isinstance(endpoint, tuple) and len(endpoint) == 2:
        host, credential = endpoint
        if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
            return host, _Blocking(credential, asyncio.get_running_loop())
    return endpoint


class _Blocking:
    """A credential for asyncio, as the SDK's clients for threads take it."""

    def __init__(self, credential: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._credential = credential
        self._loop = loop

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """A token; waits for the loop."""
        asked = asyncio.run_coroutine_threadsafe(self._credential.get_token(*scopes, **options), self._loop)
        return asked.result(_TOKEN_SECONDS)
