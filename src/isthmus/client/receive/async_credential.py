"""An asyncio credential for threads that ask for tokens.

What it is: `get_token` of a credential of `azure.identity.aio`, run in the application's event loop when a thread that owns an SDK's receiver
asks for a token. What it is not: a cache; the SDK asks again before a token expires.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from isthmus.client.endpoint import Endpoint, EndpointLike

__all__ = ["for_threads"]

_TOKEN_SECONDS = 30.0


class _ThreadedCredential:
    def __init__(self, credential: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._credential = credential
        self._loop = loop

    def get_token(self, *scopes: str, **options: Any) -> Any:
        """The token, as `TokenCredential.get_token` of azure-core returns it."""
        request = asyncio.run_coroutine_threadsafe(self._credential.get_token(*scopes, **options), self._loop)
        return request.result(_TOKEN_SECONDS)


def for_threads(value: EndpointLike, loop: asyncio.AbstractEventLoop) -> Endpoint:
    """An endpoint that calls its credential, if it is one for asyncio, in `loop`."""
    endpoint = Endpoint.of(value)

    def resolve() -> Any:
        connection = endpoint.resolve()
        if isinstance(connection, tuple) and inspect.iscoroutinefunction(getattr(connection[1], "get_token", None)):
            return connection[0], _ThreadedCredential(connection[1], loop)
        return connection

    return Endpoint(endpoint.given, endpoint.options, resolve)
