"""Which of two threads runs the turns of a lease.

What it is: the hand-over between the lease's own thread and the reader's. Where messages come one by one, a second thread
costs more than all that is done for them: it is woken for each, wakes the reader's in its turn, and both want the
interpreter. So the reader's thread, which would wait for a block, runs the turns itself meanwhile; the lease's own runs
them while the reader is away in Spark for longer than `AWAY_SECONDS`, while blocks are large, and at begin and end. What it
is not: what a turn does (`lease`).

Invariants:
    I1. One thread at a time runs a turn.
    I2. Turns go on whatever the reader's thread does: it may be away, or never come back.
    I3. What a turn raises is raised by `run`, whichever thread ran it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

__all__ = ["AWAY_SECONDS", "Drive"]

# Heartbeats, settlements and renewals wait for twice as long at most when Spark takes no rows.
AWAY_SECONDS = 0.1


class Drive:
    """The turns of one lease.

    Args:
        turn: runs one, and waits in it for something to happen, until the given time (monotonic seconds) at most;
            False: there are no more.
        poke: ends the wait of a turn under way; called from the other thread.
    """

    def __init__(self, turn: Callable[[float], bool], poke: Callable[[], None]) -> None:
        self._turn = turn
        self._poke = poke
        self._baton = threading.Lock()
        self._returned = threading.Event()
        self._lent = False
        self._is_reader_here = False
        self._left_at = 0.0
        self._over = False
        self._error: Exception | None = None

    # ---- the lease's thread

    def run(self) -> None:
        """Runs all turns that nobody else runs, until there are no more."""
        while self._goes_on():
            if not self._reader_drives():  # else it has the baton, and passing that on to look is what costs
                with self._baton:
                    while self._goes_on() and not self._reader_drives():
                        self._step(math.inf)
            if self._goes_on():
                self._returned.wait(AWAY_SECONDS)
                self._returned.clear()
        if self._error is not None:
            raise self._error

    def _goes_on(self) -> bool:
        return not self._over

    def _reader_drives(self) -> bool:
        return self._lent and (self._is_reader_here or time.monotonic() - self._left_at < AWAY_SECONDS)

    def _step(self, until: float) -> None:
        try:
            self._over = not self._turn(until)
        except Exception as error:  # noqa: BLE001 - whatever it is, `run` raises it (I3)
            self._error = error
            self._over = True

    # ---- the reader's thread

    def lend(self, lent: bool) -> None:
        """From now on the reader's thread runs turns while it waits, or does not."""
        if lent != self._lent:
            self._lent = lent
            self._returned.set()

    def help(self, has_come: Callable[[], bool], until: float) -> None:
        """Runs turns in the calling thread until what it waits for has come, the time is over, or there are no more.

        Returns at once where the turns are not lent.
        """
        if not self._lent or not self._goes_on():
            return
        self._is_reader_here = True
        if not self._baton.acquire(blocking=False):
            self._poke()
            self._baton.acquire()
        try:
            while self._goes_on() and not has_come() and time.monotonic() < until:
                self._step(until)
        finally:
            self._left_at = time.monotonic()
            self._is_reader_here = False
            self._baton.release()
        if not self._goes_on():
            self._returned.set()
