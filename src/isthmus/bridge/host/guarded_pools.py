"""The pools of one process by kind; a fault of one does not affect another.

What it is: a loop's calls to all its pools, each with an exception handler, and the faulty pools. What it is not: the handling of their
ends: the loop fails these, and opens them again.

Invariants:
    I1. An exception of a pool is reported once, by `take_faults`; that pool is not called again, and the next end of its kind gets a new one.
    I2. A faulty pool is closed only once its ends are, and without blocking the loop: where no thread can be started, it is tried again
        until the end.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from isthmus.bridge.port import Pool

__all__ = ["GuardedPools"]

_log = logging.getLogger(__name__)
_CLOSE_AGAIN_SECONDS = 1.0
_P = TypeVar("_P", bound=Pool)
_T = TypeVar("_T")


class GuardedPools(Generic[_P]):
    """The pools.

    Args:
        make: makes the pool of a kind; its exceptions are passed to the caller.
    """

    def __init__(self, make: Callable[[str], _P]) -> None:
        self._make = make
        self._pools: dict[str, _P] = {}
        self._faulty: list[_P] = []
        self._unclosed: list[_P] = []  # faulty, and no thread could be started
        self._close_at = math.inf
        self._faults: dict[str, Exception] = {}

    def get(self, kind: str) -> _P:
        """The pool of a kind; made now where there is none."""
        if kind not in self._pools:
            self._pools[kind] = self._make(kind)
        return self._pools[kind]

    # ---- the loop

    def descriptors(self) -> list[tuple[int, int]]:
        """What to poll."""
        nothing: Sequence[tuple[int, int]] = ()
        return [each for kind, pool in self._all() for each in self._guarded(kind, pool.descriptors, nothing)]

    def deadline(self, now: float) -> float:
        """When `service` is due even if no descriptor is ready."""
        due = [self._guarded(kind, partial(pool.deadline, now), now) for kind, pool in self._all()]
        return now if self._faults else min([self._close_at, *due])

    def service(self, ready: Mapping[int, int], now: float) -> list[int]:
        """Reads and writes; returns the keys of ends with new events."""
        if now >= self._close_at:
            self._close_in_threads(now)
        nothing: Sequence[int] = ()
        return [
            key for kind, pool in self._all() for key in self._guarded(kind, partial(pool.service, ready, now), nothing)
        ]

    def flush(self) -> None:
        """Writes queued bytes."""
        for kind, pool in self._all():
            self._guarded(kind, pool.flush, None)

    # ---- faults

    def take_faults(self) -> dict[str, Exception]:
        """By kind, the exceptions of pools since the last call: the ends of that kind can no longer be used."""
        faults, self._faults = self._faults, {}
        return faults

    def close_faulty(self) -> None:
        """Closes the faulty pools in a thread: a pool may wait for answers to its ends."""
        self._unclosed += self._faulty
        self._faulty.clear()
        self._close_in_threads(time.monotonic())

    def _close_in_threads(self, now: float) -> None:
        self._close_at = math.inf
        while self._unclosed:
            thread = threading.Thread(
                target=_close, args=(self._unclosed[-1],), name="isthmus-faulty-pool", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the limit of threads is reached
                self._close_at = now + _CLOSE_AGAIN_SECONDS
                return
            self._unclosed.pop()

    def close(self, *, in_good_order: bool = True) -> None:
        """Closes everything; after an error nothing more is written."""
        self.close_faulty()
        for pool in self._unclosed:
            _close(pool)
        self._unclosed.clear()
        for pool in self._pools.values():
            if in_good_order:
                with contextlib.suppress(Exception):  # it ends in any case
                    pool.flush()
            _close(pool)

    def _all(self) -> list[tuple[str, _P]]:
        return list(self._pools.items())

    def _guarded(self, kind: str, call: Callable[[], _T], otherwise: _T) -> _T:
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - a connector's fault; the ends of other kinds go on
            _log.exception("a fault at the connections of kind '%s', which are given up", kind)
            self._faults.setdefault(kind, error)
            if kind in self._pools:
                self._faulty.append(self._pools.pop(kind))
            return otherwise


def _close(pool: Pool) -> None:
    try:
        pool.close()
    except Exception as error:  # noqa: BLE001 - it ends anyway, and the others have to be closed all the same
        _log.warning("closing connections: %s: %s", type(error).__name__, error)
