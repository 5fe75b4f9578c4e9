from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isthmus.client.credential import blocking


class ForAsyncio:
    async def get_token(self, *scopes: str, **_: Any) -> str:
        return f"token for {scopes[0]}"


class ForThreads:
    def get_token(self, *_: str) -> str:
        return "token"


async def test_a_credential_for_asyncio_is_asked_from_a_thread() -> None:
    given: Any = blocking(("host", ForAsyncio()))
    assert given[0] == "host"
    assert await asyncio.to_thread(given[1].get_token, "scope") == "token for scope"


def test_other_endpoints_stay_as_they_are() -> None:
    credential = ForThreads()
    assert blocking(("host", credential)) == ("host", credential)
    assert blocking("env:NAME") == "env:NAME"


def test_without_a_loop_it_is_reported() -> None:
    with pytest.raises(RuntimeError):
        blocking(("host", ForAsyncio()))
