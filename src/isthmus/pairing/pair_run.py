"""Keeps a pair in step and its alias up to date, until it is stopped.

What it is: two loops: that of the alias, which only reads the state file, and that of the metadata, in a thread of its own.
What it is not: a fail-over by itself: an operator, or a script, decides that; but an interrupted one is continued.

Invariants:
    I1. The alias switches within `alias.proxy.POLL_SECONDS` of a saved state, whatever the other loop waits for.
    I2. A round queries the active member without a lock, so that a member that hangs does not delay a fail-over.
    I3. A fault is reported once, not in each round, and reported again when it has changed.
    I4. Once the alias forwards to no member, the next round begins immediately: its connections are open, and those of the verb that forced
        the fail-over are not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from isthmus.errors import IsthmusError
from isthmus.pairing.alias.proxy import AliasProxy, Lead
from isthmus.pairing.pair_error import PairBrokenError
from isthmus.pairing.pair_session import PairSession
from isthmus.pairing.state.state import Fence, PairState, Phase
from isthmus.pairing.state.state_file import NotPairedError, PairInUseError
from isthmus.topology.pair.declaration import address_of

__all__ = ["PairRun", "pause_seconds"]

_log = logging.getLogger(__name__)

_COUNT_SECONDS = 5.0
_PAUSE = 4.0
_REPORTED_PAUSE = 0.5


def pause_seconds(interval_seconds: float, round_seconds: float, *, is_told: bool = False) -> float:
    """The pause after a round: comparing takes at most a fifth of the time, or with `is_told` two thirds of it.

    Args:
        interval_seconds: the least pause.
        round_seconds: how long the round took.
        is_told: whether both members report if anything has changed: a long round is then one that had something to compare.
    """
    return max(interval_seconds, (_REPORTED_PAUSE if is_told else _PAUSE) * round_seconds)


class PairRun:
    """The loops of a pair.

    Args:
        session: of the pair, which has been created.
        ready: called with the port of the alias, 0 for none, once it listens.
    """

    def __init__(self, session: PairSession, ready: Callable[[int], None] = lambda port: None) -> None:
        self._session = session
        self._ready = ready
        self._stop = threading.Event()
        session.is_stopping = self._stop.is_set
        self._wake = threading.Event()
        self._leads = True
        self._are_distinct = False
        self._counted_at = 0.0
        self._reported = ""

    async def run(self) -> None:
        """Run until SIGTERM or SIGINT.

        Raises:
            AliasAddressError: the alias's address cannot be bound.
            IsthmusError: the alias cannot forward to a member.
        """
        ending = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, ending.set)
        proxy: AliasProxy | None = None
        listen = self._session.pair.listen
        if listen:
            proxy = AliasProxy(self._waking(self._session.lead_reader(self._session.addresses())))
            await proxy.start(*address_of(listen))
        self._ready(proxy.port if proxy is not None else 0)
        keeping = asyncio.create_task(asyncio.to_thread(self._keep))
        try:
            await ending.wait()
        finally:
            self._stop.set()
            self._wake.set()
            if proxy is not None:
                await proxy.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10.0):
                    await asyncio.shield(keeping)

    def _waking(self, read_lead: Callable[[], Lead]) -> Callable[[], Lead]:
        """The same function, which also wakes the other loop when the alias forwards to no member any more."""

        def lead() -> Lead:
            found = read_lead()
            if self._leads and not found.alias:
                self._wake.set()
            self._leads = bool(found.alias)
            return found

        return lead

    def _keep(self) -> None:
        interval = self._session.pair.interval_ms / 1000
        while not self._stop.is_set():
            began, is_told = time.monotonic(), False
            try:
                self._round()
                self._report("")
                is_told = all(member.tells_changes for member in self._session.members.values())
            except PairInUseError:
                pass  # an operator's verb has the lock
            except IsthmusError as error:
                self._report(str(error))
            except Exception:  # noqa: BLE001 - the alias must survive any fault of the other loop
                _log.exception("pair %s: the round failed", self._session.pair.name)
            self._wake.wait(pause_seconds(interval, time.monotonic() - began, is_told=is_told))
            self._wake.clear()

    def _round(self) -> None:
        session = self._session
        state = session.state()
        if not state.is_insisting:  # else it is continued, with the lock
            state = session.keeper.follow(state)
        if state.phase is not Phase.STEADY:
            session.finish(0.0, lambda text: _log.info("pair %s: continues a fail-over: %s", state.pair, text))
            return
        if state.fence_of(state.standby) is Fence.PENDING:
            session.finish(0.0)
            _log.info("pair %s: %s is fenced", state.pair, state.standby)
            return
        if not self._are_distinct:
            session.keeper.check_distinct(state.pair)
            self._are_distinct = True
        compared = session.keeper.observe(state)
        with session.file.locked(0.0):
            current = session.state()
            if (current.epoch, current.phase) != (state.epoch, state.phase):
                return
            current, found = session.keeper.make(current, compared)
        # Without the lock (I2).
        try:
            session.keeper.settle(current)
        except PairBrokenError:
            self._check_unbroken(current)  # by a process with this state folder, it raises
            raise
        self._check_unbroken(current)
        for step in found.done:
            _log.info("pair %s: %s: %s", state.pair, state.standby, step)
        faults = [f"{step}: {error}" for step, error in found.failed] + [str(each) for each in found.drift.conflicts]
        if faults:
            raise _ApartError("; ".join(faults[:10]))
        if time.monotonic() - self._counted_at >= _COUNT_SECONDS:
            self._counted_at = time.monotonic()
            seen, seen_at = session.keeper.count(current), time.time()
            # Without the lock: only the counts are changed, in the state as other verbs have changed it meanwhile.
            session.file.change(
                lambda kept: (
                    replace(kept, seen=seen, seen_of=current.active, seen_at=seen_at)
                    if kept.active == current.active
                    else kept
                )
            )

    def _check_unbroken(self, state: PairState) -> None:
        """Remove markers that were written after another process had broken the pair; a later pairing would read them.

        Raises:
            NotPairedError: it was broken.
        """
        try:
            self._session.file.check(state)
        except NotPairedError:
            for member in self._session.members.values():
                with contextlib.suppress(IsthmusError):
                    member.delete_marker(state.pair)
            raise

    def _report(self, fault: str) -> None:
        if fault == self._reported:
            return
        if fault:
            _log.warning("pair %s: not in step: %s", self._session.pair.name, fault)
        else:
            _log.info("pair %s: in step again", self._session.pair.name)
        self._reported = fault


class _ApartError(IsthmusError):
    """Some differences remain."""

    code = "pair-apart"
