"""The list of seen messages in memory, and the reference behaviour of all stores.

What it is: `Window`, pure, with the time as an argument; `MemorySeen`, the same with the interface of a store, for tests and for receivers that may
handle a message again after a restart. What it is not: durable.

Invariants: those of `isthmus.client.seen.store`, except durability; tests/unit/client/seen compares the other stores with it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

from isthmus.client.seen.store import Bounds, Keys, Swept, Verdict
from isthmus.clock import Clock, SystemClock

__all__ = ["MemorySeen", "Window"]


class Window:
    """Handled keys and claims; every method takes the wall time in milliseconds.

    Args:
        bounds: bounds of the list.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._handled: OrderedDict[bytes, int] = OrderedDict()
        self._claims: dict[bytes, str] = {}
        self._until: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._handled)

    def claim(self, messages: Sequence[Keys], owner: str, now_ms: int) -> list[Verdict]:
        """See `SeenStore.claim`."""
        self.renew(owner, now_ms)
        return [self._claim(keys, owner, now_ms) for keys in messages]

    def handle(self, messages: Sequence[Keys], now_ms: int) -> list[bool]:
        """See `SeenStore.handle`."""
        fresh = []
        for keys in messages:
            fresh.append(not any(self._is_handled(key, now_ms) for key in keys))
            self._mark(keys, now_ms)
        return fresh

    def release(self, messages: Sequence[Keys], owner: str) -> None:
        """See `SeenStore.release`."""
        for keys in messages:
            for key in keys:
                if self._claims.get(key) == owner:
                    del self._claims[key]

    def renew(self, owner: str, now_ms: int) -> None:
        """See `SeenStore.renew`."""
        self._until[owner] = now_ms + self.bounds.lease_ms

    def retire(self, owner: str) -> None:
        """See `SeenStore.retire`."""
        self._until.pop(owner, None)
        self._claims = {key: each for key, each in self._claims.items() if each != owner}

    def sweep(self, now_ms: int) -> Swept:
        """See `SeenStore.sweep`."""
        by_age = by_count = 0
        while self._handled and next(iter(self._handled.values())) < now_ms - self.bounds.window_ms:
            self._handled.popitem(last=False)
            by_age += 1
        while len(self._handled) > self.bounds.max_count:
            self._handled.popitem(last=False)
            by_count += 1
        expired = {owner for owner, until in self._until.items() if until < now_ms}
        for owner in expired:
            self.retire(owner)
        return Swept(by_age, by_count)

    def _claim(self, keys: Keys, owner: str, now_ms: int) -> Verdict:
        if any(self._is_handled(key, now_ms) for key in keys):
            self._mark(keys, now_ms)
            return Verdict.HANDLED
        owners = {each for key in keys if (each := self._claims.get(key)) and self._until.get(each, 0) >= now_ms}
        if owners - {owner}:
            return Verdict.OTHERS
        for key in keys:
            self._claims[key] = owner
        return Verdict.MINE if owners else Verdict.NEW

    def _is_handled(self, key: bytes, now_ms: int) -> bool:
        at = self._handled.get(key)
        return at is not None and at >= now_ms - self.bounds.window_ms

    def _mark(self, keys: Keys, now_ms: int) -> None:
        for key in keys:
            self._claims.pop(key, None)
            if not self._is_handled(key, now_ms):
                self._handled.pop(key, None)
                self._handled[key] = now_ms


class MemorySeen:
    """A list of seen messages that ends with the process.

    Args:
        bounds: bounds of the list.
        clock: source of the time.
    """

    def __init__(self, bounds: Bounds | None = None, clock: Clock | None = None) -> None:
        self.bounds = bounds or Bounds()
        self._clock = clock or SystemClock()
        self._window = Window(self.bounds)
        self._lock = threading.Lock()

    def claim(self, messages: Sequence[Keys], owner: str) -> list[Verdict]:
        with self._lock:
            return self._window.claim(messages, owner, self._clock.wall_ms())

    def handle(self, messages: Sequence[Keys], owner: str) -> list[bool]:
        with self._lock:
            return self._window.handle(messages, self._clock.wall_ms())

    def release(self, messages: Sequence[Keys], owner: str) -> None:
        with self._lock:
            self._window.release(messages, owner)

    def renew(self, owner: str) -> None:
        with self._lock:
            self._window.renew(owner, self._clock.wall_ms())

    def retire(self, owner: str) -> None:
        with self._lock:
            self._window.retire(owner)

    def sweep(self) -> Swept:
        with self._lock:
            return self._window.sweep(self._clock.wall_ms())

    def count(self) -> int:
        with self._lock:
            return len(self._window)

    def close(self) -> None:
        pass
