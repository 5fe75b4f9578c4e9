"""The durable list of seen messages, by which a receiver handles each message once.

What it is: the interface and its three stores: a file (`SqliteSeen`), Redis (`RedisSeen`), memory (`MemorySeen`). An application may
provide a store of its own with the same methods.
"""

from __future__ import annotations

import os

from isthmus.client.seen.redis import RedisSeen
from isthmus.client.seen.sqlite import SqliteSeen
from isthmus.client.seen.store import Bounds, Keys, SeenStore, SeenStoreError, Swept, Verdict
from isthmus.client.seen.window import MemorySeen

__all__ = [
    "Bounds",
    "Keys",
    "MemorySeen",
    "RedisSeen",
    "SeenStore",
    "SeenStoreError",
    "SqliteSeen",
    "Swept",
    "Verdict",
    "is_opened_here",
    "open_seen",
]

_REDIS = ("redis://", "rediss://", "unix://")


def open_seen(seen: str | os.PathLike[str] | SeenStore | None, name: str, bounds: Bounds | None = None) -> SeenStore:
    """The store that the argument `seen` describes.

    Args:
        seen: a path, `redis://…`, a store, or None for memory, which is lost at the end of the process.
        name: the purpose of the list; the name of the list in Redis.
        bounds: bounds of a list that is opened here.

    Raises:
        SeenStoreError: the list cannot be opened.
        MissingExtraError: the list is in Redis, and redis-py is not installed.
    """
    if seen is None:
        return MemorySeen(bounds)
    if isinstance(seen, (str, os.PathLike)):
        text = os.fspath(seen)
        return RedisSeen(text, name, bounds) if text.startswith(_REDIS) else SqliteSeen(text, bounds)
    return seen


def is_opened_here(seen: str | os.PathLike[str] | SeenStore | None) -> bool:
    """Whether `open_seen` creates the store from this argument; the application closes the stores that it created itself."""
    return seen is None or isinstance(seen, (str, os.PathLike))
