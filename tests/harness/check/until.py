"""Waits for what is not reported: a condition is polled until it holds, within a limit that only a fault reaches.

Unit tests use this in place of sleeps of their own. What must not happen is not waited for: a test counts the passes of the loop that is tested.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

__all__ = ["passes", "until", "until_async"]

LIMIT_SECONDS = 60.0
_POLL_SECONDS = 0.002


def until(
    condition: Callable[[], object], text: Callable[[], object] = lambda: "", seconds: float = LIMIT_SECONDS
) -> None:
    """Blocks until a condition holds; fails after `seconds` with what `text` says."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"it did not happen within {seconds:g} s {text()}".strip()
        time.sleep(_POLL_SECONDS)


async def until_async(
    condition: Callable[[], object], text: Callable[[], object] = lambda: "", seconds: float = LIMIT_SECONDS
) -> None:
    """As `until`, while the loop runs."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, f"it did not happen within {seconds:g} s {text()}".strip()
        await asyncio.sleep(_POLL_SECONDS)


async def passes(count: int, each: Callable[[], object] = lambda: None) -> None:
    """So many passes of the loop, each long enough for its sockets and threads to be served; `each` is called before every one."""
    for _ in range(count):
        each()
        await asyncio.sleep(_POLL_SECONDS)
